"""Merge-on-read UPDATE: tasks read the columns without new values themselves, in large tables."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DoubleType, LongType

from icefloe.commands import row_changes
from icefloe.errors import NullabilityError, StorageError
from icefloe.scan.scan import Scan
from icefloe.writing.rewrite import Rewriter
from support.foreign_files import adopted_file, equality_delete, publish
from support.tables import by_id, data_files, delete_files, rows, snapshots
from support.unreferenced_files import leftovers

SCHEMA = """
    id BIGINT, n INT, s STRING, x DOUBLE, price DECIMAL(12, 2), day DATE, at TIMESTAMP, raw BINARY,
    flag BOOLEAN, inner STRUCT<y: FLOAT, tags: ARRAY<STRING>>, m MAP<STRING, ARRAY<INT>>
"""
ROWS = [
    {
        "id": i,
        "n": i % 7 if i % 5 else None,
        "s": f"name {i % 6}" if i % 4 else None,
        "x": float("inf") if i % 10 == 0 else i / 4,
        "price": Decimal(i) / 100 if i % 3 else None,
        "day": date(2024, 1, 1 + i % 28),
        "at": datetime(2024, 1, 1, i % 24) if i % 6 else None,
        "raw": bytes([i]) * (i % 5),
        "flag": bool(i % 2) if i % 9 else None,
        "inner": {"y": i / 2, "tags": [f"t{i % 3}", None]} if i % 4 else None,
        "m": {"k": [i, None], "l": None} if i % 3 else None,
    }
    for i in range(100)
]
SMALL_GROUPS = {"write.parquet.row-group-limit": "16"}


@pytest.fixture
def made(monkeypatch):
    """Whether tasks made new versions, for each time they were asked to; all tables are large."""
    told = []
    make = Rewriter.new_versions

    def noted(*given):
        told.append(False)
        written = make(*given)
        told[-1] = written is not None
        return written

    monkeypatch.setattr(row_changes, "times_read", lambda *_: 2)
    monkeypatch.setattr(Rewriter, "new_versions", noted)
    return told


@pytest.fixture
def table(table_of):
    return table_of(SCHEMA, ROWS[:50], ROWS[50:], properties=SMALL_GROUPS)


def path_of(live):
    return Path(live.path.removeprefix("file://"))


def holds(path, key):
    return key in pq.read_table(path, columns=["id"]).column("id").to_pylist()


@pytest.mark.requirement("U01", "U09", "T01")
@pytest.mark.parametrize("deleted_before", [False, True])
@pytest.mark.parametrize("mode", ["merge-on-read", "auto"])
def test_rows_are_those_that_spark_makes(table_of, made, mode, deleted_before):
    tables = [table_of(SCHEMA, ROWS[:50], ROWS[50:], properties=SMALL_GROUPS) for _ in range(2)]
    found = []
    for changed, in_tasks in zip(tables, (True, False), strict=True):
        if deleted_before:
            changed.delete().where("id % 13 = 1").execute()
            changed.update().set("n", "77").where("id % 13 = 2").execute()
        made.clear()
        update = changed.update().set("n", "id + 1").set("s", "concat(s, '!')")
        update = update.set("inner", "named_struct('y', CAST(x AS FLOAT), 'tags', array(s, NULL))")
        update = update.set("m", "map(CAST(id AS STRING), array(n), 'k', NULL)").where(
            "id % 10 IN (2, 3)"
        )
        with pytest.MonkeyPatch.context() as patch:
            if not in_tasks:
                patch.setattr(row_changes, "times_read", lambda *_: 1)
            result = update.with_options(mode=mode).execute()
        assert made == ([True] if in_tasks else [])
        assert result.rows_updated == (18 if deleted_before else 20)
        assert bool(delete_files(changed))
        found.append(rows(changed))
    assert found[0] == found[1]
    assert len(found[0]) == (92 if deleted_before else 100)


def damage(path):
    """Spoil the last column of the first row group; gives what the file was before."""
    whole = path.read_bytes()
    footer = pq.read_metadata(path)
    chunk = footer.row_group(0).column(footer.num_columns - 1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    path.write_bytes(whole[:start] + b"\xff" * 8 + whole[start + 8 :])
    return whole


@pytest.mark.requirement("U02")
def test_row_groups_without_changes_are_not_read(table, made):
    (victim,) = [path_of(f) for f in data_files(table) if holds(path_of(f), 20)]
    whole = damage(victim)

    result = table.update().set("n", "-1").where("id BETWEEN 20 AND 24").execute()

    victim.write_bytes(whole)
    assert made == [True]
    assert result.rows_updated == 5
    assert {i for i, row in by_id(table).items() if row[0] == -1} == {20, 21, 22, 23, 24}
    added = [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]
    assert [f.file.record_count for f in added] == [5]


@pytest.mark.requirement("U04")
def test_every_column_has_new_values(table_of, made):
    table = table_of("id BIGINT, n INT", [{"id": i, "n": None} for i in range(9)])

    result = table.update().set("id", "id + 100").set("n", "id").where("id > 3").execute()

    assert (made, result.rows_updated) == ([True], 5)
    assert sorted(rows(table), key=str) == sorted(
        [(i, None) for i in range(4)] + [(i + 100, i) for i in range(4, 9)], key=str
    )


@pytest.mark.requirement("U08")
def test_no_row_matches(table, made):
    before = len(snapshots(table))

    assert table.update().set("n", "1").where("length(s) = 99").execute().rows_updated == 0

    assert made == [True]
    assert len(snapshots(table)) == before
    assert leftovers(table) == set()


def test_rows_of_many_files_become_few(table_of, made):
    table = table_of(SCHEMA, *(ROWS[i : i + 5] for i in range(0, 100, 5)))

    result = table.update().set("n", "coalesce(n, 0) + 50").where("id % 5 = 2").execute()

    assert (made, result.rows_updated) == ([True], 20)
    added = [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]
    assert 1 <= len(added) <= 4
    expected = {i: (ROWS[i]["n"] or 0) + 50 if i % 5 == 2 else ROWS[i]["n"] for i in range(100)}
    assert {i: row[0] for i, row in by_id(table).items()} == expected


def test_columns_that_came_later_were_renamed_promoted_or_dropped(table_of, made, monkeypatch):
    monkeypatch.setattr(Scan, "may_be_declined", False)  # asked of files, not of schemas
    old = [{"id": i, "gone": "x", "f": i / 2, "s": f"s{i}" if i % 3 else None} for i in range(12)]
    table = table_of("id INT, gone STRING, f FLOAT, s STRING", old)
    table.drop_column("gone")
    with table.iceberg.update_schema() as schema:
        schema.update_column("id", LongType())
        schema.update_column("f", DoubleType())
    table.rename_column("s", "t")
    table.add_column("late", "STRUCT<a: INT>")

    result = table.update().set("f", "f + 1").where("id % 4 = 1").execute()

    assert (made, result.rows_updated) == ([True], 3)
    assert by_id(table) == {
        i: (i / 2 + (1 if i % 4 == 1 else 0), f"s{i}" if i % 3 else None, None) for i in range(12)
    }


def test_files_without_field_ids_pass_through_spark_and_nothing_is_left_behind(
    lake, table_of, tmp_path, made, caplog, monkeypatch
):
    table = table_of("id BIGINT, n INT, s STRING", [{"id": 1, "n": 1, "s": "a"}])
    table.set_properties(
        {
            "schema.name-mapping.default": '[{"field-id": 1, "names": ["id"]}, '
            '{"field-id": 2, "names": ["n"]}, {"field-id": 3, "names": ["s"]}]'
        }
    )
    path = Path(tmp_path) / "foreign.parquet"
    old = {"id": [2, 3], "n": pa.array([2, None], pa.int32()), "s": [None, "c"]}
    pq.write_table(pa.table(old), path)
    publish(lake, table, data=[adopted_file(table, path, ())])

    monkeypatch.setattr(Scan, "may_be_declined", False)
    with caplog.at_level("INFO", "icefloe"):
        result = table.update().set("n", "10 * id").where("id < 3").execute()

    assert made == [False]
    assert "pass through Spark: the file has columns without field ids" in caplog.text
    assert result.rows_updated == 2
    assert rows(table) == [(1, 10, "a"), (2, 20, None), (3, None, "c")]
    assert leftovers(table) == set()


def test_u_null_in_a_required_column_changes_nothing(table_of, made):
    table = table_of("id BIGINT NOT NULL, n INT NOT NULL", [{"id": i, "n": i} for i in range(9)])
    before = rows(table)

    with pytest.raises(NullabilityError, match="'n'"):
        table.update().set("n", "nullif(n, 5)").where("id > 2").execute()

    assert made == [False]
    assert rows(table) == before
    assert len(snapshots(table)) == 1
    assert leftovers(table) == set()


def test_a_damaged_file_is_named_and_nothing_is_changed(table, made):
    victim = path_of(data_files(table)[0])
    whole = damage(victim)

    with pytest.raises(StorageError, match=victim.name):
        table.update().set("n", "1").where("id % 2 = 1").execute()

    assert made == [False]
    victim.write_bytes(whole)
    assert len(snapshots(table)) == 2
    assert leftovers(table) == set()


@pytest.mark.parametrize(
    "case",
    [
        "partitioned",
        "other spec",
        "sorted",
        "every row",
        "large files",
        "equality deletes",
        "evolved nested column",
    ],
)
def test_where_spark_reads_the_rows(lake, table_of, made, monkeypatch, case):
    by_flag = {"partition_by": ("flag",)}
    options = {"partitioned": by_flag, "other spec": by_flag, "sorted": {"sort_by": ("day",)}}
    table = table_of(SCHEMA, ROWS, **options.get(case, {}))
    if case == "large files":
        monkeypatch.setattr(row_changes, "_TASK_BYTES", 100)
        monkeypatch.setattr(row_changes, "_MOST_TASKS", 10_000)
    if case == "other spec":
        table.evolve_partitions(())
    if case == "evolved nested column":
        table.add_column("inner.more", "INT")
    if case == "equality deletes":
        publish(lake, table, deletes=[equality_delete(table, [{"id": 99}])])
    update = table.update().set("n", "-5")

    result = (update if case == "every row" else update.where("id % 4 = 1")).execute()

    assert made == []
    assert result.rows_updated == (100 if case == "every row" else 25)
    changed = {i for i, row in by_id(table).items() if row[0] == -5}
    assert changed == {i for i in range(100) if case == "every row" or i % 4 == 1}
