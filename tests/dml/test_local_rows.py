"""Few rows that the driver holds are written by the driver: the same files as Spark's tasks write."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe import Lake, Table
from icefloe.commands.input_rows import as_frame
from icefloe.errors import NullabilityError, SchemaMismatchError, StatementError, StorageError
from icefloe.writing import local_rows
from support.tables import data_files, rows, snapshots, stored_files

COLUMNS = (
    "id BIGINT, i INT, flag BOOLEAN, f FLOAT, d DOUBLE, x DECIMAL(20,3), day DATE, ts TIMESTAMP, "
    "ntz TIMESTAMP_NTZ, s STRING, b BINARY, st STRUCT<n: INT, s: STRING>, l ARRAY<INT>, "
    "m MAP<STRING, INT>"
)
EXTREMES: dict[str, list[Any]] = {
    "id": [0, -1, 7, 2**63 - 1, -(2**63) + 10],
    "i": [0, -1, 7, 2**31 - 1, -(2**31) + 10],
    "flag": [True, False],
    "f": [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")],
    "d": [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")],
    "x": [Decimal("0.001"), Decimal("-99999999999999999.999"), Decimal("12.5")],
    "day": [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    "ts": [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 34, 56, 789, tzinfo=UTC),
    ],
    "ntz": [datetime(1969, 12, 31, 23, 59), datetime(2024, 2, 29, 12, 34, 56, 789)],
    "s": ["", "a", "ä", "日本語", "🎉🎉🎉", "a/b=c d%"],
    "b": [b"", b"\x00", b"\xff\xfe", b"abc"],
    "st": [{"n": 1, "s": "x"}, {"n": None, "s": None}],
    "l": [[], [1, None, 3]],
    "m": [{}, {"a": 1, "b": None}],
}
# Every transform on every type it takes, and no partitions.
PARTITIONS = [
    *((name,) for name in ("id", "i", "flag", "x", "day", "ts", "ntz", "s", "b", "st.s")),
    *((f"bucket(5, {name})",) for name in ("id", "i", "x", "day", "ts", "ntz", "s", "b", "st.n")),
    *((f"truncate(2, {name})",) for name in ("id", "i", "s", "b")),
    *(
        (f"{unit}({name})",)
        for unit in ("years", "months", "days")
        for name in ("day", "ts", "ntz")
    ),
    *((f"hours({name})",) for name in ("ts", "ntz")),
    ("s", "bucket(3, id)"),
    (),
]
# Sort orders, and the columns that they sort by.
ORDERS = [
    (("d DESC NULLS LAST", "s"), ("d", "s")),
    (("f", "x DESC"), ("f", "x")),
    (("day DESC NULLS FIRST", "id NULLS LAST"), ("day", "id")),
]


def random_rows(count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed)
    return [
        {name: chosen.choice([*values, None]) for name, values in EXTREMES.items()}
        for _ in range(count)
    ]


def written(table: Table, *ordered: str) -> list[Any]:
    """What manifests and files hold, without names of files; of rows the order of some columns."""
    entries = []
    for live in data_files(table):
        file = live.file
        content = pq.read_table(urlparse(file.file_path).path)
        folder = file.file_path.rpartition("/")[0].removeprefix(table.location)
        bounds = file.lower_bounds, file.upper_bounds
        counts = file.value_counts, file.null_value_counts, file.nan_value_counts
        metrics = [sorted(dict(each).items()) for each in (*bounds, *counts)]
        facts = (folder, file.partition, file.record_count, file.sort_order_id, metrics)
        order = [repr(content[name].to_pylist()).replace("-0.0", "0.0") for name in ordered]
        values = sorted(map(repr, content.to_pylist()))
        entries.append((repr(facts), str(content.schema), order, values))
    return sorted(entries)


def through_spark(table: Table, new: list[dict[str, Any]]) -> None:
    """Append rows as a DataFrame, which only Spark can write."""
    spark = table._lake.spark
    table.append(as_frame(new, table._state(), spark))


@pytest.mark.every_variant
@pytest.mark.parametrize("part", [0, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2, 3))])
def test_files_are_those_that_tasks_write(lake, part):
    for number, partition_by in list(enumerate(PARTITIONS))[part::4]:
        new = random_rows(25, seed=number)
        driver, spark = tables_of_both(lake, f"t{number}", COLUMNS, partition_by=partition_by)
        driver.append(new)
        through_spark(spark, new)
        assert written(driver) == written(spark), partition_by


@pytest.mark.every_variant
@pytest.mark.parametrize(("sort_by", "names"), ORDERS)
def test_rows_are_sorted_as_spark_sorts_them(lake, sort_by, names):
    new = random_rows(60, seed=3)
    driver, spark = tables_of_both(lake, "t", COLUMNS, sort_by=sort_by, partition_by="flag")
    driver.append(new)
    through_spark(spark, new)
    assert written(driver, *names) == written(spark, *names)


def tables_of_both(lake: Lake, name: str, schema: str, **options: Any) -> list[Table]:
    """Two tables of one definition: for the driver and for Spark."""
    return [lake.create_table(f"{name}_{who}", schema, **options) for who in ("driver", "spark")]


@pytest.mark.every_variant
@pytest.mark.parametrize("kind", ["dicts", "arrow", "batch", "pandas"])
def test_driver_writes_rows_of_every_kind_without_a_job(lake, kind, jobs):
    table = lake.create_table("t", "id BIGINT NOT NULL, s STRING", partition_by="id")
    arrow = pa.table({"S": ["x", None], "id": pa.array([1, 2], pa.int64())})
    new = {
        "dicts": arrow.to_pylist(),
        "arrow": arrow,
        "batch": arrow.to_batches()[0],
        "pandas": pd.DataFrame({"id": [1, 2], "s": ["x", None]}),
    }[kind]
    before = jobs()
    result = table.append(new)
    assert jobs() == before
    assert (result.operation, result.rows_inserted, result.data_files_added) == ("append", 2, 2)
    assert rows(table) == [(1, "x"), (2, None)]


def test_other_types_many_rows_and_frames_are_written_by_spark(lake, jobs, spark):
    table = lake.create_table("t", "id BIGINT, s STRING")
    for new in (
        pa.table({"id": pa.array([1], pa.int32()), "s": ["x"]}),
        pa.table({"id": range(local_rows.MOST_ROWS + 1), "s": ["x"] * (local_rows.MOST_ROWS + 1)}),
        spark.createDataFrame([(1, "x")], "id BIGINT, s STRING"),
    ):
        before = jobs()
        table.append(new)
        assert jobs() > before
    assert table.count() == local_rows.MOST_ROWS + 3


def test_overwrite_by_the_driver_replaces_every_row(table_of, partition_by):
    table = table_of(
        "id BIGINT, region STRING", [{"id": 1, "region": "us"}], partition_by=partition_by
    )
    result = table.overwrite([{"id": 2, "region": "eu"}])
    assert (result.rows_inserted, result.rows_deleted) == (1, 1)
    assert rows(table) == [(2, "eu")]


def test_null_in_a_required_column_is_named_and_nothing_is_left(lake):
    table = lake.create_table(
        "t", "id BIGINT NOT NULL, s STRUCT<n: INT NOT NULL>", partition_by="id"
    )
    with pytest.raises(NullabilityError, match="'id'"):
        table.append([{"id": 1, "s": {"n": 1}}, {"id": None, "s": {"n": 1}}])
    with pytest.raises(NullabilityError, match=r"s\.n"):
        table.append([{"id": 1, "s": {"n": None}}])
    assert (stored_files(table), snapshots(table)) == (set(), [])


def test_number_without_a_truncated_value_is_refused(lake):
    table = lake.create_table("t", "id BIGINT", partition_by="truncate(10, id)")
    with pytest.raises(StatementError, match=r"truncate\(10\) has no value"):
        table.append([{"id": -(2**63)}])
    assert (stored_files(table), snapshots(table)) == (set(), [])


def test_folder_that_cannot_be_written_is_a_storage_error(lake):
    table = lake.create_table("t", "id BIGINT")
    Path(urlparse(table.location).path, "data").write_text("not a folder")
    with pytest.raises(StorageError, match="data"):
        table.append([{"id": 1}])
    assert snapshots(table) == []


def test_columns_that_do_not_fit_are_refused(lake):
    table = lake.create_table("t", "id BIGINT, s STRING")
    for wrong in ([{"id": 1}], pa.table({"id": [1], "t": ["x"]}), [{"id": 1, "s": "x", "u": 1}]):
        with pytest.raises(SchemaMismatchError):
            table.append(wrong)
    assert snapshots(table) == []


def test_timestamps_around_every_hour_of_a_day_have_sparks_partitions(lake):
    start = datetime(1969, 12, 31, 22, 30, tzinfo=UTC)
    new = [{"ts": start + timedelta(minutes=30 * i)} for i in range(96)]
    driver, spark = tables_of_both(lake, "t", "ts TIMESTAMP", partition_by="hours(ts)")
    driver.append(new)
    through_spark(spark, new)
    assert written(driver) == written(spark)
