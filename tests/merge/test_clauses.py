"""What each clause of a MERGE does to which row."""

from __future__ import annotations

from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from support.merge_rows import SCHEMA, row, triples
from support.tables import data_files, delete_files, rows, snapshots, summary
from support.unreferenced_files import leftovers

TARGET = [row(1, "us", 10), row(2, "eu", 20), row(4, None, None), row(5, "us", 50)]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, TARGET, mode=mode, partition_by=partition_by)


@pytest.mark.requirement("M01", "M04", "M05", "M07", "M09", "M13", "M31")
def test_changes_of_all_kinds_are_one_snapshot(table, mode):
    """The CDC example: I, U and D rows, and what the source does not have any more."""
    changes = [
        row(1, "us", 11, op="U"),
        row(2, "eu", 0, op="D"),
        row(3, "ap", 30, op="I"),
        row(6, "us", 60, op="D"),  # not there: neither deleted nor inserted
    ]
    before = len(snapshots(table))

    result = (
        table.merge(changes, on="target.id = source.id")
        .when_matched("source.op = 'D'").delete()
        .when_matched().update({"n": "source.n + target.n", "region": "source.region"})
        .when_not_matched("source.op <> 'D'").insert_all()
        .when_not_matched_by_source("target.n IS NULL").update({"n": "-target.id"})
        .when_not_matched_by_source("target.n > 49").delete()
        .execute()
    )  # fmt: skip

    assert triples(table) == [(1, "us", 21), (3, "ap", 30), (4, None, -4)]
    assert result.clauses == (1, 1, 1, 1, 1)
    assert (result.rows_inserted, result.rows_updated, result.rows_deleted) == (1, 2, 2)
    assert (result.total_affected, result.operation, result.mode) == (5, "merge", mode)
    assert result.total_rows_written == 3 + result.rows_copied
    assert result.rows_copied == 0  # every row of the table was changed
    assert len(snapshots(table)) == before + 1
    assert result.snapshot_id == table.snapshot_id
    assert summary(table)["operation"] == "overwrite"
    assert leftovers(table) == set()


@pytest.mark.requirement("M05", "M06", "M08")
def test_only_the_first_true_clause_applies_and_null_is_not_true(table):
    """Rows for which no clause is true stay, or are not inserted."""
    source = [row(1, "us", None), row(2, "eu", 5), row(5, "us", 7), row(7, "x", None), row(8)]

    result = (
        table.merge(source, on=["id"])
        .when_matched("source.n > 5").update({"n": "1000"})
        .when_matched("source.n > 1").update({"n": "2000"})
        .when_matched("source.n > 0").delete()
        .when_not_matched("source.n = NULL").insert_all()
        .when_not_matched("source.n >= 0").insert({"id": "source.id", "n": 3, "ts": "source.ts"})
        .when_not_matched_by_source("target.n > 0").delete()
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1, 0, 0, 1, 0)
    assert triples(table) == [
        (1, "us", 10), (2, "eu", 2000), (4, None, None), (5, "us", 1000), (8, None, 3)
    ]  # fmt: skip


@pytest.mark.requirement("M08", "D17")
def test_merge_that_changes_nothing_makes_no_snapshot_and_no_file(table):
    before, files = table.snapshot_id, data_files(table)

    result = (
        table.merge([row(1, "us", 1), row(9)], on=["id"])
        .when_matched("source.n > 100").delete()
        .when_not_matched("source.n > 100").insert_all()
        .when_not_matched_by_source("target.n > 100").update({"n": "0"})
        .execute()
    )  # fmt: skip

    assert (result.snapshot_id, result.total_affected, result.bytes_written) == (None, 0, 0)
    assert (result.clauses, result.rows_copied) == ((0, 0, 0), 0)
    assert (result.data_files_added, result.data_files_removed, result.delete_files_added) == (
        0,
    ) * 3
    assert table.snapshot_id == before
    assert data_files(table) == files
    assert leftovers(table) == set()


@pytest.mark.requirement("M11")
def test_star_is_every_column_by_name_and_ignores_others(table_of, mode, partition_by):
    """Both forms equal the explicit map; a row set to what it is counts as updated."""
    columns = ("id", "region", "n", "ts")
    source = [
        {"extra": 1, "TS": r["ts"], "n": r["n"], "Region": r["region"], "id": r["id"]}
        for r in (row(1, "us", 10), row(2, "ap", None), row(9, None, 90))
    ]
    given = {name: f"source.{name}" for name in columns}
    found = []
    for explicit in (True, False):
        table = table_of(SCHEMA, TARGET, mode=mode, partition_by=partition_by)
        merge = table.merge(source, on="target.id = source.id")
        if explicit:
            merge = merge.when_matched().update(given).when_not_matched().insert(given)
        else:
            merge = merge.when_matched().update_all().when_not_matched().insert_all()
        result = merge.execute()
        assert (result.rows_updated, result.rows_inserted, result.clauses) == (2, 1, (2, 1))
        found.append(triples(table))
    assert found[0] == found[1]
    assert found[0] == [
        (1, "us", 10), (2, "ap", None), (4, None, None), (5, "us", 50), (9, None, 90)
    ]  # fmt: skip


def test_upsert_is_update_all_and_insert_all(table):
    result = table.upsert([row(5, "eu", 51), row(6, "eu", 60)], on=["id"]).execute()

    assert (result.clauses, result.operation) == ((1, 1), "merge")
    assert triples(table)[-2:] == [(5, "eu", 51), (6, "eu", 60)]
    assert len(triples(table)) == 5


@pytest.mark.requirement("M10")
def test_columns_and_python_values_and_own_aliases(table):
    """Expressions may be Columns; a plain value that is no str is a literal."""
    source = table._lake.spark.createDataFrame([(1, 7), (9, 9)], "key INT, m INT")

    result = (
        table.merge(source, F.col("s.key") == F.col("t.id"), target_alias="t", source_alias="s")
        .when_matched(F.col("s.m") > F.lit(5)).update({"n": F.col("t.n") * F.col("s.m")})
        .when_not_matched().insert({"id": F.col("s.key"), "n": 1, "ts": F.lit(row(9)["ts"])})
        .when_not_matched_by_source(F.col("t.n") == 50).update({"n": None})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1, 1)
    assert triples(table) == [
        (1, "us", 70), (2, "eu", 20), (4, None, None), (5, "us", None), (9, None, 1)
    ]  # fmt: skip


@pytest.mark.requirement("D7")
def test_updating_a_partition_column_moves_the_row(table, mode):
    result = (
        table.merge([row(1, "ap", 1), row(2, "us", 2)], on=["id"])
        .when_matched().update({"region": "source.region"})
        .execute()
    )  # fmt: skip

    assert result.rows_updated == 2
    assert triples(table) == [(1, "ap", 10), (2, "us", 20), (4, None, None), (5, "us", 50)]
    spec = table.iceberg.spec()
    if [field.name for field in spec.fields] == ["region"]:
        new = [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]
        places = [(f.file.partition[0], f.rows) for f in new]
        expected = [("ap", 1), ("us", 1)] if mode == "merge-on-read" else [("ap", 1), ("us", 2)]
        # In copy-on-write row 5 comes along with the row that it shared a file with.
        merged = {place: sum(n for p, n in places if p == place) for place, _ in places}
        assert sorted(merged.items()) == expected


@pytest.mark.requirement("M14", "M28", "M35", "D4")
def test_counts_are_measured(table_of, mode, partition_by):
    """One row of ten: nine are copied in copy-on-write, none in merge-on-read."""
    ten = [row(3 * i, "us", i) for i in range(10)]
    table = table_of(SCHEMA, ten, mode=mode, partition_by=partition_by)
    held = {f.path: f for f in data_files(table)}
    file = table.scan(["_file"], "id = 9").collect()[0][0]
    others = held[file].rows - 1

    result = table.merge([row(9, "us", -9)], on=["id"]).when_matched().update_all().execute()

    cow = mode == "copy-on-write"
    assert triples(table) == [(3 * i, "us", -9 if i == 3 else i) for i in range(10)]
    assert (result.rows_updated, result.rows_copied) == (1, others if cow else 0)
    assert result.total_rows_written == (others + 1 if cow else 1)
    assert (result.data_files_added, result.data_files_removed) == (1, 1 if cow else 0)
    assert result.delete_files_added == len(delete_files(table)) == (0 if cow else 1)
    live = {f.path: f for f in data_files(table)}
    assert set(held) - set(live) == ({file} if cow else set())
    (new,) = set(live) - set(held)
    assert live[new].rows == (others + 1 if cow else 1)
    written = [live[new].size, *(f.size for f in delete_files(table))]
    assert result.bytes_written == sum(written)
    if not partition_by:
        assert others == 9


@pytest.mark.requirement("X08")
def test_the_result_is_in_the_snapshot_summary(table, mode):
    """Under our names, and under those of Iceberg's Spark runtime."""
    result = (
        table.merge([row(1, "us", 11), row(2, "eu", 0), row(3, "ap", 30)], on=["id"])
        .when_matched("source.n = 0").delete()
        .when_matched().update_all()
        .when_not_matched().insert_all()
        .when_not_matched_by_source("target.id = 4").delete()
        .when_not_matched_by_source().update({"n": "0"})
        .with_options(summary={"job": "nightly"})
        .execute()
    )  # fmt: skip

    told = summary(table)
    spark = {
        k[33:]: v for k, v in told.items() if k.startswith("spark.merge-into.num-target-rows-")
    }
    assert spark == {
        "copied": "0",
        "deleted": "2",
        "updated": "2",
        "inserted": "1",
        "matched-updated": "1",
        "matched-deleted": "1",
        "not-matched-by-source-updated": "1",
        "not-matched-by-source-deleted": "1",
    }
    ours = {
        "operation": "merge",
        "mode": mode,
        "rows-inserted": "1",
        "rows-updated": "2",
        "rows-deleted": "2",
        "clauses": "1,1,1,1,1",
        "dpp-applied": "False",
        "files-scanned": str(result.files_scanned),
        "bytes-written": str(result.bytes_written),
    }
    assert {key: told[f"icefloe.{key}"] for key in ours} == ours
    assert told["job"] == "nightly"


def test_struct_fields_are_assigned_by_path(table_of, mode):
    """A struct that is NULL becomes one whose other fields are NULL, as in UPDATE."""
    schema = "id INT, place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>"
    one = {"id": 1, "place": {"city": "a", "zip": 1}, "tags": ["x", None]}
    table = table_of(schema, [one, {**one, "id": 2, "place": None}], mode=mode)
    source = [{"id": 1, "city": "b"}, {"id": 2, "city": "c"}, {"id": 3, "city": "d"}]

    (
        table.merge(source, on=["id"])
        .when_matched().update({"place.city": "concat(target.place.city, source.city)"})
        .when_not_matched().insert({"id": "id", "tags": "array(city)"})
        .execute()
    )  # fmt: skip

    assert [tuple(r) for r in table.scan().orderBy("id").collect()] == [
        (1, ("ab", 1), ["x", None]),
        (2, (None, None), ["x", None]),
        (3, None, ["d"]),
    ]


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_maps_pass_through(table_of, mode):
    """NULL, empty and full ones, old and new."""
    maps = [{"k": 1}, None, {}, {"x": None, "y": 2}]
    table = table_of("id INT, m MAP<STRING, INT>", mode=mode)
    table.append([{"id": i, "m": m} for i, m in enumerate(maps)])

    (
        table.merge([{"id": i, "v": i} for i in (0, 1, 7)], on=["id"])
        .when_matched().update({"id": "target.id + 10"})
        .when_not_matched().insert({"id": "source.id"})
        .execute()
    )  # fmt: skip
    table.upsert([{"id": 3, "m": None}, {"id": 8, "m": {"new": 8}}], on=["id"]).execute()
    (
        table.merge([{"id": 2, "m": {"z": 1}}, {"id": 10, "m": {}}, {"id": 9, "m": None}], on=["id"])
        .when_matched("source.id = 2").delete()
        .when_matched().update({"m": "map_concat(target.m, map('q', 5))"})
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip

    assert [tuple(r) for r in table.scan().orderBy("id").collect()] == [
        (3, None), (7, None), (8, {"new": 8}), (9, None), (10, {"k": 1, "q": 5}), (11, None)
    ]  # fmt: skip


def test_bare_names_mean_the_side_that_a_clause_sees(table):
    result = (
        table.merge([row(1, "us", 1), row(6, "us", 60)], on=["id"])
        .when_not_matched("n > 50").insert({"id": "id", "n": "n + 1", "ts": "ts"})
        .when_not_matched_by_source("n = 20").update({"n": "n + id"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1)
    assert triples(table) == [
        (1, "us", 10), (2, "eu", 22), (4, None, None), (5, "us", 50), (6, None, 61)
    ]  # fmt: skip


def test_repeated_merges_of_the_same_rows_stay_right(table):
    """Rows 1 and 5 are changed again and again, over their own deletes."""
    for turn in range(3):
        result = table.upsert([row(1, "us", turn), row(5, "eu", turn)], on=["id"]).execute()
        assert (result.rows_updated, result.rows_inserted) == (2, 0)
    table.merge([row(1)], on=["id"]).when_matched().delete().execute()
    result = table.upsert([row(1, "eu", 7)], on=["id"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (0, 1)
    assert triples(table) == [(1, "eu", 7), (2, "eu", 20), (4, None, None), (5, "eu", 2)]
    assert len(rows(table)) == 4


@pytest.mark.requirement("M23")
def test_deletes_name_file_and_position_of_the_original_rows(table_of, mode, partition_by):
    """Rows 1 and 4 lie in files of their own batch; no other file is named or touched."""
    batches = [[row(i, "us", i) for i in (0, 1, 2)], [row(i, "us", i) for i in (6, 4, 5)], [row(9)]]
    table = table_of(SCHEMA, *batches, mode=mode, partition_by=partition_by)
    expected = sorted(rows(table, "_file", "_pos", where="id IN (1, 4)"))
    sizes = {f.path: f.rows for f in data_files(table)}
    before, touched = set(sizes), {path for path, _ in expected}

    result = (
        table.merge([row(1, "us", 0), row(4, "us", 40), row(7, "us", 70)], on=["id"])
        .when_matched("source.n = 0").delete()
        .when_matched().update({"n": "source.n"})
        .execute()
    )  # fmt: skip

    assert result.clauses == (1, 1)
    assert triples(table) == [
        (0, "us", 0), (2, "us", 2), (4, "us", 40), (5, "us", 5), (6, "us", 6), (9, "us", 0)
    ]  # fmt: skip
    assert before - touched <= {f.path for f in data_files(table)}
    written = [
        (entry["file_path"], entry["pos"])
        for file in delete_files(table)
        for entry in pq.read_table(unquote(urlparse(file.path).path)).to_pylist()
    ]
    gone = before - {f.path for f in data_files(table)}
    assert sorted(written) == [pair for pair in expected if pair[0] not in gone]
    # A file whose only row goes is removed in either mode (D15).
    single = {f for f in touched if sizes[f] == 1}
    assert gone == (touched if mode == "copy-on-write" else single)


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
