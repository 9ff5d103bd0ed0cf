"""Every file of cases, in both modes, on a lake of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import cases_of, run

FILES = sorted((Path(__file__).parent / "conformance_cases").glob("*.sqltest"))
SOURCE = [{"id": 2, "op": "U"}, {"id": 5, "op": "D"}]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases(path, mode, lake, spark):
    spark.sql("SELECT 2 AS n").createOrReplaceTempView("conformance_view")
    views = {table.name for table in spark.catalog.listTables()}
    wrong = [told for case in cases_of(path, mode) if (told := run(case, lake, src=SOURCE))]
    assert not wrong, "\n".join(wrong)
    assert {table.name for table in spark.catalog.listTables()} == views


def test_there_are_enough_cases():
    assert sum(1 for path in FILES for _ in cases_of(path, "")) >= 150
