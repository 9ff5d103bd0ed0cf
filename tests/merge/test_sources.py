"""Rows of every kind may be merged; the source is read once, and stays where it is."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from icefloe.commands.merge.source import persisted, pinned_source
from icefloe.errors import SchemaMismatchError, StatementError
from support.merge_rows import SCHEMA, row, triples
from support.tables import rows, snapshots

TARGET = [row(1, "us", 10), row(2, "eu", 20)]
CHANGES = [row(2, "eu", -2), row(3, None, None)]
AFTER = [(1, "us", 10), (2, "eu", -2), (3, None, None)]


def as_arrow(changes):
    return pa.Table.from_pylist(changes)


SOURCES = {
    "dicts": lambda changes, _: changes,
    "arrow": lambda changes, _: as_arrow(changes),
    "batch": lambda changes, _: as_arrow(changes).to_batches()[0],
    "pandas": lambda changes, _: pd.DataFrame(changes).astype({"n": "Int64"}),
    "dataframe": lambda changes, spark: spark.createDataFrame(as_arrow(changes)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_source_of_every_kind(table_of, spark, kind):
    table = table_of(SCHEMA, TARGET)

    result = table.upsert(SOURCES[kind](CHANGES, spark), on=["id"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert triples(table) == AFTER


def test_source_that_is_no_table_of_rows_is_refused(table_of):
    table = table_of(SCHEMA, TARGET)
    with pytest.raises(StatementError):
        table.merge(42, on=["id"]).when_matched().delete().execute()
    assert len(snapshots(table)) == 1


def test_temporary_view_and_sql_query_as_source(table_of, spark):
    table = table_of(SCHEMA, TARGET)
    query = spark.sql(
        "SELECT 2 AS id, 'eu' AS region, -2 AS n, timestamp'2024-01-03 12:00:00' AS ts UNION ALL "
        "SELECT 3, NULL, NULL, timestamp'2024-01-01 12:00:00'"
    )

    table.upsert(query, on=["id"]).execute()

    assert triples(table) == AFTER


def test_streaming_batch_beside_subqueries(table_of, spark, mode, tmp_path):
    """A batch has a session of its own, which must have the views that subqueries need too."""
    table = table_of(SCHEMA, TARGET, mode=mode)
    known = f"(SELECT id FROM {table.name})"
    results = []

    def views(session):
        return {view.name for view in session.catalog.listTables() if view.isTemporary}

    def apply(batch, _number):
        # The session starts with the views of the one that it was made from.
        before = views(batch.sparkSession)
        merge = (
            table.merge(batch, on=["id"])
            .when_matched(F.col("target.id") == batch["id"]).update_all()
            .when_not_matched(f"source.id + 1 NOT IN {known} AND source.id <> 4").insert_all()
        )  # fmt: skip
        assert not batch.isStreaming
        assert batch.sparkSession is not spark
        merge.explain()
        results.append(merge.execute().clauses)
        results.append(views(batch.sparkSession) - before)

    changes = as_arrow([*CHANGES, row(4, "us", 4)])
    spark.createDataFrame(changes).write.json(str(tmp_path / "feed"))
    stream = spark.readStream.schema(spark.createDataFrame(changes).schema)
    running = stream.json(str(tmp_path / "feed")).writeStream.foreachBatch(apply)
    running.trigger(availableNow=True).start().awaitTermination()

    assert results == [(1, 1), set()]
    assert triples(table) == AFTER


def test_source_of_a_statement_that_differs_each_time_is_read_once(table_of, spark):
    """Rows are matched, inserted and counted as of one reading of a random source."""
    table = table_of("id BIGINT, n DOUBLE", [{"id": i, "n": 0.0} for i in range(20)])
    source = spark.range(40).select("id", F.rand().alias("n")).filter("n < 0.5")

    result = table.upsert(source, on=["id"]).execute()

    found = rows(table)
    changed = [r for r in found if r[1] != 0.0]
    assert len(changed) == result.total_affected
    assert len(found) == 20 + result.rows_inserted
    assert all(0 < n < 0.5 for _, n in changed)
    assert len({i for i, _ in found}) == len(found)


def test_wider_and_narrower_types_follow_store_assignment(table_of, spark):
    table = table_of("id BIGINT, n INT, d DECIMAL(10, 2)", [{"id": 1, "n": 1, "d": 1}])
    narrow = spark.createDataFrame([(1, 5, 7), (2, 6, 8)], "id INT, n SMALLINT, d INT")
    table.upsert(narrow, on=["id"]).execute()
    assert [(i, n, int(d)) for i, n, d in rows(table)] == [(1, 5, 7), (2, 6, 8)]

    wide = spark.createDataFrame([(1, 2**40)], "id BIGINT, n BIGINT")
    with pytest.raises(StatementError, match=r"(?i)'n'|out of range"):
        table.merge(wide, on=["id"]).when_matched().update({"n": "source.n"}).execute()
    text = spark.createDataFrame([(1, "x")], "id BIGINT, n STRING")
    with pytest.raises(StatementError, match="'n' expects int but got string"):
        table.merge(text, on=["id"]).when_matched().update({"n": "source.n"}).execute()
    assert [(i, n) for i, n, _ in rows(table)] == [(1, 5), (2, 6)]


def test_source_without_a_column_that_star_needs_is_refused(table_of, spark):
    table = table_of(SCHEMA, TARGET)
    source = spark.createDataFrame([(2, 5)], "id BIGINT, n INT")
    for merge in (
        table.merge(source, on=["id"]).when_matched().update_all(),
        table.merge(source, on=["id"]).when_not_matched().insert_all(),
    ):
        with pytest.raises(SchemaMismatchError, match="lacks 'region', 'ts'"):
            merge.execute()
    table.merge(source, on=["id"]).when_matched().update({"n": "source.n"}).execute()
    assert triples(table) == [(1, "us", 10), (2, "eu", 5)]


LARGE = """
import sys
import icefloe
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for key, value in {
    "spark.driver.memory": "512m",
    "spark.driver.maxResultSize": "8m",  # what may be collected; the source is 400 MB
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
table = icefloe.connect(sys.argv[1], spark=spark).create_table(
    "t", "id BIGINT, text STRING", properties={"write.merge.mode": sys.argv[2]}
)
table.append(spark.range(0, 10_000, 2).selectExpr("id", "'old' AS text"))
source = spark.range(5_000_000).selectExpr("id", "sha2(string(id), 256) AS text")
result = table.upsert(source, on=["id"]).execute()
right = table.scan(where="text = sha2(string(id), 256)").count()
print(result.rows_updated, result.rows_inserted, right, table.count())
"""


@pytest.mark.requirement("M26", "M36")
@pytest.mark.slow
def test_a_source_larger_than_the_drivers_memory(tmp_path, mode):
    """Five million rows with 512 MB for driver and tasks together; 8 MB may be collected."""
    said = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path / "lake"), mode],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert said.stdout.split() == ["5000", "4995000", "5000000", "5000000"], said.stderr[-3000:]


def test_two_pinned_sources_of_one_frame_are_independent(spark):
    """Spark keeps equal plans once: the end of one MERGE must not drop another's source."""
    unstable = F.udf(lambda _: random.random(), "double").asNondeterministic()
    frame = spark.range(3).select("id", unstable("id").alias("r"))
    with pinned_source(frame) as first:
        before = first.frame.collect()
        with pinned_source(frame) as second:
            assert second.frame.count() == 3
        assert first.frame.collect() == before


class FrameThatRecordsItsStorage:
    """Records how it is persisted."""

    def __init__(self, spark):
        self.sparkSession = spark
        self.storage = None

    def persist(self, level):
        size = "spark.sql.inMemoryColumnarStorage.batchSize"
        self.storage = (level.useDisk, level.useMemory, int(self.sparkSession.conf.get(size)))

    def unpersist(self):
        raise ConnectionRefusedError


def test_sources_are_persisted_on_disk_in_small_batches(spark):
    """Else wide ones take the heap that the readers of their files need."""
    size = "spark.sql.inMemoryColumnarStorage.batchSize"
    before = spark.conf.get(size)
    with persisted(FrameThatRecordsItsStorage(spark)) as frame:
        assert frame.storage == (True, False, 500)
    assert spark.conf.get(size) == before != "500"
