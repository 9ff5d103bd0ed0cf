"""UPDATE in both modes, partitioned and not."""

from __future__ import annotations

from datetime import date, datetime

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from icefloe import Table
from icefloe.errors import StatementError, TypeMismatchError
from icefloe.metadata.files import LiveFile
from icefloe.storage.files import locate
from support.tables import by_id, data_files, delete_files, rows, snapshots, summary

SCHEMA = "id BIGINT, region STRING, name STRING, value INT"
ROWS = [
    {"id": 1, "region": "us", "name": "a", "value": 10},
    {"id": 2, "region": "us", "name": None, "value": 20},
    {"id": 3, "region": "eu", "name": "c", "value": 30},
    {"id": 4, "region": None, "name": "d", "value": None},
    {"id": 5, "region": "eu", "name": "a", "value": 50},
]


@pytest.fixture
def table(table_of, mode, partition_by):
    return table_of(SCHEMA, ROWS[:3], ROWS[3:], mode=mode, partition_by=partition_by)


@pytest.mark.requirement("U01", "U02", "U24")
def test_a_predicate_changes_exactly_its_rows(table):
    result = table.update().set("value", "0").where("id IN (1, 4)").execute()

    assert result.rows_updated == 2
    assert result.total_affected == 2
    assert by_id(table) == {
        1: ("us", "a", 0),
        2: ("us", None, 20),
        3: ("eu", "c", 30),
        4: (None, "d", 0),
        5: ("eu", "a", 50),
    }


@pytest.mark.requirement("U03", "U24")
def test_several_sets_are_one_statement(table):
    before = len(snapshots(table))

    result = table.update().set("value", 7).set("name", "'x'").where("id = 3").execute()

    assert result.rows_updated == 1
    assert by_id(table)[3] == ("eu", "x", 7)
    assert len(snapshots(table)) == before + 1


@pytest.mark.requirement("U04", "U24", "U26")
def test_no_filter_changes_every_row(table):
    result = table.update().set("value", "coalesce(value, 0) + 1").execute()

    assert result.rows_updated == 5
    assert [row[3] for row in rows(table)] == [11, 21, 31, 1, 51]


@pytest.mark.requirement("U05")
def test_explain_names_the_six_stages_in_order(table):
    plan = table.update().set("value", "1").where("id = 1").explain()

    assert plan.stages == ("scan", "filter", "transform", "write", "coalesce", "commit")
    assert "scan -> filter -> transform -> write -> coalesce -> commit" in str(plan)
    assert len(rows(table)) == 5  # nothing was done
    assert plan.mode.value in str(plan)


@pytest.mark.requirement("U06")
def test_only_the_files_of_the_named_partition_are_scanned(table_of, mode, partition_by):
    """Without partitions the bounds of the files tell."""
    regions = [[row for row in ROWS if row["region"] == region] for region in ("us", "eu", None)]
    batches = [ROWS] if partition_by else regions
    table = table_of(SCHEMA, *batches, mode=mode, partition_by=partition_by)
    assert len(data_files(table)) == 3

    result = table.update().set("value", "1").where("region = 'us'").execute()

    assert (result.files_scanned, result.files_skipped) == (1, 2)
    assert result.rows_updated == 2


@pytest.mark.requirement("U07")
def test_rows_are_judged_by_the_full_predicate(table):
    result = table.update().set("value", "99").where("length(name) = 1 AND value > 25").execute()

    assert result.rows_updated == 2
    assert {i for i, row in by_id(table).items() if row[2] == 99} == {3, 5}


@pytest.mark.requirement("U08")
def test_a_null_condition_changes_nothing(table):
    result = table.update().set("value", "1").where("name <> 'a'").execute()

    assert result.rows_updated == 2  # c and d, not the NULL
    assert by_id(table)[2] == ("us", None, 20)


@pytest.mark.requirement("U09")
def test_other_rows_stay_as_they_were(table):
    before = by_id(table)

    table.update().set("name", "'new'").where("id = 5").execute()

    after = by_id(table)
    assert {i: after[i] for i in (1, 2, 3, 4)} == {i: before[i] for i in (1, 2, 3, 4)}


@pytest.mark.requirement("U10", "U11", "U20", "U30", "U36")
def test_updated_rows_are_written_under_the_new_spec_deletes_under_the_old(
    table_of, mode, partition_by
):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    old = table.iceberg.spec().spec_id
    table.evolve_partitions(["bucket(4, id)"])
    table.append([{"id": 6, "region": "us", "name": "f", "value": 60}])

    result = table.update().set("value", "value + 1").where("id IN (1, 3, 6)").execute()

    new = table.iceberg.spec().spec_id
    assert new != old
    added = [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]
    assert {f.spec_id for f in added} == {new}
    assert by_id(table)[1][2] == 11
    assert by_id(table)[6][2] == 61
    assert result.rows_updated == 3
    if mode == "merge-on-read":
        assert {f.spec_id for f in delete_files(table)} == {old}
        partitions = {tuple(f.file.partition) for f in delete_files(table)}
        assert partitions == ({("us",), ("eu",)} if partition_by else {()})
    else:
        assert delete_files(table) == []


@pytest.mark.requirement("U36")
def test_each_spec_gets_a_delete_manifest_of_its_own(table_of):
    table = table_of(SCHEMA, ROWS, partition_by=("region",))
    table.evolve_partitions(["bucket(2, id)"])
    table.append([{**row, "id": row["id"] + 10} for row in ROWS])
    table.evolve_partitions([])
    table.append([{**row, "id": row["id"] + 20} for row in ROWS])

    table.delete().where("name = 'a' AND value = 10").execute()

    manifests = table.iceberg.current_snapshot().manifests(table.iceberg.io)
    specs = {m.partition_spec_id for m in manifests if m.content == 1}
    assert len(specs) == 3
    assert len(rows(table)) == 12


@pytest.mark.requirement("U12")
def test_data_and_deletes_are_one_snapshot(table_of, mode, partition_by):
    """Copy-on-write has a second data manifest instead: that of the file that went."""
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    before = len(snapshots(table))

    table.update().set("value", "1").where("id = 1").execute()

    assert len(snapshots(table)) == before + 1
    newest = table.iceberg.current_snapshot()
    kinds = [
        int(m.content)
        for m in newest.manifests(table.iceberg.io)
        if m.added_snapshot_id == newest.snapshot_id
    ]
    assert sorted(kinds) == ([0, 1] if mode == "merge-on-read" else [0, 0])
    assert summary(table)["operation"] == "overwrite"


@pytest.mark.requirement("U15", "U16")
def test_position_deletes_are_as_the_specification_has_them(table_of, mode, partition_by):
    """Copy-on-write writes none."""
    later = [{**row, "id": row["id"] + 10} for row in ROWS]
    table = table_of(SCHEMA, ROWS, later, mode=mode, partition_by=partition_by)
    expected = sorted(rows(table, "_file", "_pos", where="id IN (1, 3, 11, 15)"))
    positions = sorted(pos for _, pos in expected)  # the first row of a file is position 0
    assert positions == ([0, 0, 0, 1] if partition_by else [0, 0, 2, 4])

    table.update().set("value", "1").where("id IN (1, 3, 11, 15)").execute()

    found = [position_deletes(table, delete) for delete in delete_files(table)]
    assert len(found) == (0 if mode == "copy-on-write" else 2 if partition_by else 1)
    assert all(pairs == sorted(pairs) for pairs in found)
    written = sorted(pair for pairs in found for pair in pairs)
    assert written == (expected if mode == "merge-on-read" else [])


def position_deletes(table: Table, delete: LiveFile) -> list[tuple[str, int]]:
    """The pairs of a position-delete file, whose schema is the specification's."""
    place = locate(table.iceberg.io, delete.path)
    found = pq.ParquetFile(place.filesystem.open_input_file(place.path))
    schema = found.schema_arrow
    ids = [schema.field(i).metadata[b"PARQUET:field_id"] for i in range(2)]
    assert schema.names == ["file_path", "pos"]
    assert ids == [b"2147483546", b"2147483545"]
    assert [str(t) for t in schema.types] == ["string", "int64"]
    assert not any(schema.field(i).nullable for i in range(2))
    return [tuple(row.values()) for row in found.read().to_pylist()]


@pytest.mark.requirement("U17", "U25")
def test_expressions_see_the_row_as_it_was(table_of, mode, partition_by):
    table = table_of(
        "id INT, region STRING, a STRING, b STRING",
        [{"id": 1, "region": "us", "a": "A", "b": "B"}],
        mode=mode,
        partition_by=partition_by,
    )

    table.update().set("a", "b").set("b", "a").execute()

    assert rows(table) == [(1, "us", "B", "A")]


@pytest.mark.requirement("U18", "U25")
def test_setting_a_column_to_itself_counts(table):
    result = table.update().set("value", "value").where("id = 1").execute()

    assert result.rows_updated == 1
    assert by_id(table)[1] == ("us", "a", 10)


@pytest.mark.requirement("U19", "U25")
def test_computed_values(table_of, mode, partition_by):
    three = [{"id": i, "region": "us", "name": "n", "value": i * 10} for i in (1, 2, 3)]
    table = table_of(SCHEMA, three, mode=mode, partition_by=partition_by)

    result = table.update().set("value", F.col("value") + 100).where(F.col("value") > 15).execute()

    assert result.rows_updated == 2
    assert [row[3] for row in rows(table)] == [10, 120, 130]


@pytest.mark.requirement("U23")
def test_target_file_size_bounds_new_files(table_of, mode, partition_by):
    table = table_of(
        "id BIGINT, region STRING, text STRING",
        mode=mode,
        partition_by=partition_by,
        properties={"write.target-file-size-bytes": 65536},
    )
    spark = table._lake.spark
    texts = spark.range(100_000).selectExpr("id", "'us' AS region", "sha2(string(id), 256) AS text")
    table.append(texts.coalesce(1))
    assert all(f.size <= 2 * 65536 for f in data_files(table))

    result = table.update().set("text", "reverse(text)").execute()

    assert result.rows_updated == 100_000
    added = [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]
    assert len(added) > 1
    assert all(f.size <= 2 * 65536 for f in added)
    assert sum(f.rows for f in added) == 100_000


@pytest.mark.requirement("U24", "U37")
def test_empty_table_and_no_match_make_no_snapshot(table_of, mode, partition_by):
    empty = table_of(SCHEMA, mode=mode, partition_by=partition_by)
    result = empty.update().set("value", "1").execute()
    assert (result.rows_updated, result.snapshot_id) == (0, None)
    assert snapshots(empty) == []

    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    before = len(snapshots(table))
    result = table.update().set("value", "1").where("id = 77").execute()
    assert (result.rows_updated, result.snapshot_id) == (0, None)
    assert result.bytes_written == 0
    assert len(snapshots(table)) == before


@pytest.mark.requirement("U26")
def test_years_transform_cross_partition_and_several_files(table_of, mode):
    schema = "id INT, ts TIMESTAMP, n INT"
    stamps = [datetime(2020, 1, 1), datetime(2020, 12, 31, 23), datetime(1969, 5, 5), None]
    first = [{"id": i, "ts": ts, "n": i} for i, ts in enumerate(stamps)]
    second = [{"id": 10 + i, "ts": ts, "n": i} for i, ts in enumerate(stamps)]
    table = table_of(schema, first, second, mode=mode, partition_by=("years(ts)",))
    assert len(data_files(table)) == 6

    result = (
        table.update()
        .set("ts", "ts + INTERVAL 1 YEAR")
        .where("n <= 1 AND ts >= '2020-01-01'")
        .execute()
    )

    assert result.rows_updated == 4
    found = {row[0]: row[1] for row in rows(table)}
    assert found[0] == found[10] == datetime(2021, 1, 1)
    assert found[2] == datetime(1969, 5, 5)
    assert found[3] is None


@pytest.mark.requirement("U38", "D7")
def test_updating_a_partition_column_moves_the_row(table_of, mode, partition_by):
    """Every new file's partition is that of its rows; without partitions it is empty."""
    schema = "id INT, day DATE, name STRING"
    table = table_of(
        schema,
        [{"id": i, "day": date(2024, 1, i), "name": f"n{i}"} for i in (1, 2, 3)],
        mode=mode,
        partition_by=("days(day)", "truncate(1, name)") if partition_by else (),
    )

    result = table.update().set("day", "DATE '2024-02-09'").where("id <> 2").execute()

    assert result.rows_updated == 2
    assert {row[0]: row[1] for row in rows(table)} == {
        1: date(2024, 2, 9),
        2: date(2024, 1, 2),
        3: date(2024, 2, 9),
    }
    days = (date(2024, 2, 9) - date(1970, 1, 1)).days
    added = [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]
    assert {tuple(f.file.partition) for f in added} == {(days, "n") if partition_by else ()}
    assert all(("day_day=2024-02-09" in f.path) == bool(partition_by) for f in added)


@pytest.mark.requirement("U27")
def test_rows_are_found_by_their_new_values(table):
    table.update().set("name", "'zz'").set("value", "-5").where("id = 1").execute()

    assert table.scan(["id"], "name = 'zz' AND value < 0").collect()[0].id == 1
    assert table.scan(["id"], "name = 'a'").collect()[0].id == 5


@pytest.mark.requirement("U29", "T01")
def test_both_modes_give_equal_rows(table_of, partition_by):
    results = {}
    for mode in ("copy-on-write", "merge-on-read", "auto"):
        table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
        result = table.update().set("value", "value * 2").where("id IN (2, 3)").execute()
        assert result.mode == mode
        results[mode] = rows(table)
        assert bool(delete_files(table)) == (mode == "merge-on-read")
    assert len({tuple(found) for found in results.values()}) == 1


@pytest.mark.requirement("U31", "D9")
def test_assignments_follow_ansi_store_assignment(table):
    before = rows(table)
    with pytest.raises(TypeMismatchError, match="'value' expects int but got string") as wrong:
        table.update().set("value", "'x'").execute()
    assert (wrong.value.column, wrong.value.expected, wrong.value.actual) == (
        "value",
        "int",
        "string",
    )
    with pytest.raises(TypeMismatchError, match="out of range"):
        table.update().set("value", "3000000000").where("id = 1").execute()
    with pytest.raises(TypeMismatchError, match="expects int but got decimal"):
        table.update().set("value", "1.5").execute()
    with pytest.raises(StatementError, match="overflow"):
        table.update().set("value", "value + 2147483647").where("id = 1").execute()
    assert rows(table) == before

    assert table.update().set("value", "cast('7' as int)").where("id = 1").execute().rows_updated
    assert table.update().set("name", "value").where("id = 1").execute().rows_updated
    assert table.update().set("id", "value").where("id = 1").execute().rows_updated
    assert by_id(table)[7] == ("us", "7", 7)


@pytest.mark.requirement("U33", "D18")
def test_one_delete_file_per_partition(table_of, mode, partition_by):
    six = [*ROWS, {"id": 6, "region": None, "name": "f", "value": 60}]
    table = table_of(SCHEMA, six, six, mode=mode, partition_by=partition_by)

    result = table.update().set("value", "0").where("id IN (1, 3, 4)").execute()

    assert result.rows_updated == 6
    deletes = delete_files(table)
    expected = [("eu",), ("us",), (None,)] if partition_by else [()]
    partitions = sorted((tuple(f.file.partition) for f in deletes), key=repr)
    assert partitions == (sorted(expected, key=repr) if mode == "merge-on-read" else [])
    assert result.delete_files_added == len(deletes)


@pytest.mark.requirement("U34", "D3", "D4")
def test_merge_on_read_writes_the_updated_rows_only(table_of, mode, partition_by):
    """Copy-on-write writes the other rows of the file too."""
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)

    table.update().set("value", "0").where("id = 3").execute()

    copied = 0 if mode == "merge-on-read" else 1 if partition_by else 4
    facts = summary(table)
    assert facts["added-records"] == str(1 + copied)
    assert facts.get("added-position-deletes") == ("1" if mode == "merge-on-read" else None)
    assert facts["spark.update.num-updated-rows"] == "1"
    assert facts["spark.update.num-copied-rows"] == str(copied)


@pytest.mark.requirement("U39")
def test_repeated_updates_of_a_file_stay_right(table):
    model = {row["id"]: row["value"] for row in ROWS}
    steps = [("id IN (1, 2)", 1), ("id IN (2, 3)", 10), ("id IN (1, 2)", 100), ("id = 5", 1000)]
    for condition, amount in steps:
        table.update().set("value", f"value + {amount}").where(condition).execute()
        named = condition.partition("=")[2] + condition.partition("(")[2]
        model.update({i: v + amount for i, v in model.items() if str(i) in named})
    assert {row[0]: row[3] for row in rows(table)} == model


def test_subqueries_in_conditions_and_assignments(table, lake, spark):
    other = lake.create_table("ns.other", "id BIGINT, bonus INT")
    other.append([{"id": 1, "bonus": 5}, {"id": 3, "bonus": 7}])
    spark.range(3, 6).createOrReplaceTempView("some_ids")

    result = (
        table.update()
        .set("value", "value + (SELECT max(bonus) FROM ns.other)")
        .where("id IN (SELECT id FROM ns.other) OR id IN (SELECT id FROM some_ids WHERE id = 5)")
        .execute()
    )

    assert result.rows_updated == 3
    assert {row[0]: row[3] for row in rows(table)} == {1: 17, 2: 20, 3: 37, 4: None, 5: 57}


def test_a_correlated_subquery_names_the_table(table, lake):
    lake.create_table("bonus", "id BIGINT, amount INT").append([{"id": 1, "amount": 4}])
    name = table.name.rpartition(".")[2]

    exists = f"EXISTS (SELECT 1 FROM bonus WHERE bonus.id = {name}.id)"
    result = table.update().set("value", "-1").where(exists).execute()

    assert result.rows_updated == 1
    assert by_id(table)[1][2] == -1


def test_nested_fields_are_assigned_by_path(table_of, mode):
    table = table_of(
        "id INT, p STRUCT<a: INT, b: STRUCT<c: STRING>>, tags ARRAY<STRING>, m MAP<STRING, INT>",
        [
            {"id": 1, "p": {"a": 1, "b": {"c": "x"}}, "tags": ["a", None], "m": [("k", 1)]},
            {"id": 2, "p": None, "tags": None, "m": None},
            {"id": 3, "p": {"a": 3, "b": None}, "tags": [], "m": []},
        ],
        mode=mode,
    )

    table.update().set("p.a", "p.a + 1").set("p.b.c", "'y'").where("id <> 2").execute()
    table.update().set("tags", "array('n')").set("m", "map('z', 9)").where("id = 3").execute()

    found = {row.id: row.asDict(recursive=True) for row in table.scan().collect()}
    assert found[1]["p"] == {"a": 2, "b": {"c": "y"}}
    assert found[1]["tags"] == ["a", None]
    assert found[1]["m"] == {"k": 1}
    assert found[2] == {"id": 2, "p": None, "tags": None, "m": None}
    assert found[3] == {"id": 3, "p": {"a": 4, "b": {"c": "y"}}, "tags": ["n"], "m": {"z": 9}}


@pytest.mark.requirement("U26")
@pytest.mark.parametrize(
    ("schema", "name", "value"),
    [
        ("`a.b` INT, n INT", "a.b", 1),
        ("s STRUCT<b: INT>, n INT", "s", {"b": 1}),
    ],
    ids=["a dot in the name", "in a struct"],
)
def test_rows_follow_their_partition_whatever_its_column_is_called(
    table_of, mode, schema, name, value
):
    """A new value of the source column moves the row, in copy-on-write as well."""
    field = name if name == "a.b" else "s.b"
    table = table_of(
        schema, [{name: value, "n": i} for i in range(3)], mode=mode, partition_by=(field,)
    )
    quoted = f"`{name}`" if name == "a.b" else field

    result = table.update().set(field, "7").where("n = 1").execute()

    assert result.rows_updated == 1
    assert sorted(row["n"] for row in table.scan(where=f"{quoted} = 7").collect()) == [1]
    assert sorted(row["n"] for row in table.scan(where=f"{quoted} = 1").collect()) == [0, 2]
    partitions = {tuple(file.file.partition[i] for i in range(1)) for file in data_files(table)}
    assert partitions == {(1,), (7,)}


@pytest.mark.requirement("U26")
def test_a_sort_order_ends_with_new_values_of_its_column_whatever_it_is_called(table_of):
    """A rewritten file that is no longer sorted must not say so."""
    table = table_of(
        "`a.b` INT, n INT",
        [{"a.b": i, "n": i} for i in range(6)],
        mode="copy-on-write",
        sort_by=("a.b",),
    )
    (before,) = data_files(table)
    assert before.file.sort_order_id

    table.update().set("n", "0").where("n = 1").execute()
    (kept,) = data_files(table)
    table.update().set("a.b", "100").where("n = 2").execute()
    (broken,) = data_files(table)

    assert kept.file.sort_order_id == before.file.sort_order_id
    assert not broken.file.sort_order_id
    assert sorted(rows(table)) == [(0, 0), (1, 0), (3, 3), (4, 4), (5, 5), (100, 2)]
