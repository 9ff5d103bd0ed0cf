"""MERGE where it is easy to go wrong: shared pins, hidden names, values of rows left alone."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import functions as F

from icefloe.commands.merge.source import persisted, pinned_source
from icefloe.errors import ConflictError, StatementError
from support.tables import rows


def test_a_pin_is_its_own_even_of_the_same_frame(spark):
    """Spark keeps equal plans once: the end of one MERGE must not drop another's source."""
    unstable = F.udf(lambda _: random.random(), "double").asNondeterministic()
    frame = spark.range(3).select("id", unstable("id").alias("r"))
    with pinned_source(frame) as first:
        before = first.collect()
        with pinned_source(frame) as second:
            assert second.count() == 3
        assert first.collect() == before


class Frame:
    """Notes how it is kept."""

    def __init__(self, spark):
        self.sparkSession = spark
        self.found = None

    def persist(self, level):
        size = "spark.sql.inMemoryColumnarStorage.batchSize"
        self.found = (level.useDisk, level.useMemory, int(self.sparkSession.conf.get(size)))

    def unpersist(self):
        raise ConnectionRefusedError


def test_rows_are_kept_on_disk_in_small_batches(spark):
    """Else wide ones take the heap that the readers of their files need."""
    size = "spark.sql.inMemoryColumnarStorage.batchSize"
    before = spark.conf.get(size)
    with persisted(Frame(spark)) as frame:
        assert frame.found == (True, False, 500)
    assert spark.conf.get(size) == before != "500"


def test_a_nested_column_named_like_the_other_side(table_of):
    """A clause that sees one side alone can only mean that side's own column."""
    table = table_of("id INT, source STRUCT<op: STRING>, op STRING", mode="merge-on-read")
    table.append([{"id": 1, "source": {"op": "x"}, "op": "a"}])
    merge = table.merge([{"id": 2, "op": "x"}], on=["id"])

    result = merge.when_not_matched_by_source("source.op = 'a'").delete().execute()
    assert (result.rows_deleted, len(rows(table))) == (0, 1)
    result = merge.when_not_matched_by_source("source.op = 'x'").delete().execute()
    assert (result.rows_deleted, rows(table)) == (1, [])

    other = table_of("id INT")
    source = table._lake.spark.sql("SELECT 3 AS id, named_struct('n', 9) AS target")
    merge = other.merge(source, on=["id"]).when_not_matched("target.n > 5").insert({"id": "id"})
    assert merge.execute().rows_inserted == 1


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_values_are_computed_only_for_rows_of_their_clause(table_of, mode):
    """Rows that a condition leaves alone, or that are deleted, must not fail the statement."""
    table = table_of("id INT, n BIGINT", [{"id": 1, "n": 10}, {"id": 2, "n": 20}], mode=mode)

    divided = table.merge([{"id": 1, "d": 0}, {"id": 2, "d": 2}], on=["id"])
    divided.when_matched("source.d <> 0").update({"n": "target.n div source.d"}).execute()
    assert rows(table) == [(1, 10), (2, 10)]

    table.set_properties({"write.merge.mode": mode})
    narrow = table_of("id INT, n INT", [{"id": 1, "n": 1}, {"id": 2, "n": 2}], mode=mode)
    source = [{"id": 1, "v": 10**12, "op": "D"}, {"id": 2, "v": 7, "op": "U"}]
    (
        narrow.merge(source, on=["id"])
        .when_matched("source.op = 'D'").delete()
        .when_matched().update({"n": "source.v"})
        .execute()
    )  # fmt: skip
    assert rows(narrow) == [(2, 7)]


def test_a_schema_set_back_concurrently_is_a_conflict(table_of, lake):
    """PyIceberg gives an old schema its old id again, so that ids alone tell nothing."""
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    table.rename_column("n", "m")
    lake.before_publish = lambda: table.rename_column("m", "n")
    with pytest.raises(ConflictError, match="schema"):
        table.upsert([{"id": 1, "m": 5, "e": 1}], on=["id"]).with_schema_evolution().execute()

    assert table.schema.names == ["id", "n"]


def test_a_partition_key_with_a_dot_in_its_name_is_merged_on(table_of):
    table = table_of(
        "`a.b` INT, n INT", [{"a.b": 1, "n": 1}, {"a.b": 2, "n": 2}], partition_by=("a.b",)
    )

    result = table.upsert([{"a.b": 1, "n": 10}, {"a.b": None, "n": 0}], on=["a.b"]).execute()

    assert (result.dpp_partition_count, result.files_scanned) == (1, 1)
    assert rows(table) == [(None, 0), (1, 10), (2, 2)]


def test_reserved_names_in_a_source_are_refused(table_of):
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    for name in ("_icefloe_pos", "_icefloe_source_row"):
        with pytest.raises(StatementError, match=name):
            table.merge([{"id": 1, name: 1}], on=["id"]).when_matched().delete().execute()
    assert rows(table) == [(1, 1)]


def test_only_stars_widen_types(table_of):
    """A wider source column of the same name means nothing to `update({"n": "source.x"})`."""
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    source = table._lake.spark.sql("SELECT 1 AS id, 5000000000 AS n, 7 AS x")

    merge = table.merge(source, on=["id"]).when_matched().update({"n": "source.x"})
    merge.with_schema_evolution().execute()

    assert rows(table) == [(1, 7)]
    assert table.schema["n"].dataType.simpleString() == "int"
