"""partitions_of(): the predicate of the partitions that a DataFrame has rows for."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from support.tables import rows


@pytest.mark.requirement("R35")
def test_the_predicate_of_a_thousand_partitions_runs(table_of):
    table = table_of("d DATE, v INT", [{"d": date(2020, 1, 1), "v": 1}], partition_by=("d",))
    days = [date(2020, 1, 1) + timedelta(days=n) for n in range(1000)]
    frame = table._lake.spark.createDataFrame([(day, 2) for day in days], "d DATE, v INT")

    result = table.replace_where(table.partitions_of(frame), frame.limit(1)).execute()

    assert (result.rows_deleted, result.rows_inserted) == (1, 1)


@pytest.mark.requirement("R35")
@pytest.mark.parametrize("scope", ["partitions", "rows"])
def test_a_partition_column_with_a_dot_in_its_name(table_of, scope):
    """The predicate names the column, not a field of a struct, wherever it is used."""
    table = table_of("`a.b` INT, v INT", [{"a.b": 1, "v": 1}], partition_by=("a.b",))
    table.append([{"a.b": 2, "v": 2}, {"a.b": None, "v": 3}])
    new = [{"a.b": 1, "v": 10}, {"a.b": None, "v": 30}]

    predicate = table.partitions_of(new)
    result = table.replace_where(predicate, new).with_options(scope=scope).execute()

    assert (result.rows_deleted, result.rows_inserted) == (2, 2)
    assert sorted(rows(table), key=str) == [(1, 10), (2, 2), (None, 30)]
    assert table.scan(where=predicate).count() == 2
