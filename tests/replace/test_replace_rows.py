"""REPLACE WHERE on rows: any predicate, files that straddle it changed by the delete mode."""

from __future__ import annotations

import pytest

from icefloe.errors import (
    ColumnNotFoundError,
    ConstraintError,
    InvalidPredicateError,
    StatementError,
    UnsupportedTableError,
)
from support.foreign_files import equality_delete, publish
from support.tables import data_files, delete_files, row, rows, snapshots, summary
from support.unreferenced_files import leftovers

MODES = ["copy-on-write", "merge-on-read"]
SCHEMA = "id BIGINT, region STRING, n INT"


OLD = [row(1), row(2), row(3, "eu"), row(4, "eu", 5), row(5, None, None)]


@pytest.fixture
def mode(layout):
    return layout[0]


@pytest.fixture(
    params=[
        ("copy-on-write", ("region",)),
        ("merge-on-read", ()),
        pytest.param(("copy-on-write", ()), marks=pytest.mark.slow),
        pytest.param(("merge-on-read", ("region",)), marks=pytest.mark.slow),
    ],
    ids=str,
)
def layout(request):
    return request.param


@pytest.fixture
def table(table_of, layout):
    return table_of(SCHEMA, OLD, mode=layout[0], partition_by=layout[1])


def replaced(table, predicate, new, **options):
    return table.replace_where(predicate, new).with_options(scope="rows", **options).execute()


@pytest.mark.requirement("R08", "D1")
def test_a_predicate_that_straddles_files(table, mode):
    result = replaced(
        table, "id % 2 = 0 OR upper(region) = 'XX'", [row(20, "us", 1), row(4, "eu", 1)]
    )

    assert rows(table) == sorted(
        [(1, "us", 0), (3, "eu", 0), (4, "eu", 1), (5, None, None), (20, "us", 1)],
        key=lambda r: repr(r),
    )
    assert (result.rows_deleted, result.rows_inserted, result.mode) == (2, 2, mode)
    assert len(snapshots(table)) == 2
    if mode == "copy-on-write":
        assert delete_files(table) == []
        assert result.rows_copied > 0
    else:
        assert result.delete_files_added == len(delete_files(table)) > 0
        assert (result.rows_copied, result.data_files_removed) == (0, 0)
    facts = summary(table)
    assert facts["icefloe.scope"] == "rows"
    assert facts["icefloe.predicate"].startswith("id % 2 = 0")
    assert facts["operation"] == "overwrite"


def test_the_option_mode_wins_over_the_table(table, mode):
    other = "copy-on-write" if mode == "merge-on-read" else "merge-on-read"
    result = replaced(table, "id = 1", [row(1, "us", 7)], mode=other)
    assert result.mode == other
    assert bool(delete_files(table)) is (other == "merge-on-read")
    assert rows(table, "n", where="id = 1") == [(7,)]


def test_auto_chooses_per_file(table_of):
    table = table_of(SCHEMA, [row(i) for i in range(10)], [row(i, "eu") for i in range(10, 20)])
    result = replaced(table, "id < 9 OR id = 15", [row(15, "eu", 1)], mode="auto")
    assert (result.rows_deleted, result.rows_copied, result.delete_files_added) == (10, 1, 1)
    assert table.count() == 11


def test_null_is_not_true_for_old_rows_and_for_new_ones(table):
    assert replaced(table, "n <> 5", []).rows_deleted == 3
    assert rows(table, "id") == [(4,), (5,)]
    with pytest.raises(ConstraintError) as caught:
        replaced(table, "n <> 5", [row(9, "us", None)])
    assert caught.value.predicate == "n <> 5"
    assert rows(table, "id") == [(4,), (5,)]
    assert leftovers(table) == set()


@pytest.mark.requirement("R29")
def test_rows_outside_leave_nothing_behind(table):
    before = rows(table)
    with pytest.raises(ConstraintError, match="n > 1"):
        replaced(table, "n > 1", [row(1, "us", 2), row(2, "us", 1)])
    assert rows(table) == before
    assert leftovers(table) == set()
    assert replaced(table, "n > 1", [row(2, "us", 1)], check=False).rows_inserted == 1


def test_no_match_and_no_rows_make_no_snapshot(table):
    assert replaced(table, "id = 77", []).snapshot_id is None
    assert len(snapshots(table)) == 1


@pytest.mark.requirement("D15")
def test_whole_files_are_removed_by_metadata(table_of):
    """In every mode."""
    table = table_of(SCHEMA, OLD, partition_by=("region",))
    result = replaced(table, "region = 'us'", [row(9)])
    assert (result.data_files_removed, result.delete_files_added) == (1, 0)
    assert (result.files_scanned, result.files_skipped, result.rows_deleted) == (0, 2, 2)


@pytest.mark.requirement("X05")
@pytest.mark.parametrize("mode", MODES)
def test_over_deletes_of_both_kinds(table_of, lake, mode):
    """Nothing that was deleted comes back, and only live rows are counted."""
    table = table_of(SCHEMA, OLD, mode=mode)
    table.delete().where("id = 1").with_options(mode="merge-on-read").execute()
    publish(lake, table, deletes=[equality_delete(table, [{"id": 3}])])
    result = replaced(table, "id <= 4", [row(3, "eu", 9)])
    assert result.rows_deleted == 2
    assert rows(table) == [(3, "eu", 9), (5, None, None)]


def test_subqueries_and_the_tables_own_name(table, lake):
    lake.create_table("ids", "id BIGINT").append([{"id": 1}, {"id": 4}])
    name = table.name.rpartition(".")[2]
    result = replaced(table, f"{name}.id IN (SELECT id FROM ids)", [row(4, "eu", 8)])
    assert (result.rows_deleted, result.rows_inserted) == (2, 1)
    with pytest.raises(ConstraintError):
        replaced(table, "id IN (SELECT id FROM ids)", [row(7)])


@pytest.mark.requirement("R36")
def test_several_predicates_in_one_commit(table):
    result = (
        table.replace_where("id = 1", [row(1, "us", 100)])
        .and_where("n = 5", [row(40, "eu", 5), row(41, "eu", 5)])
        .with_options(scope="rows")
        .execute()
    )
    assert (result.rows_deleted, result.rows_inserted) == (2, 3)
    assert len(snapshots(table)) == 2
    with pytest.raises(ConstraintError) as caught:
        (
            table.replace_where("id = 1", [row(1)])
            .and_where("id = 2", [row(1)])
            .with_options(scope="rows")
            .execute()
        )
    assert caught.value.predicate == "id = 2"


def test_refusals(table):
    with pytest.raises(InvalidPredicateError, match="empty"):
        replaced(table, " ", [])
    with pytest.raises(InvalidPredicateError, match="id ="):
        replaced(table, "id =", [])
    with pytest.raises(ColumnNotFoundError, match="nope"):
        replaced(table, "nope = 1", [])
    with pytest.raises(StatementError, match="deterministic"):
        replaced(table, "rand() < 0.5", [])
    assert table.count() == 5


def test_version_1_tables_are_rewritten_only(table_of):
    table = table_of(SCHEMA, OLD, format_version=1)
    with pytest.raises(UnsupportedTableError, match="format version 2"):
        replaced(table, "id = 1", [])
    assert replaced(table, "id = 1", [row(1, "us", 1)], mode="copy-on-write").rows_deleted == 1
    assert table.count() == 5


@pytest.mark.requirement("D8", "X05")
@pytest.mark.parametrize("mode", MODES)
def test_over_specs(table_of, mode):
    """Files of two specs, deletes under each file's own."""
    table = table_of(SCHEMA, OLD, mode=mode, partition_by=("region",))
    table.evolve_partitions(("bucket(2, id)",))
    table.append([row(6), row(7, "eu", 5)])
    result = replaced(table, "n = 5 OR id IN (1, 6)", [row(60, "us", 5)])
    assert result.rows_deleted == 4
    assert rows(table, "id") == [(2,), (3,), (5,), (60,)]
    assert {f.spec_id for f in delete_files(table)} <= {0, 1}
    assert all(f.spec_id == 1 for f in data_files(table) if f.sequence_number == 3)


def test_explain_shows_scope_mode_and_files(table, mode):
    plan = table.replace_where("n = 5", [row(1, "us", 5)]).with_options(scope="rows").explain()
    assert (plan.operation, plan.mode.value) == ("replace_where", mode)
    assert plan.files_scanned >= 1
    assert "scope rows" in str(plan)
    assert len(snapshots(table)) == 1
