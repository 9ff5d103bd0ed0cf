"""Every requirement that the library claims has a test that names it, in every mode and layout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

NUMBER = re.compile(r"\b([MUTRX])(\d\d)\b", re.IGNORECASE)

# T35, T36, T38 and T40 are later work.
CLAIMED = {
    *(f"M{n:02}" for n in range(1, 41)),
    *(f"U{n:02}" for n in range(1, 41)),
    *(f"T{n:02}" for n in range(1, 33)),
    *("T33", "T34", "T37", "T39", "T41", "T42"),
    *(f"R{n:02}" for n in range(1, 39)),
    *(f"X{n:02}" for n in range(4, 11)),
}

# The others have a test in both modes, partitioned and not.
WITHOUT_MATRIX = {
    "no table is involved": {"U22", "U28", "U40", "T07", "T10", "T18", "T19"}
    | {"M15", "M16", "M17", "M29"},
    "parts that know no mode": {"U14", "T13", "T16", "T23"},
    "the mode itself is the subject": {"U21", "T02", "T03", "T04", "T05", "T06", "T24"}
    | {"T34", "T37"},
    "partitions are the subject": {"T32", "M18", "M19", "M20", "M21", "M22"},
    "size is the subject": {"M26", "M34", "M36"},
    "a list of tests": {"T28"},
    "replacing is by partitions; of rows, which has modes, tests/replace says more": {
        f"R{n:02}" for n in range(1, 39)
    },
}


def test_every_claimed_requirement_is_named_by_a_test() -> None:
    cited: set[str] = set()
    for path in files_of_tests():
        cited |= numbers(path.read_text())
    assert sorted(CLAIMED - cited) == []


def test_every_claimed_requirement_is_tested_in_both_modes_partitioned_and_not() -> None:
    """A test of all four takes `mode` and `partition_by`, itself or by a fixture of its file."""
    covered: set[str] = set()
    for path in files_of_tests():
        functions = list(functions_of(path))
        arguments = {f.name: {a.arg for a in f.args.args} for f in functions}
        for function in functions:
            if {"mode", "partition_by"} <= with_fixtures(function.name, arguments):
                covered |= numbers(f"{function.name} {ast.get_docstring(function)}")
    assert sorted(CLAIMED - covered) == sorted(set().union(*WITHOUT_MATRIX.values()))


def files_of_tests() -> Iterator[Path]:
    here = Path(__file__)
    return (path for path in here.parent.rglob("test_*.py") if path != here)


def numbers(text: str) -> set[str]:
    return {f"{kind.upper()}{number}" for kind, number in NUMBER.findall(text.replace("_", " "))}


def functions_of(path: Path) -> Iterator[ast.FunctionDef]:
    body = ast.parse(path.read_text()).body
    return (statement for statement in body if isinstance(statement, ast.FunctionDef))


def with_fixtures(name: str, arguments: dict[str, set[str]]) -> set[str]:
    """The arguments of a function, and those of the fixtures of its file among them."""
    own = arguments.get(name, set())
    return own.union(*(with_fixtures(each, arguments) for each in own if each != name))
