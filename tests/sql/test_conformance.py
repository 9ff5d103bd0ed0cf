"""Every file of cases, in both modes, on a lake of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.sql_cases import cases_of, run

FILES = sorted((Path(__file__).parent / "conformance_cases").glob("*.sqltest"))
SOURCE = [{"id": 2, "op": "U"}, {"id": 5, "op": "D"}]
MODES = ["copy-on-write", "merge-on-read"]
SAME_IN_BOTH = ("ddl", "queries")  # they hardly write
SLOW = {  # the mode in which a file runs with the slow tests alone
    **dict.fromkeys(SAME_IN_BOTH, "copy-on-write"),
    "update_delete": "merge-on-read",
    "merge": "copy-on-write",
}


def runs() -> list[Any]:
    """Every file in both modes; the longest, and those that hardly write, in one when in a hurry."""
    return [
        pytest.param(path, mode, id=f"{path.stem}-{mode}", marks=[pytest.mark.slow] * is_slow)
        for path in FILES
        for mode in MODES
        for is_slow in [SLOW.get(path.stem) == mode]
    ]


@pytest.mark.parametrize(("path", "mode"), runs())
def test_cases(path, mode, lake, spark):
    spark.sql("SELECT 2 AS n").createOrReplaceTempView("conformance_view")
    views = {table.name for table in spark.catalog.listTables()}
    wrong = [failure for case in cases_of(path, mode) if (failure := run(case, lake, src=SOURCE))]
    assert not wrong, "\n".join(wrong)
    assert {table.name for table in spark.catalog.listTables()} == views


def test_there_are_enough_cases():
    """At least 150 of them run in both modes."""
    both = [path for path in FILES if path.stem not in SAME_IN_BOTH]
    assert sum(1 for path in both for _ in cases_of(path, "")) >= 150
