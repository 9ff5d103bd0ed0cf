"""MERGE with schema evolution: columns, struct fields and wider types come in the same commit."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from icefloe.errors import ColumnNotFoundError, ConflictError, SchemaMismatchError, StatementError
from support.tables import rows, snapshots

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 5)]


def upsert(table, source, on=("id",)):
    return table.upsert(source, on=list(on)).with_schema_evolution()


def test_new_columns_are_added_in_the_same_commit(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    table.delete().where("id = 4").execute()
    before = len(snapshots(table))
    source = pa.table(
        {
            "id": [1, 9],
            "region": ["us", "eu"],
            "n": [10, 90],
            "note": ["a", None],
            "Day": ["x", "y"],
        }
    )

    result = upsert(table, source).execute()

    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert len(snapshots(table)) == before + 1
    assert table.schema.names == ["id", "region", "n", "note", "Day"]
    assert rows(table) == [
        (1, "us", 10, "a", "x"),
        (2, "eu", 2, None, None),
        (3, "us", 3, None, None),
        (9, "eu", 90, None, "y"),
    ]
    newest = table.iceberg.current_snapshot()
    assert newest.schema_id == table.iceberg.metadata.current_schema_id


def test_types_are_widened(table_of, mode, partition_by):
    table = table_of(
        "id INT, region STRING, f FLOAT, d DECIMAL(5, 2)",
        [
            {"id": 1, "region": "us", "f": 1.5, "d": Decimal("1.25")},
            {"id": 2, "region": "eu", "f": None, "d": None},
        ],
        mode=mode,
        partition_by=partition_by,
    )
    source = table._lake.spark.sql(
        "SELECT 5000000000 AS id, 'us' AS region, double(0.1) AS f, decimal(12345678.25) AS d "
        "UNION ALL SELECT 2L, 'eu', double(2.5), decimal(2.5)"
    ).selectExpr("id", "region", "f", "CAST(d AS DECIMAL(10, 2)) AS d")

    upsert(table, source).execute()

    assert [f.dataType.simpleString() for f in table.schema] == [
        "bigint",
        "string",
        "double",
        "decimal(10,2)",
    ]
    found = [(r[0], r[1], r[2], str(r[3])) for r in rows(table)]
    assert sorted(found) == [
        (1, "us", 1.5, "1.25"),
        (2, "eu", 2.5, "3.00"),
        (5000000000, "us", 0.1, "12345678.00"),
    ]


def test_struct_fields_are_added_and_missing_ones_kept(table_of, mode, partition_by):
    table = table_of(
        "id BIGINT, region STRING, p STRUCT<a: INT, b: STRING>, xs ARRAY<STRUCT<k: INT>>",
        [
            {"id": 1, "region": "us", "p": {"a": 1, "b": "x"}, "xs": [{"k": 1}]},
            {"id": 2, "region": "eu", "p": None, "xs": None},
        ],
        mode=mode,
        partition_by=partition_by,
    )
    source = table._lake.spark.sql(
        "SELECT 1L AS id, 'us' AS region, named_struct('c', true, 'a', 7L) AS p, "
        "array(named_struct('k', 2, 'm', 'new')) AS xs "
        "UNION ALL SELECT 3L, 'eu', named_struct('c', false, 'a', 8L), NULL"
    )

    upsert(table, source).execute()

    found = {r.id: r.asDict(recursive=True) for r in table.scan().collect()}
    assert found[1]["p"] == {"a": 7, "b": "x", "c": True}
    assert found[1]["xs"] == [{"k": 2, "m": "new"}]
    assert found[2] == {"id": 2, "region": "eu", "p": None, "xs": None}
    assert found[3]["p"] == {"a": 8, "b": None, "c": False}
    assert table.schema["p"].dataType.simpleString() == "struct<a:bigint,b:string,c:boolean>"


def test_columns_that_the_source_lacks_stay_or_are_null(table_of, mode, partition_by):
    table = table_of(SCHEMA, ROWS[:2], mode=mode, partition_by=partition_by)
    source = [{"id": 1, "region": "us", "extra": 1}, {"id": 7, "region": "eu", "extra": 2}]

    with pytest.raises(SchemaMismatchError, match="'n'"):
        table.upsert(source, on=["id"]).execute()
    upsert(table, source).execute()

    assert rows(table) == [(1, "us", 1, 1), (2, "eu", 2, None), (7, "eu", None, 2)]


def test_explicit_assignments_add_only_what_they_name(table_of, mode):
    table = table_of(SCHEMA, ROWS[:2], mode=mode)
    source = [{"id": 1, "note": "a", "other": 1}]
    merge = table.merge(source, on=["id"]).when_matched().update({"note": "source.note"})

    with pytest.raises(ColumnNotFoundError, match="note"):
        merge.execute()
    merge.with_schema_evolution().execute()

    assert table.schema.names == ["id", "region", "n", "note"]
    assert rows(table, "id", "note") == [(1, "a"), (2, None)]


def test_nothing_changes_when_no_row_does(table_of, mode):
    table = table_of(SCHEMA, ROWS[:2], mode=mode)
    before = table.snapshot_id
    merge = table.merge([{"id": 77, "extra": 1}], on=["id"]).when_matched().update_all()

    result = merge.with_schema_evolution().execute()

    assert result.snapshot_id is None
    assert (table.snapshot_id, table.schema.names) == (before, ["id", "region", "n"])


def test_what_cannot_be_widened_is_refused(table_of, mode):
    table = table_of(SCHEMA, ROWS[:2], mode=mode)
    before = (table.snapshot_id, table.schema)

    with pytest.raises(StatementError, match="n"):
        upsert(table, pa.table({"id": [1], "region": ["us"], "n": ["text"]})).execute()
    with pytest.raises(StatementError, match="_icefloe_x"):
        upsert(
            table, pa.table({"id": [1], "region": ["us"], "n": [1], "_icefloe_x": [1]})
        ).execute()

    assert (table.snapshot_id, table.schema) == before


def test_old_snapshots_keep_their_schema(table_of, mode):
    table = table_of(SCHEMA, ROWS[:1], mode=mode)
    first = table.snapshot_id

    upsert(table, [{"id": 1, "region": "us", "n": 5, "extra": 1}]).execute()
    table.update().set("extra", "extra + 1").where("id = 1").execute()

    assert rows(table) == [(1, "us", 5, 2)]
    assert rows(table, snapshot_id=first) == [(1, "us", 1)]


def test_a_schema_changed_concurrently_is_a_conflict(table_of, lake, mode):
    table = table_of(SCHEMA, ROWS[:2], mode=mode)
    lake.before_publish = lambda: table.add_column("theirs", "INT")
    with pytest.raises(ConflictError, match="schema"):
        upsert(table, [{"id": 1, "region": "us", "n": 5, "extra": 1}]).execute()

    assert table.schema.names == ["id", "region", "n", "theirs"]
    assert rows(table, "id", "n") == [(1, 1), (2, 2)]


def test_a_schema_that_was_changed_back_concurrently_is_a_conflict(table_of, lake):
    """PyIceberg gives an old schema its old id again, so that ids alone tell nothing."""
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    table.rename_column("n", "m")
    lake.before_publish = lambda: table.rename_column("m", "n")
    with pytest.raises(ConflictError, match="schema"):
        table.upsert([{"id": 1, "m": 5, "e": 1}], on=["id"]).with_schema_evolution().execute()

    assert table.schema.names == ["id", "n"]


def test_only_star_assignments_widen_types(table_of):
    """A wider source column of the same name means nothing to `update({"n": "source.x"})`."""
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    source = table._lake.spark.sql("SELECT 1 AS id, 5000000000 AS n, 7 AS x")

    merge = table.merge(source, on=["id"]).when_matched().update({"n": "source.x"})
    merge.with_schema_evolution().execute()

    assert rows(table) == [(1, 7)]
    assert table.schema["n"].dataType.simpleString() == "int"
