"""Copy-on-write and merge-on-read."""

from __future__ import annotations

import pytest
from pyiceberg.manifest import ManifestContent

from icefloe import Table
from icefloe.builders import Update
from icefloe.commands import row_changes
from icefloe.errors import StatementError, StorageError, UnsupportedTableError
from icefloe.metadata.files import LiveFile
from icefloe.settings import Settings, UpdateKind, UpdateMode
from support.tables import data_files, delete_files, live_files, rows, snapshots, summary

pytestmark = pytest.mark.requirement("T28")

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 7)]


@pytest.mark.requirement("T01", "U29", "D1")
@pytest.mark.parametrize("kind", ["delete", "update"])
def test_every_kind_in_every_mode_gives_the_same_rows(table_of, kind, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    before = rows(table)

    if kind == "delete":
        table.delete().where("id = 2").execute()
    else:
        table.update().set("n", "n + 1").where("id = 2").execute()

    changed = [] if kind == "delete" else [(2, "eu", 3)]
    assert rows(table) == [before[0], *changed, *before[2:]]
    assert bool(delete_files(table)) == (mode == "merge-on-read")


@pytest.mark.requirement("T02", "T03", "T04", "D2")
def test_merge_on_read_is_the_default_and_is_written(lake, partition_by):
    table = lake.create_table("t", SCHEMA, partition_by=partition_by)
    table.append(ROWS)

    modes = {k: v for k, v in table.properties.items() if k.endswith(".mode")}
    assert modes == dict.fromkeys(
        ("write.delete.mode", "write.update.mode", "write.merge.mode"), "merge-on-read"
    )
    assert table.delete().where("id = 1").execute().mode == "merge-on-read"
    assert len(delete_files(table)) == 1
    assert table.update().set("n", "0").where("id = 2").execute().mode == "merge-on-read"
    assert len(delete_files(table)) == 2


@pytest.mark.requirement("T01")
@pytest.mark.parametrize("mode", ["merge-on-read", "auto"])
@pytest.mark.parametrize("is_large", [False, True], ids=["written where read", "brought together"])
def test_updated_rows_of_many_files_become_few_files(
    table_of, mode, is_large, partition_by, monkeypatch
):
    """A large scan's rows pass a shuffle; both ways leave the same rows in few new files."""
    if is_large:
        monkeypatch.setattr(row_changes, "_TASK_BYTES", 1)
    batches = [[{"id": 2 * i, "region": None, "n": i}, {"id": 2 * i + 1}] for i in range(8)]
    table = table_of(
        SCHEMA,
        *batches,
        partition_by=partition_by,
        properties={"icefloe.auto.rewrite-fraction": "0.6"},  # of each file's rows, half change
    )
    table.delete().where("id = 3").execute()
    before = {file.path for file in data_files(table)}

    update = table.update().set("n", "coalesce(n, 0) + 100").where("id % 2 = 1")
    result = update.with_options(mode=mode).execute()

    assert result.rows_updated == 7
    expected = [(2 * i, None, i) for i in range(8)]
    expected += [(2 * i + 1, None, 100) for i in range(8) if i != 1]
    assert sorted(rows(table)) == sorted(expected)
    added = [file for file in data_files(table) if file.path not in before]
    assert 1 <= len(added) <= 4


@pytest.mark.requirement("D2")
def test_a_table_without_properties_gets_the_same_default(lake):
    lake.create_namespace("ns")
    lake.catalog.create_table("ns.plain", lake.create_table("t", SCHEMA).iceberg.schema())
    table = lake.table("ns.plain")
    table.append(ROWS)

    result = table.delete().where("id = 1").execute()

    assert result.mode == "merge-on-read"
    assert len(delete_files(table)) == 1
    assert "merge-on-read: default" in str(table.delete().where("id = 2").explain())


@pytest.mark.requirement("T05")
def test_modes_are_set_at_creation_and_later_several_at_once(lake):
    table = lake.create_table("t", SCHEMA, properties={"write.delete.mode": "copy-on-write"})
    assert table.properties["write.delete.mode"] == "copy-on-write"

    table.set_properties({"write.delete.mode": "merge-on-read", "write.update.mode": "auto"})
    assert table.properties["write.delete.mode"] == "merge-on-read"
    assert table.properties["write.update.mode"] == "auto"

    table.set_properties({"write.delete.mode": "copy-on-write"})
    assert table.properties["write.delete.mode"] == "copy-on-write"


@pytest.mark.requirement("T06")
@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("merge-on-read", UpdateMode.MERGE_ON_READ),
        ("MERGE_ON_READ", UpdateMode.MERGE_ON_READ),
        ("copy-on-write", UpdateMode.COPY_ON_WRITE),
        ("COPY_ON_WRITE", UpdateMode.COPY_ON_WRITE),
        ("auto", UpdateMode.AUTO),
        ("AUTO", UpdateMode.AUTO),
    ],
)
def test_spellings_of_modes(text, mode):
    assert UpdateMode.parse(text) is mode


@pytest.mark.requirement("T06")
@pytest.mark.parametrize("text", ["", "cow", "Merge-On-Read", "merge on read", "1"])
def test_other_spellings_are_refused(text):
    with pytest.raises(StatementError, match="Unknown write mode"):
        UpdateMode.parse(text)


@pytest.mark.requirement("T06")
def test_upper_snake_is_stored_in_icebergs_spelling(lake):
    table = lake.create_table("t", SCHEMA, properties={"write.delete.mode": "COPY_ON_WRITE"})
    assert table.properties["write.delete.mode"] == "copy-on-write"
    with pytest.raises(
        StatementError, match=r"'sometimes' for table property 'write\.update\.mode'"
    ):
        table.set_properties({"write.update.mode": "sometimes"})


@pytest.mark.requirement("T07")
def test_enums_have_their_members():
    assert {m.name for m in UpdateMode} >= {"MERGE_ON_READ", "COPY_ON_WRITE"}
    assert {k.name for k in UpdateKind} == {"DELETE", "UPDATE", "MERGE"}


@pytest.mark.requirement("T08", "T41")
def test_each_kind_of_statement_has_its_own_mode(table_of, mode, partition_by):
    other = "copy-on-write" if mode == "merge-on-read" else "merge-on-read"
    table = table_of(
        SCHEMA,
        ROWS,
        partition_by=partition_by,
        properties={"write.delete.mode": other, "write.update.mode": mode},
    )

    assert table.update().set("n", "0").where("id = 1").execute().mode == mode
    assert len(delete_files(table)) == (1 if mode == "merge-on-read" else 0)
    assert table.delete().where("id = 3").execute().mode == other
    assert len(delete_files(table)) == (1 if other == "merge-on-read" else 0)
    plan = str(table.update().set("n", "0").explain())
    assert f"{mode}: table property write.update.mode" in plan
    assert "option" in str(table.delete().with_options(mode="auto").explain())


@pytest.mark.requirement("T10")
def test_settings_keep_a_mode_for_merge():
    settings = Settings.of({"write.delete.mode": "copy-on-write"})
    assert settings.mode(UpdateKind.MERGE) is UpdateMode.MERGE_ON_READ
    assert settings.mode(UpdateKind.DELETE) is UpdateMode.COPY_ON_WRITE


@pytest.mark.requirement("T11", "T14", "T15")
def test_a_rewritten_file_keeps_its_other_rows_and_its_partition(table_of, mode, partition_by):
    """Merge-on-read keeps the file, and the changed row is in the same partition."""
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    before = {f.path: f for f in data_files(table)}
    ((changed,),) = rows(table, "_file", where="id = 3")
    others, commits = rows(table, where="id <> 3"), len(snapshots(table))

    result = table.update().set("n", "100").where("id = 3").execute()

    after = {f.path: f for f in data_files(table)}
    (new,) = after.keys() - before.keys()
    assert before.keys() - after.keys() == ({changed} if mode == "copy-on-write" else set())
    assert before[changed].partition_key == after[new].partition_key
    copied = before[changed].rows - 1 if mode == "copy-on-write" else 0
    assert result.rows_copied == after[new].rows - 1 == copied
    assert after[new].file.value_counts[1] == after[new].rows
    written = result.bytes_copied + result.bytes_encoded
    assert written == (after[new].size if mode == "copy-on-write" else 0)
    assert (result.bytes_copied > 0) == (mode == "copy-on-write")
    assert rows(table, where="id <> 3") == others
    assert rows(table, where="id = 3") == [(3, "us", 100)]
    assert len(snapshots(table)) == commits + 1


@pytest.mark.requirement("T12", "T26")
def test_manifests_without_a_target_are_not_rewritten(table_of, mode, partition_by):
    """Without partitions, nothing tells what is in a manifest before it is read."""
    table = table_of(SCHEMA, mode=mode, partition_by=partition_by)
    for region in "abcdef":
        table.append([{"id": 1, "region": region, "n": 1}, {"id": 2, "region": region, "n": 2}])
    io = table.iceberg.io
    before = {m.manifest_path for m in table.iceberg.current_snapshot().manifests(io)}

    builder = table.delete().where("region = 'c' AND id = 1")
    plan = builder.explain()
    builder.execute()

    assert (plan.manifests_read, plan.manifests_skipped) == ((1, 5) if partition_by else (6, 0))
    after = {
        m.manifest_path
        for m in table.iceberg.current_snapshot().manifests(io)
        if m.content == ManifestContent.DATA
    }
    assert len(before & after) == (6 if mode == "merge-on-read" else 5)


@pytest.mark.requirement("T21", "X07")
def test_old_snapshots_keep_their_rows(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    first = table.snapshot_id
    table.delete().where("id < 4").execute()
    second = table.snapshot_id
    table.update().set("n", "-1").execute()

    assert len(rows(table, snapshot_id=first)) == 6
    assert [row[2] for row in rows(table, snapshot_id=second)] == [4, 5, 6]
    assert [row[2] for row in rows(table)] == [-1, -1, -1]


@pytest.mark.requirement("T22")
def test_empty_tables_are_left_alone(table_of, mode, partition_by):
    table = table_of(SCHEMA, mode=mode, partition_by=partition_by)

    assert table.delete().execute().rows_deleted == 0
    assert table.update().set("n", "1").execute().rows_updated == 0
    assert table.truncate().rows_deleted == 0
    assert table.append([]).rows_inserted == 0
    assert snapshots(table) == []
    assert rows(table) == []


@pytest.mark.requirement("T24", "U21", "D10")
def test_version_1_takes_copy_on_write_only(table_of, partition_by):
    table = table_of(SCHEMA, ROWS, format_version=1, partition_by=partition_by)
    before = rows(table)
    for builder in (table.delete().where("id = 1"), table.update().set("n", "0")):
        with pytest.raises(UnsupportedTableError, match="requires format version 2"):
            builder.execute()
    assert rows(table) == before

    cow = {"mode": "copy-on-write"}
    assert table.delete().where("id = 1").with_options(**cow).execute().rows_deleted == 1
    assert table.update().set("n", "0").with_options(**cow).execute().rows_updated == 5
    assert [row[2] for row in rows(table)] == [0] * 5

    table.set_properties({"format-version": "2"})
    assert table.format_version == 2
    assert table.delete().where("id = 2").execute().mode == "merge-on-read"
    assert len(rows(table)) == 4


@pytest.mark.requirement("T25")
def test_a_missing_data_file_is_reported_with_its_path(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    ((file,),) = rows(table, "_file", where="id = 1")
    table.iceberg.io.delete(file)
    before = table.snapshot_id

    for builder in (table.delete().where("n = 1"), table.update().set("n", "1")):
        with pytest.raises(StorageError, match=file.rpartition("/")[2]):
            builder.execute()
    with pytest.raises(StorageError, match=file.rpartition("/")[2]):
        table.scan().collect()
    assert table.snapshot_id == before


@pytest.mark.requirement("T25")
def test_a_missing_delete_file_is_reported_with_its_path(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    table.delete().where("id = 1").with_options(mode="merge-on-read").execute()
    (file,) = delete_files(table)
    table.iceberg.io.delete(file.path)

    with pytest.raises(StorageError, match=file.path.rpartition("/")[2]):
        table.scan()
    with pytest.raises(StorageError, match=file.path.rpartition("/")[2]):
        table.delete().where("id = 3").execute()


@pytest.mark.requirement("T27", "M28")
def test_the_result_has_the_write_amplification(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)

    result = table.update().set("n", "0").where("id = 1").execute()

    written = 1 if mode == "merge-on-read" else 3 if partition_by else 6
    assert result.total_rows_written == written
    assert result.write_amplification == float(written)
    added = [f for f in live_files(table) if f.snapshot_id == result.snapshot_id]
    assert result.bytes_written == sum(f.size for f in added)


@pytest.mark.requirement("T42")
def test_rewritten_files_keep_sort_order_split_offsets_and_metrics(table_of, mode, partition_by):
    """Merge-on-read: the file of the changed row alone has them."""
    table = table_of(SCHEMA, mode=mode, partition_by=partition_by, sort_by=["id"])
    table.append(list(reversed(ROWS)))
    order = table.iceberg.metadata.default_sort_order_id
    assert order != 0
    assert {f.file.sort_order_id for f in data_files(table)} == {order}
    by_file = [[1, 3, 5], [2, 4, 6]] if partition_by else [[1, 2, 3, 4, 5, 6]]
    assert sorted(ids_by_file(table).values()) == by_file

    (after,) = changed_files(table, table.update().set("n", "NULL").where("id = 2"))

    count = 1 if mode == "merge-on-read" else 3 if partition_by else 6
    whole = mode == "copy-on-write" and not partition_by
    assert after.file.sort_order_id == order
    assert after.file.split_offsets == [4]
    assert after.file.null_value_counts == {1: 0, 2: 0, 3: 1}
    assert after.file.value_counts == {1: count, 2: count, 3: count}
    assert after.file.lower_bounds[1] == (1 if whole else 2).to_bytes(8, "little")
    assert after.file.upper_bounds[2] == (b"us" if whole else b"eu")
    least = {1: None, 3: (4).to_bytes(4, "little"), 6: (1).to_bytes(4, "little")}[count]
    assert after.file.lower_bounds.get(3) == least

    written = changed_files(table, table.update().set("id", "7 - id").where("region = 'eu'"))

    sorted_anew = mode == "merge-on-read"  # a rewrite leaves rows where they are, and says so
    # Without partitions the task that reads a file writes its new rows: row 2 is in another file.
    assert len(written) == (2 if sorted_anew and not partition_by else 1)
    for after in written:
        ids = ids_by_file(table)[after.path]
        assert (ids == sorted(ids)) == sorted_anew
        assert after.file.sort_order_id == (order if sorted_anew else 0)


def ids_by_file(table: Table) -> dict[str, list[int]]:
    """The live ids of each file, in the file's order."""
    found: dict[str, list[int]] = {}
    for path, _, number in sorted(rows(table, "_file", "_pos", "id")):
        found.setdefault(path, []).append(number)
    return found


def changed_files(table: Table, statement: Update) -> list[LiveFile]:
    """The data files that a statement wrote."""
    result = statement.execute()
    return [f for f in data_files(table) if f.snapshot_id == result.snapshot_id]


def test_summary_totals_are_true_after_every_statement(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, ROWS, mode=mode, partition_by=partition_by)
    statements = [
        table.delete().where("id = 1"),
        table.update().set("n", "n + 1").where("id IN (2, 3)"),
        table.delete().where("region = 'us'"),
        table.update().set("region", "'asia'").where("id = 4"),
    ]
    for statement in statements:
        statement.execute()
        facts = summary(table)
        data, deletes = data_files(table), delete_files(table)
        assert facts["total-data-files"] == str(len(data))
        assert facts["total-delete-files"] == str(len(deletes))
        assert facts["total-records"] == str(sum(f.rows for f in data))
        assert facts["total-position-deletes"] == str(sum(f.rows for f in deletes))
        assert facts["total-equality-deletes"] == "0"
        assert facts["total-files-size"] == str(sum(f.size for f in (*data, *deletes)))
