"""Write the tables of docs/properties.md and docs/errors.md from the code.

python scripts/docs_tables.py
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from icefloe import errors
from icefloe.settings import TABLE_PROPERTIES

BEGIN = "<!-- `make docs-tables` writes the lines from here -->"
END = "<!-- to here -->"
DOCS = Path(__file__).parent.parent / "docs"


def properties_table() -> str:
    """Every table property: name, default, values, meaning."""
    rows = [
        (
            f"`{declared.name}`",
            f"`{declared.default}`" if declared.default is not None else "not set",
            declared.values.expected,
            declared.description,
        )
        for declared in TABLE_PROPERTIES
    ]
    return _table(("property", "default", "values", "sets"), rows)


def errors_table() -> str:
    """Every error below its first base class, with the attributes that its constructor sets."""
    rows = [
        (
            f"{'↳ ' * depth}[`{kind.__name__}`](#icefloe.errors.{kind.__name__})",
            (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "),
            ", ".join(f"`{name}`" for name in _attributes(kind)) or "–",
        )
        for depth, kind in _below(errors.IcefloeError, 0)
    ]
    return _table(("error", "when", "attributes"), rows)


def _below(kind: type, depth: int) -> Iterator[tuple[int, type]]:
    yield depth, kind
    for other in vars(errors).values():
        if isinstance(other, type) and other.__bases__[:1] == (kind,):
            yield from _below(other, depth + 1)


def _attributes(kind: type) -> list[str]:
    """The names that are assigned to `self` in the constructors of an error and its bases."""
    names: list[str] = []
    for base in kind.__mro__:
        if base.__module__ != errors.__name__ or "__init__" not in vars(base):
            continue
        body = ast.parse(inspect.getsource(base))
        names += [
            node.attr
            for node in ast.walk(body)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ]
    return list(dict.fromkeys(names))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


TABLES = {"properties.md": properties_table, "errors.md": errors_table}


def with_table(page: str, table: str) -> str:
    """The page with the lines between the markers replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page must have the lines {BEGIN!r} and {END!r}")
    return "\n".join([before + BEGIN, "", table, "", END + after])


def main() -> None:
    """Write the pages."""
    for name, table in TABLES.items():
        page = DOCS / name
        page.write_text(with_table(page.read_text(), table()))


if __name__ == "__main__":
    main()
