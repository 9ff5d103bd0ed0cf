"""What a MERGE does when another writer publishes while it runs."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

from icefloe.commands.input_rows import fit_rows
from icefloe.commands.run import run
from icefloe.errors import ConflictError
from icefloe.sql import dml
from icefloe.statements import Options, WriteKind, WriteStatement
from support.tables import data_files, row, rows, snapshots
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.requirement("D6")

SCHEMA = "id BIGINT, region STRING, n INT"
COW, MOR = "copy-on-write", "merge-on-read"


THREE = [row(1), row(2), row(3, "eu")]


@pytest.mark.requirement("M25", "M27")
def test_two_upserts_of_one_new_key_never_both_land(
    table_of, other, before_swap, mode, partition_by
):
    """Serializable is the default; the error names the table and both snapshots."""
    table = table_of(SCHEMA, THREE, mode=mode, partition_by=partition_by)
    base, theirs = table.snapshot_id, other.table(table.name)
    before_swap(theirs.upsert([row(7, "us", 70)], on=["id"]).execute)

    with pytest.raises(ConflictError) as caught:
        table.upsert([row(7, "us", 71)], on=["id"]).execute()

    lost = caught.value
    assert (lost.table, lost.base_snapshot_id) == (table.name, base)
    assert lost.current_snapshot_id == theirs.snapshot_id
    for told in (table.name, str(base), str(theirs.snapshot_id)):
        assert told in str(lost)
    assert rows(table, "id", "n") == [(1, 0), (2, 0), (3, 0), (7, 70)]
    assert len(snapshots(table)) == 2
    assert leftovers(table) == set()


@pytest.mark.requirement("M24")
def test_commit_demands_the_snapshot_that_was_read(table_of, lake, monkeypatch, mode, partition_by):
    """What the catalog is asked: one snapshot on top of the baseline, if that is still the head."""
    table = table_of(SCHEMA, THREE, mode=mode, partition_by=partition_by)
    base, asked, commit_table = table.snapshot_id, [], lake.catalog.commit_table
    monkeypatch.setattr(
        lake.catalog, "commit_table", lambda *given: asked.append(given) or commit_table(*given)
    )

    result = table.upsert([row(1, "us", 10), row(7, "us", 70)], on=["id"]).execute()

    ((_, demands, changes),) = asked
    heads = [(d.ref, d.snapshot_id) for d in demands if isinstance(d, AssertRefSnapshotId)]
    assert heads == [("main", base)]
    (added,) = [c.snapshot for c in changes if isinstance(c, AddSnapshotUpdate)]
    assert (added.snapshot_id, added.parent_snapshot_id) == (result.snapshot_id, base)
    (moved,) = [c for c in changes if isinstance(c, SetSnapshotRefUpdate)]
    assert (moved.ref_name, moved.snapshot_id) == ("main", result.snapshot_id)
    new = [m for m in added.manifests(table.iceberg.io) if m.added_snapshot_id == added.snapshot_id]
    kinds = {int(m.content) for m in new if m.added_files_count}
    assert kinds == ({0, 1} if mode == MOR else {0})


@pytest.mark.requirement("M27")
def test_loser_that_runs_again_updates_what_the_winner_inserted(table_of, other, meanwhile, mode):
    table = table_of(SCHEMA, THREE, mode=mode)
    meanwhile(other.table(table.name).upsert([row(7, "us", 70)], on=["id"]).execute)

    result = table.upsert([row(7, "us", 71)], on=["id"]).with_options(retries=1).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 0)
    assert rows(table, "id", "n") == [(1, 0), (2, 0), (3, 0), (7, 71)]
    assert leftovers(table) == set()


def test_snapshot_isolation_lets_both_inserts_land(table_of, other, before_commit, mode):
    """What the caller asked for; the property of MERGE says so as well as the option."""
    for ways in ({"isolation": "snapshot"}, None):
        properties = {} if ways else {"write.merge.isolation-level": "snapshot"}
        table = table_of(SCHEMA, THREE, mode=mode, properties=properties)
        before_commit(other.table(table.name).upsert([row(7, "us", 70)], on=["id"]).execute)

        table.upsert([row(7, "us", 71)], on=["id"]).with_options(**(ways or {})).execute()

        assert rows(table, "id", "n") == [(1, 0), (2, 0), (3, 0), (7, 70), (7, 71)]


def test_insert_only_merges_of_one_key_never_both_land(table_of, other, meanwhile):
    """Though nothing but new rows is written."""
    table = table_of(SCHEMA, THREE)
    theirs = other.table(table.name).merge([row(7, "us", 70)], on=["id"])
    meanwhile(theirs.when_not_matched().insert_all().execute)

    with pytest.raises(ConflictError):
        table.merge([row(7, "us", 71)], on=["id"]).when_not_matched().insert_all().execute()
    assert rows(table, "id", "n") == [(1, 0), (2, 0), (3, 0), (7, 70)]
    assert leftovers(table) == set()


def test_upserts_of_other_keys_both_land(table_of, other, meanwhile, mode):
    """New files are judged by their bounds; deletes row by row."""
    table = table_of(SCHEMA, THREE[:1], THREE[1:], mode=mode)
    meanwhile(
        other.table(table.name).upsert([row(3, "eu", 30), row(30, "us", 9)], on=["id"]).execute
    )

    result = table.upsert([row(1, "us", 10), row(0, "us", 9)], on=["id"]).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert rows(table, "id", "n") == [(0, 9), (1, 10), (2, 0), (3, 30), (30, 9)]


def test_upserts_of_other_partitions_both_land(table_of, other, before_swap, mode):
    """Their ids lie among ours; the partition tells that no row is of both."""
    table = table_of(SCHEMA, THREE, mode=mode, partition_by=("region",))
    theirs = other.table(table.name).upsert(
        [row(3, "eu", 30), row(5, "eu", 50)], on=["id", "region"]
    )
    before_swap(theirs.execute)

    table.upsert([row(1, "us", 10), row(9, "us", 90)], on=["id", "region"]).execute()

    assert rows(table, "id", "n") == [(1, 10), (2, 0), (3, 30), (5, 50), (9, 90)]


@pytest.mark.requirement("U13")
@pytest.mark.parametrize("change", ["update", "delete"])
def test_matched_row_that_another_writer_changed_is_a_conflict(
    table_of, other, before_commit, mode, change
):
    """Also under snapshot isolation, since their change would be undone."""
    table = table_of(SCHEMA, THREE, mode=mode)
    theirs = other.table(table.name)
    statement = theirs.delete() if change == "delete" else theirs.update().set("n", "5")
    before_commit(statement.where("id = 1").execute)

    with pytest.raises(ConflictError):
        table.upsert([row(1, "us", 10)], on=["id"]).with_options(isolation="snapshot").execute()

    expected = {"delete": [(2, 0), (3, 0)], "update": [(1, 5), (2, 0), (3, 0)]}
    assert rows(table, "id", "n") == expected[change]
    assert leftovers(table) == set()


def test_append_that_a_by_source_clause_would_have_seen_is_a_conflict(
    table_of, other, before_commit
):
    """Whatever its key; one that the clause's condition rules out is none."""
    table = table_of(SCHEMA, THREE, partition_by=("region",))
    theirs = other.table(table.name)

    def merge(condition=None):
        start = table.merge([row(1, "us")], on=["id", "region"])
        return start.when_not_matched_by_source(condition).delete()

    before_commit(lambda: theirs.append([row(50, "ap")]))
    with pytest.raises(ConflictError):
        merge().execute()
    assert rows(table, "id") == [(1,), (2,), (3,), (50,)]

    before_commit(lambda: theirs.append([row(51, "ap")]))
    assert merge("target.region = 'eu'").execute().rows_deleted == 1
    assert rows(table, "id") == [(1,), (2,), (50,), (51,)]
    assert leftovers(table) == set()


def test_rewrite_of_a_file_that_nothing_was_changed_in_is_no_conflict(
    table_of, other, before_commit
):
    table = table_of(SCHEMA, THREE[:2], THREE[2:])
    theirs = other.table(table.name).update().set("n", "5").where("id = 3")
    before_commit(theirs.with_options(mode=COW).execute)

    table.upsert([row(1, "us", 10)], on=["id"]).execute()

    assert rows(table, "id", "n") == [(1, 10), (2, 0), (3, 5)]
    assert len(data_files(table)) == 3


@pytest.mark.slow
@pytest.mark.requirement("M27")
def test_threads_that_upsert_the_same_keys_leave_one_row_each(table_of, mode):
    """Two threads insert or update the same three keys; no key is there twice."""
    table = table_of(SCHEMA, mode=mode)
    failed: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for turn in range(2):
                source = [row(i, "us", start + turn) for i in (1, 2, 3)]
                table.upsert(source, on=["id"]).with_options(retries=10).execute()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    found = rows(table, "id", "n")
    assert [i for i, _ in found] == [1, 2, 3]
    assert {n for _, n in found} <= {11, 21}
    assert len({n for _, n in found}) == 1
    assert leftovers(table) == set()


@pytest.mark.requirement("M25")
@pytest.mark.parametrize(
    ("before", "source"),
    [
        ("", "(SELECT id, n + 1 AS n FROM {t})"),
        ("WITH s AS (SELECT id, n + 1 AS n FROM {t}) ", "s"),
    ],
)
def test_a_source_that_names_the_table_reads_what_the_statement_changes(
    lake, table_of, other, monkeypatch, mode, before, source
):
    """A commit between reading the source and the table is seen, or an update would be lost."""
    table = table_of(SCHEMA, THREE, mode=mode)
    theirs = other.table(table.name).update().set("n", "n + 10").where("id = 1")
    run = dml.run

    def late(statement, context):
        monkeypatch.setattr(dml, "run", run)
        theirs.execute()
        return run(statement, context)

    monkeypatch.setattr(dml, "run", late)
    text = f"{before}MERGE INTO {{t}} AS t USING {source} AS s ON t.id = s.id ".format(t=table.name)
    with pytest.raises(ConflictError):
        lake.sql(text + "WHEN MATCHED THEN UPDATE SET n = s.n")
    assert rows(table, "id", "n") == [(1, 10), (2, 0), (3, 0)]

    lake.sql(text + "WHEN MATCHED THEN UPDATE SET n = s.n")
    assert rows(table, "id", "n") == [(1, 11), (2, 1), (3, 1)]
    assert leftovers(table) == set()


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_a_change_of_rows_that_a_source_read_is_a_conflict_under_serializable(
    lake, table_of, other, before_commit, mode, isolation
):
    """Though the two statements change rows of different files."""
    properties = {"write.merge.isolation-level": isolation}
    table = table_of(SCHEMA, [row(1)], [row(2)], mode=mode, properties=properties)

    def merge(key, of=""):
        return (
            f"MERGE INTO {table.name} AS t USING (SELECT {key} AS id, max(n) + 1 AS n "
            f"FROM {table.name}{of}) AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = s.n"
        )

    before_commit(lambda: other.sql(merge(1)))
    if isolation == "serializable":
        with pytest.raises(ConflictError, match="another writer added rows"):
            lake.sql(merge(2))
        assert rows(table, "id", "n") == [(1, 1), (2, 0)]
    else:
        lake.sql(merge(2))
        assert rows(table, "id", "n") == [(1, 1), (2, 1)]

    assert "the source reads the table itself" in lake.sql(f"EXPLAIN {merge(2)}").first().plan
    then = f" VERSION AS OF {table.snapshot_id}"
    assert (
        "the source reads the table itself"
        not in lake.sql(f"EXPLAIN {merge(2, then)}").first().plan
    )


@pytest.mark.parametrize("when", ["insert only", "false condition", "duplicates first", "delete"])
def test_a_row_that_the_source_matched_was_deleted(table_of, other, meanwhile, mode, when):
    """Matched and left alone, or deleted twice: without it, its source row would be inserted.

    The table has (1, 9), the source (1, 5) and (2, 3). `DELETE … WHERE id IN (1, 2)` lands first:
    no order of the two gives {(2, 3)}. Found by a model of random pairs of statements.
    """
    table = table_of(SCHEMA, [row(1, n=9), row(8)], mode=mode)
    merge = table.merge([row(1, n=5), row(2, n=3)], on=["id"])
    match when:
        case "false condition" | "duplicates first":
            merge = merge.when_matched("source.n > 100").update_all()
        case "delete":
            merge = merge.when_matched().delete()
    if when == "duplicates first":
        merge = merge.with_options(duplicates="first")
    merge = merge.when_not_matched().insert_all()
    meanwhile(other.table(table.name).delete().where("id IN (1, 2)").execute)

    with pytest.raises(ConflictError, match=r"deleted rows|removed by another writer"):
        merge.execute()

    assert rows(table, "id", "n") == [(8, 0)]
    assert leftovers(table) == set()
    assert merge.with_options(retries=1).execute().rows_inserted == 2


def test_rows_that_no_source_row_matches_may_be_deleted(table_of, other, before_commit):
    """Deletes of other rows of the same file do no harm; that is looked at before it is refused."""
    table = table_of(SCHEMA, [row(number) for number in range(1, 9)])
    merge = table.merge([row(1, n=5), row(20)], on=["id"]).when_not_matched().insert_all()
    before_commit(other.table(table.name).delete().where("id = 5").execute)

    merge.execute()

    assert [r[0] for r in rows(table, "id")] == [1, 2, 20, 3, 4, 6, 7, 8]


def test_a_file_without_matched_rows_may_be_dropped(table_of, other, before_commit, mode):
    """Writers on different partitions do not block each other, whichever files were read."""
    table = table_of(
        SCHEMA, [row(1), row(5)], [row(2, "eu"), row(6, "eu")], mode=mode, partition_by=("region",)
    )
    merge = table.merge([row(1, n=5), row(3)], on=["id"]).when_not_matched().insert_all()
    assert merge.explain().files_scanned == 2
    before_commit(other.table(table.name).delete().where("region = 'eu'").execute)

    merge.execute()

    assert rows(table, "id", "n") == [(1, 0), (3, 0), (5, 0)]


def test_a_matched_row_that_was_compacted_and_then_deleted(table_of, other, before_commit):
    """Its new place is not among the files that the MERGE read."""
    table = table_of(SCHEMA, [row(1)], [row(3)])
    theirs = other.table(table.name)
    merge = table.merge([row(1, n=5), row(2)], on=["id"]).when_not_matched().insert_all()

    def move_and_delete():
        theirs.compact()
        theirs.delete().where("id = 1").execute()

    before_commit(move_and_delete)
    with pytest.raises(ConflictError):
        merge.execute()
    assert rows(table, "id") == [(3,)]


def test_a_compaction_alone_is_no_conflict_for_inserts(table_of, other, before_commit):
    table = table_of(SCHEMA, [row(1)], [row(3)])
    merge = table.merge([row(1, n=5), row(2)], on=["id"]).when_not_matched().insert_all()
    before_commit(other.table(table.name).compact)
    merge.execute()
    assert rows(table, "id") == [(1,), (2,), (3,)]


def test_snapshot_isolation_does_not_look(table_of, other, before_commit):
    table = table_of(SCHEMA, [row(1), row(8)])
    merge = table.merge([row(1, n=5), row(2)], on=["id"]).when_not_matched().insert_all()
    before_commit(other.table(table.name).delete().where("id = 1").execute)
    merge.with_options(isolation="snapshot").execute()
    assert rows(table, "id") == [(2,), (8,)]


@pytest.mark.parametrize("statement", ["merge", "replace_using"])
def test_a_statement_that_began_on_an_empty_table(table_of, other, before_commit, statement):
    """Others append twice and expire their first snapshot: the window has to show both appends."""
    table = table_of(SCHEMA)
    theirs = other.table(table.name)

    def append_and_expire():
        theirs.append([row(1)])
        theirs.append([row(2)])
        theirs.expire_snapshots(older_than=datetime.now(UTC) + timedelta(days=1), retain_last=1)

    before_commit(append_and_expire)
    with pytest.raises(ConflictError):
        if statement == "merge":
            table.upsert([row(1, n=5)], on=["id"]).execute()
        else:
            table.replace_using(["id"], [row(1, n=5)]).execute()
    assert rows(table, "id", "n") == [(1, 0), (2, 0)]
    assert leftovers(table) == set()


@pytest.mark.parametrize("statement", ["append", "overwrite", "truncate", "delete"])
def test_a_branch_that_was_dropped(lake, other, table_of, before_commit, statement):
    """It must not be made again from main, without its own rows."""
    table = table_of(SCHEMA, [row(1)])
    table.iceberg.manage_snapshots().create_branch(table.snapshot_id, "audit").commit()
    lake_rows = fit_rows([row(3)], table._state(), lake.spark)
    options = Options(branch="audit")

    def drop():
        other.table(table.name).iceberg.manage_snapshots().remove_branch("audit").commit()

    table.delete().where("id = 99").with_options(branch="audit").execute()
    run(
        WriteStatement(WriteKind.APPEND, fit_rows([row(2)], table._state(), lake.spark), options),
        table._context(),
    )
    before_commit(drop)
    with pytest.raises(ConflictError, match="dropped the branch 'audit'"):
        match statement:
            case "append":
                run(WriteStatement(WriteKind.APPEND, lake_rows, options), table._context())
            case "overwrite":
                run(WriteStatement(WriteKind.OVERWRITE, lake_rows, options), table._context())
            case "truncate":
                run(WriteStatement(WriteKind.TRUNCATE, None, options), table._context())
            case "delete":
                table.delete().where("id = 2").with_options(branch="audit").execute()
    assert "audit" not in table.iceberg.metadata.refs
    assert rows(table, "id") == [(1,)]
    assert leftovers(table) == set()
