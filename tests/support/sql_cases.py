"""Cases in plain text: statements, `----`, and the rows or the error of the last one.

    -- the name of the case
    UPDATE t SET n = n + 1 WHERE id = 1;
    SELECT * FROM t WHERE id = 1;
    ----
    1 | 11

`$MODES` stands for the three properties of the mode. Cases are parted by blank lines and run in
order on one lake. A value is shown as Python prints it, NULL as `NULL`; rows are compared without regard to order. `DML` before figures compares a
result's counts: `DML inserted=1 updated=0 deleted=2`. `error ClassName some words` is a failure
whose message has these words. `empty` is no row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icefloe import DmlResult, Lake, errors
from icefloe.errors import IcefloeError


@dataclass(frozen=True)
class Case:
    file: str
    line: int
    text: str
    expected: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def cases_of(path: Path, mode: str) -> Iterator[Case]:
    modes = ", ".join(f"'write.{kind}.mode' = '{mode}'" for kind in ("delete", "update", "merge"))
    whole = path.read_text().replace("$MODES", modes).replace("$MODE", mode)
    line = 1
    for block in re.split(r"(\n{2,})", whole):
        if block.strip():
            text, bar, expected = block.partition("\n----")
            assert bar, f"{path.name}:{line}: no ---- in the case"
            wanted = tuple(each for each in expected.strip("\n").split("\n") if each)
            yield Case(path.name, line, text, wanted)
        line += block.count("\n")


def run(case: Case, lake: Lake, **sources: Any) -> str | None:
    """What is wrong with a case; None where nothing is."""
    try:
        found = _shown(lake.sql(case.text, **sources))
    except IcefloeError as error:
        return _compare_error(case, error)
    if sorted(found) == sorted(case.expected):
        return None
    return f"{case.place}\n  expected {sorted(case.expected)}\n  found    {sorted(found)}"


def _compare_error(case: Case, error: IcefloeError) -> str | None:
    kind, _, words = case.expected[0].removeprefix("error ").partition(" ")
    wanted = getattr(errors, kind, None) if case.expected[0].startswith("error ") else None
    if wanted is not None and isinstance(error, wanted) and words in str(error):
        return None
    told = str(error).replace("\n", "\n    ")
    return f"{case.place}\n  expected {case.expected}\n  raised   {type(error).__name__}: {told}"


def _shown(result: Any) -> list[str]:
    if isinstance(result, DmlResult):
        return [
            f"DML inserted={result.rows_inserted} updated={result.rows_updated} "
            f"deleted={result.rows_deleted}"
        ]
    texts = [" | ".join(_text(value) for value in row) for row in result.collect()]
    return texts or ["empty"]


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return re.sub(r"\s*\n\s*", " / ", str(value))
