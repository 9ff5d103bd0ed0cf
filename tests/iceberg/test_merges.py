"""The same MERGE by icefloe and by Iceberg's own runtime, on twin tables, gives the same rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from support.merge_sequence import LAYOUTS, MERGES, SCHEMA, SOURCE, Layout
from support.two_engines import Both, modes, plain

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_fifteen_merges_on_twins(
    both: MakeBoth, spark: SparkSession, mode: str, layout: Layout
) -> None:
    """After each, the runtime reads of our table what it made of its own."""
    ours = both(SCHEMA).made_by_us(layout.partition_by, **modes(mode))
    twin = both(SCHEMA).made_by_us(layout.partition_by, **modes(mode))
    for table in (ours, twin):
        layout.fill(table.ours, lambda rows, t=table: t.ours.append(frame(spark, rows, SCHEMA)))
    assert read(ours) == read(twin)
    assert len(MERGES) == 15
    for merge in MERGES:
        if merge is MERGES[-1] and layout.before_last is not None:
            for table in (ours, twin):
                table.ours.evolve_partitions(layout.before_last)
        source = frame(spark, list(merge.source), SOURCE)
        source.createOrReplaceTempView("merge_source")

        result = merge.run(ours.ours, source)
        spark.sql(merge.sql(twin.path, "merge_source"))

        found = read(ours)
        assert found == read(twin), merge.name
        assert found == plain(ours.ours.scan().collect()), merge.name
        assert plain(twin.ours.scan().collect()) == found, merge.name
        assert result.clauses == merge.counts, merge.name


def test_each_engine_continues_after_the_merge_of_the_other(
    both: MakeBoth, spark: SparkSession
) -> None:
    """On one table, each engine's MERGE over the other's files and deletes."""
    t = both(SCHEMA).made_by_us(("region",), **modes("merge-on-read"))
    twin = both(SCHEMA).made_by_us((), **modes("copy-on-write"))
    for table in (t, twin):
        LAYOUTS[0].fill(table.ours, lambda rows, t=table: t.ours.append(frame(spark, rows, SCHEMA)))
    for number, merge in enumerate(MERGES):
        source = frame(spark, list(merge.source), SOURCE)
        source.createOrReplaceTempView("merge_source")
        if number % 2:
            merge.run(t.ours, source)
        else:
            spark.sql(merge.sql(t.path, "merge_source"))
        spark.sql(merge.sql(twin.path, "merge_source"))
        assert read(t) == plain(t.ours.scan().collect()) == read(twin), merge.name
    t.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert read(t) == read(twin)


def test_an_upsert_of_rows_that_the_driver_has(both: MakeBoth) -> None:
    """The types of Arrow rows are compared with those that this version of PySpark gives them."""
    t = both("id BIGINT, at TIMESTAMP, day DATE, s STRING").made_by_us((), **modes("merge-on-read"))
    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    rows = [{"id": n, "at": at, "day": date(2024, 5, n), "s": "a"} for n in (1, 2)]
    t.ours.append(rows)
    changes = [{**rows[1], "s": "b"}, {"id": 3, "at": None, "day": None, "s": "é"}]
    merge = t.ours.upsert(changes, ["id"])
    assert merge.explain().join == "driver"
    done = merge.execute()
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    assert read(t) == plain(t.ours.scan().collect())
    assert sorted(row.id for row in t.ours.scan(["id"]).collect()) == [1, 2, 3]


def frame(spark: SparkSession, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    kinds = StructType.fromDDL(schema)
    values = [tuple(_as_tuple(row[name]) for name in kinds.names) for row in rows]
    return spark.createDataFrame(values, kinds).coalesce(1)


def _as_tuple(value: Any) -> Any:
    return tuple(value.values()) if isinstance(value, dict) else value


def read(table: Both) -> list[str]:
    """The rows as Iceberg's runtime reads them."""
    return plain(table.spark.table(table.path).collect())
