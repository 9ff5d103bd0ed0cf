"""Rules of the code base that a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import icefloe
from icefloe.settings import Settings

PACKAGE = Path(icefloe.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A layer may import from itself and from those before it.
LAYERS = [
    [
        "version",
        "redaction",
        "errors",
        "columns",
        "bitmaps",
        "results",
        "settings",
        "frames",
        "quoting",
        "lexing",
        "table_names",
        "spark_errors",
        "holds",
        "session_settings",
        "started_sessions",
        "expressions",
        "session",
    ],
    ["parquet"],
    ["tasks"],
    ["schemas", "predicates"],
    ["metadata"],
    ["changes", "statements", "subqueries"],
    ["plan"],
    ["execute"],
    ["commit"],
    ["publishing"],
    ["merging"],
    ["engine"],
    [
        "builders",
        "merge_builder",
        "reading",
        "rows",
        "inspection",
        "evolution",
        "replace",
        "maintenance",
    ],
    ["table"],
    ["sql"],
    ["lake"],
    ["writer"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(module: Path) -> list[str]:
    """What a module imports when it runs; imports for type checking alone do not count."""
    tree = ast.parse(module.read_text())
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def test_every_module_belongs_to_a_layer():
    assert {layer_of(m) for m in MODULES} - {"__init__"} == set(RANK)


def test_imports_point_one_way():
    backwards = [
        f"{module.relative_to(PACKAGE)} imports {name}"
        for module in MODULES
        for name in imports_of(module)
        if name.startswith("icefloe.") and layer_of(module) in RANK
        if RANK.get(name.split(".")[1], -1) > RANK[layer_of(module)]
    ]
    assert backwards == []


def test_tasks_import_nothing_that_workers_lack():
    allowed = ("icefloe.tasks", "icefloe.parquet", "numpy", "pyarrow", "pyspark")
    strangers = [
        f"{module.name} imports {name}"
        for folder in ("tasks", "parquet")
        for module in (PACKAGE / folder).glob("*.py")
        for name in imports_of(module)
        if name.split(".")[0] in ("icefloe", "pyiceberg", "pyroaring", "sqlglot", "pandas")
        and not name.startswith(allowed)
    ]
    assert strangers == []


def test_private_names_of_pyiceberg_stay_in_metadata():
    private = re.compile(r"from pyiceberg\S* import .*\b_\w+|pyiceberg\S*\._\w+")
    outside = [
        str(module.relative_to(PACKAGE))
        for module in MODULES
        if (
            layer_of(module) != "metadata"
            and any(
                name.startswith("pyiceberg")
                and any(part.startswith("_") for part in name.split("."))
                for name in imports_of(module)
            )
        )
        or (layer_of(module) != "metadata" and private.search(module.read_text()))
    ]
    assert outside == []


def test_modules_fit_one_sitting():
    too_long = [
        f"{module.relative_to(PACKAGE)}: {len(module.read_text().splitlines())} lines"
        for module in MODULES
        if len(module.read_text().splitlines()) > 450
    ]
    assert too_long == []


def test_every_setting_is_read_somewhere():
    code = "\n".join(m.read_text() for m in MODULES if m.name != "settings.py")
    through_methods = {f.name for f in fields(Settings) if f.name.endswith(("_mode", "_isolation"))}
    unread = [
        f.name
        for f in fields(Settings)
        if f"settings.{f.name}" not in code and f.name not in through_methods
    ]
    assert unread == []


def test_public_names():
    assert set(icefloe.__all__) == {
        "DmlResult",
        "ExpireResult",
        "Lake",
        "OrphansResult",
        "RewriteManifestsResult",
        "Table",
        "__version__",
        "connect",
        "errors",
        "write",
    }
