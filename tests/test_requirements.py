"""Every number of docs/requirements.md has a test with its mark, in every mode and layout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
REQUIREMENTS = TESTS.parent / "docs" / "requirements.md"
# Marks that keep a test out of `make test`.
LEFT_OUT = {"slow", "iceberg", "cluster"}
PLANNED = "Planned"
OUTSIDE_MAKE_TEST = "Tested outside `make test`"

# Every other requirement has a test in both modes, with partitions and without.
ONE_LAYOUT = {
    "no table is involved": {"U22", "U28", "U40", "T07", "T10", "T18", "T19"}
    | {"T38", "M15", "M16", "M17", "M29", "D5"},
    "the code under test has no mode": {"U14", "T13", "T16", "T23"},
    "a scan has no mode": {"L10", "T40"},
    "the mode itself is the subject": {"U21", "T02", "T03", "T04", "T05", "T06", "T24"}
    | {"T34", "T37", "D2", "D10"},
    "partitions are the subject": {"T32", "M18", "M19", "M20", "M21", "M22", "D8", "D11", "D20"},
    "size is the subject": {"M26", "M34", "M36"},
    "tests/replace has layouts of its own": {f"R{n:02}" for n in range(1, 39)} | {"D13"},
}


@dataclass(frozen=True)
class MarkedTest:
    name: str
    numbers: frozenset[str]
    in_make_test: bool
    in_every_layout: bool


def test_every_mark_names_a_requirement() -> None:
    listed = set().union(*requirements().values())
    unknown = {t.name: sorted(t.numbers - listed) for t in marked_tests() if t.numbers - listed}
    assert unknown == {}


def test_every_requirement_has_a_test_in_make_test() -> None:
    sections = requirements()
    outside = sections.pop(OUTSIDE_MAKE_TEST)
    del sections[PLANNED]
    built = set().union(*sections.values())
    assert sorted(built - numbers_of(t for t in marked_tests() if t.in_make_test)) == []
    assert sorted(outside - numbers_of(marked_tests())) == []


def test_every_requirement_is_tested_in_both_modes_partitioned_and_not() -> None:
    """Such a test takes `mode` and `partition_by`, itself or through a fixture of its module."""
    sections = requirements()
    del sections[PLANNED]
    built = set().union(*sections.values())
    in_every_layout = numbers_of(t for t in marked_tests() if t.in_every_layout)
    assert sorted(built - in_every_layout) == sorted(set().union(*ONE_LAYOUT.values()))


def requirements() -> dict[str, set[str]]:
    """The numbers of each section of docs/requirements.md."""
    sections: dict[str, set[str]] = {}
    for part in REQUIREMENTS.read_text().split("\n## ")[1:]:
        title, _, lines = part.partition("\n")
        numbers = re.findall(r"^\* \*\*([A-Z]\d+)\*\*", lines, re.MULTILINE)
        assert len(numbers) == len(set(numbers)), f"a number is listed twice under {title!r}"
        sections[title.strip()] = set(numbers)
    return sections


def numbers_of(tests: Iterable[MarkedTest]) -> set[str]:
    return set().union(*(test.numbers for test in tests))


@cache
def marked_tests() -> tuple[MarkedTest, ...]:
    return tuple(read_marked_tests())


def read_marked_tests() -> Iterator[MarkedTest]:
    """Read from the source: no module is imported, and a selection of tests changes nothing."""
    for path in sorted(TESTS.rglob("test_*.py")):
        body = ast.parse(path.read_text()).body
        functions = [node for node in body if isinstance(node, ast.FunctionDef)]
        arguments = {f.name: {a.arg for a in f.args.args} for f in functions}
        module_marks = marks_of_module(body)
        for function in functions:
            marks = [*module_marks, *marks_in(function.decorator_list)]
            numbers = frozenset(n for name, args in marks if name == "requirement" for n in args)
            if numbers and function.name.startswith("test_"):
                yield MarkedTest(
                    name=f"{path.relative_to(TESTS)}::{function.name}",
                    numbers=numbers,
                    in_make_test=not LEFT_OUT.intersection(name for name, _ in marks),
                    in_every_layout={"mode", "partition_by"}
                    <= with_fixtures(function.name, arguments),
                )


def marks_of_module(body: list[ast.stmt]) -> list[tuple[str, tuple[str, ...]]]:
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            value = node.value
            return marks_in(value.elts if isinstance(value, ast.List) else [value])
    return []


def marks_in(nodes: list[ast.expr]) -> list[tuple[str, tuple[str, ...]]]:
    """Name and text arguments of every `pytest.mark.…` among the expressions."""
    marks = []
    for node in nodes:
        call = node if isinstance(node, ast.Call) else None
        name = ast.unparse(call.func if call else node)
        if name.startswith("pytest.mark."):
            args = [a.value for a in (call.args if call else []) if isinstance(a, ast.Constant)]
            marks.append((name.removeprefix("pytest.mark."), tuple(map(str, args))))
    return marks


def with_fixtures(name: str, arguments: dict[str, set[str]]) -> set[str]:
    """The arguments of a function, and those of the fixtures of its module among them."""
    own = arguments.get(name, set())
    return own.union(*(with_fixtures(each, arguments) for each in own if each != name))
