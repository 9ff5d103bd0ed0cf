"""REPLACE USING: new rows for all rows that share their values in some columns."""

from __future__ import annotations

import math
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyspark.sql import functions as F

from icefloe.errors import ColumnNotFoundError, NullabilityError, StatementError
from support.tables import data_files, delete_files, row, rows, snapshots, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING, n INT"


OLD = [row(1), row(2), row(2, "eu"), row(3, "eu"), row(None, None), row(6, None)]
LAYOUTS = [
    (),
    ("bucket(4, id)",),
    pytest.param(("region",), marks=pytest.mark.slow),
    pytest.param(("truncate(2, id)", "region"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_with_the_keys_of_new_rows_are_replaced(table_of, mode, layout):
    table = table_of(SCHEMA, OLD, mode=mode, partition_by=layout)

    result = table.replace_using(["id"], [row(2, "ap", 1), row(9, "ap", 1)]).execute()

    assert (result.operation, result.rows_deleted, result.rows_inserted) == ("replace_using", 2, 2)
    assert rows(table, "id", "n") == sorted(
        [(None, 0), (1, 0), (2, 1), (3, 0), (6, 0), (9, 1)],
        key=lambda r: [(v is not None, repr(v)) for v in r],
    )
    assert len(snapshots(table)) == 2
    assert summary(table)["icefloe.using"] == "id"
    if mode == "copy-on-write":
        assert delete_files(table) == []


def test_null_keys_are_values_too_so_that_a_reload_repeats_nothing(table_of, mode):
    table = table_of(SCHEMA, OLD, mode=mode)
    new = [row(None, None, 7), row(6, None, 7)]
    assert table.replace_using(["id", "region"], new).execute().rows_deleted == 2
    assert table.replace_using(["id", "region"], new).execute().rows_deleted == 2
    assert table.count() == 6
    assert rows(table, "n", where="region IS NULL") == [(7,), (7,)]


def test_a_key_that_is_the_partition_reads_no_data_file(table_of):
    table = table_of(SCHEMA, OLD, partition_by=("region",))
    for file in data_files(table):
        Path(urlparse(file.path).path).unlink()
    result = table.replace_using("region", [row(50, "us", 1), row(51, None, 1)]).execute()
    assert (result.rows_deleted, result.data_files_removed, result.files_scanned) == (4, 2, 0)
    assert result.files_skipped == 1
    assert sum(f.rows for f in data_files(table)) == 4


def test_only_partitions_with_such_keys_are_looked_into(table_of):
    table = table_of(SCHEMA, [row(i) for i in range(40)], partition_by=("bucket(8, id)",))
    result = table.replace_using(["id"], [row(7, "eu", 1)]).execute()
    assert result.files_scanned == 1
    assert result.files_skipped == len(data_files(table)) - 2
    assert rows(table, "region", where="id = 7") == [("eu",)]
    bounded = table_of(SCHEMA, [row(i) for i in range(10)], [row(i) for i in range(10, 20)])
    assert bounded.replace_using(["id"], [row(12)]).execute().files_skipped == 1


def test_keys_of_older_specs_are_found(table_of, mode):
    table = table_of(SCHEMA, OLD, mode=mode, partition_by=("region",))
    table.evolve_partitions(("bucket(4, id)",))
    table.append([row(2, "ap"), row(8, "us")])
    assert table.replace_using(["id"], [row(2, "xx", 1)]).execute().rows_deleted == 3
    assert table.replace_using(["region"], [row(70, "us", 1)]).execute().rows_deleted == 2
    found = rows(table, "id", where="id IS NOT NULL")
    assert found == [(2,), (3,), (6,), (70,)]


def test_over_existing_deletes(table_of, mode):
    table = table_of(SCHEMA, OLD, mode=mode)
    table.delete().where("region = 'eu'").with_options(mode="merge-on-read").execute()
    result = table.replace_using(["id"], [row(2, "us", 3)]).execute()
    assert result.rows_deleted == 1
    assert rows(table, "id", where="id > 0") == [(1,), (2,), (6,)]


def test_the_rows_given_are_read_once(table_of, spark):
    """What is deleted is chosen by the rows that are written, even if the source is a dice."""
    table = table_of(SCHEMA, [row(i) for i in range(100)])
    dice = spark.range(30).select(
        (F.rand() * 100).cast("bigint").alias("id"),
        F.lit("new").alias("region"),
        F.lit(1).alias("n"),
    )
    result = table.replace_using(["id"], dice).execute()
    new = {i for (i,) in rows(table, "id", where="region = 'new'")}
    old = {i for (i,) in rows(table, "id", where="region = 'us'")}
    assert new.isdisjoint(old)
    assert new | old == set(range(100))
    assert (result.rows_deleted, result.rows_inserted) == (len(new), 30)


def test_keys_of_other_types(table_of):
    table = table_of(
        "k DOUBLE, s STRING, d DATE",
        [
            {"k": k, "s": f"a very long text indeed, number {i}", "d": None}
            for i, k in enumerate([math.nan, 0.0, 1.5])
        ],
    )
    new = [{"k": math.nan, "s": "n", "d": None}, {"k": -0.0, "s": "z", "d": None}]
    assert table.replace_using(["k"], new).execute().rows_deleted == 2
    same = [{"k": 9.0, "s": "a very long text indeed, number 2", "d": None}]
    assert table.replace_using(["S"], same).execute().rows_deleted == 1
    assert sorted(s for (s,) in rows(table, "s")) == ["a very long text indeed, number 2", "n", "z"]


def test_no_rows_replace_nothing(table_of):
    table = table_of(SCHEMA, OLD)
    result = table.replace_using(["id"], []).execute()
    assert (result.snapshot_id, result.rows_deleted) == (None, 0)
    assert len(snapshots(table)) == 1


def test_refusals_and_options(table_of):
    table = table_of("id BIGINT NOT NULL, region STRING, n INT", [row(1)])
    for columns, error, told in [
        ([], StatementError, "names no column"),
        (["idd"], ColumnNotFoundError, "'id'"),
        (["id", "ID"], StatementError, "twice"),
    ]:
        with pytest.raises(error, match=told):
            table.replace_using(columns, [row(1)]).execute()
    with pytest.raises(StatementError, match="Unknown option 'scope'"):
        table.replace_using(["id"], []).with_options(scope="rows")
    with pytest.raises(NullabilityError):
        table.replace_using(["id"], [row(1), row(None)]).execute()
    assert rows(table) == [(1, "us", 0)]
    assert leftovers(table) == set()
    keyed = table.replace_using(["id"], [row(1, "eu")]).with_options(idempotency_key="k")
    assert keyed.execute().snapshot_id == keyed.execute().snapshot_id == table.snapshot_id
    plan = table.replace_using(["id"], [row(1)]).explain()
    assert (plan.operation, len(plan.files)) == ("replace_using", 1)
    assert "(id) occurs in the new rows" in str(plan)
