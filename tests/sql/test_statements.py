"""`lake.sql` from Python: results, sources, time travel by number, injection, what is left behind."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import pyarrow as pa
import pytest

from icefloe import DmlResult
from icefloe.errors import ParseError, SchemaMismatchError, StatementError
from support.tables import rows

NASTY = [
    "it's",
    'say "x"',
    "a;b",
    "a`b",
    "-- no comment",
    "/* nor this",
    "line\nbreak",
    "back\\slash\\",
    "{brace} {f0}",
    "'); DROP TABLE t; --",
    "`; DELETE FROM t; --",
    "$$dollar$$",
    "",
]


@pytest.fixture
def orders(table_of, mode, partition_by):
    table = table_of(
        "id BIGINT, region STRING, status STRING",
        [{"id": i, "region": "eu" if i % 2 else "us", "status": "new"} for i in range(1, 5)],
        mode=mode,
        partition_by=partition_by,
    )
    assert table.name == "default.t0"
    return table


@pytest.mark.requirement("U35")
def test_update_in_sql_gives_a_row_count(lake, orders):
    result = lake.sql("UPDATE t0 SET status = 'x' WHERE id = 2")
    assert isinstance(result, DmlResult)
    assert (result.rows_updated, result.total_affected) == (1, 1)
    assert [row[2] for row in rows(orders)] == ["new", "x", "new", "new"]


@pytest.mark.requirement("M12")
def test_merge_in_sql(lake, orders):
    """An upsert, clauses with conditions and a synchronisation, as SQL."""
    changes = [
        {"id": 1, "region": "eu", "status": "paid"},
        {"id": 9, "region": "eu", "status": "new"},
    ]
    upsert = "MERGE INTO t0 AS t USING changes AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    assert lake.sql(upsert, changes=changes).clauses == (1, 1)
    conditional = """
        MERGE INTO t0 AS t USING changes AS s ON t.id = s.id
        WHEN MATCHED AND s.id = 9 THEN DELETE
        WHEN MATCHED THEN UPDATE SET status = concat(t.status, '!')
        WHEN NOT MATCHED THEN INSERT (id, status) VALUES (s.id, s.status)
    """
    assert lake.sql(conditional, changes=changes).clauses == (1, 1, 0)
    mirror = """
        MERGE INTO t0 AS t USING changes AS s ON t.id = s.id
        WHEN NOT MATCHED BY TARGET THEN INSERT *
        WHEN NOT MATCHED BY SOURCE THEN DELETE
    """
    assert lake.sql(mirror, changes=changes).clauses == (1, 3)
    assert rows(orders) == [(1, "eu", "paid!"), (9, "eu", "new")]


@pytest.mark.requirement("T05", "T06")
def test_modes_are_set_in_sql_and_shown(lake):
    """CREATE TABLE … WITH, ALTER TABLE … SET PROPERTIES, back and forth."""
    lake.sql(
        "CREATE TABLE t (id INT) WITH (format_version = 2, write_delete_mode = 'COPY_ON_WRITE')"
    )
    assert lake.table("t").properties["write.delete.mode"] == "copy-on-write"
    shown = lake.sql("SHOW CREATE TABLE t").first().createtab_stmt
    assert "'write.delete.mode' = 'copy-on-write'" in shown
    lake.sql(
        "ALTER TABLE t SET PROPERTIES write_delete_mode = 'merge-on-read', write_merge_mode = 'auto'"
    )
    assert lake.table("t").properties["write.delete.mode"] == "merge-on-read"
    lake.sql("DROP TABLE t")
    lake.sql(shown)
    assert lake.table("t").properties["write.delete.mode"] == "copy-on-write"


def test_a_source_may_be_of_any_kind(lake, spark):
    kinds = {
        "frame": spark.createDataFrame([(1, "a")], "id INT, v STRING"),
        "arrow": pa.table({"id": [1], "v": ["a"]}),
        "batch": pa.RecordBatch.from_pydict({"id": [1], "v": ["a"]}),
        "pandas": pd.DataFrame({"id": [1], "v": ["a"]}),
        "dicts": [{"id": 1}, {"v": "b", "id": 2}],
    }
    for name in kinds:
        found = lake.sql(f"SELECT id, v FROM {name} ORDER BY id LIMIT 1", **kinds).first()
        assert tuple(found) == ((1, None) if name == "dicts" else (1, "a"))


@pytest.mark.parametrize("source", [5, "text", [], [1, 2], None])
def test_a_source_of_no_such_kind_is_refused(lake, source):
    with pytest.raises(StatementError, match="Source 's' is a"):
        lake.sql("SELECT * FROM s", s=source)


def test_two_sources_of_one_name_are_refused(lake):
    with pytest.raises(StatementError, match="Two sources are named"):
        lake.sql("SELECT 1", a=[{"x": 1}], A=[{"x": 1}])


@pytest.mark.requirement("T21")
def test_time_travel_by_snapshot_id_and_by_timestamp(lake, spark):
    """Readers of an older snapshot see its rows."""
    lake.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    first = lake.table("t").snapshot_id
    lake.sql("INSERT INTO t VALUES (2)")
    committed = lake.sql("SELECT max(committed_at) AS at FROM t.snapshots").first().at
    before = (committed - dt.timedelta(milliseconds=1)).isoformat(sep=" ")
    for travel in (
        f"VERSION AS OF {first}",
        f"FOR VERSION AS OF '{first}'",
        f"TIMESTAMP AS OF '{before}'",
        f"FOR SYSTEM_TIME AS OF TIMESTAMP '{before}'",
        f"TIMESTAMP AS OF to_timestamp('{before}') + INTERVAL '0' SECOND",
    ):
        assert lake.sql(f"SELECT * FROM t {travel}").collect() == [(1,)], travel
        joined = f"SELECT a.id, b.id FROM t {travel} AS a RIGHT JOIN t b ON a.id = b.id"
        assert sorted(map(tuple, lake.sql(joined).collect()), key=str) == [(1, 1), (None, 2)]


def test_timestamps_are_read_in_the_session_time_zone(lake, spark):
    lake.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    now = dt.datetime.now(dt.UTC)
    text = (now + dt.timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    assert lake.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{text}'").first()[0] == 1
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # there it is nine hours earlier
    try:
        with pytest.raises(StatementError, match="no snapshot as old"):
            lake.sql(f"SELECT count(*) FROM t TIMESTAMP AS OF '{text}'")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def test_literals_do_only_what_they_say(lake, mode):
    """Quotes, semicolons, backticks, braces and newlines in values."""
    lake.sql(f"CREATE TABLE t (id INT, v STRING) TBLPROPERTIES ('write.update.mode' = '{mode}')")
    values = ", ".join(f"({i}, {literal(v)})" for i, v in enumerate(NASTY))
    lake.sql(f"INSERT INTO t VALUES {values}")
    assert [row.v for row in lake.sql("SELECT v FROM t ORDER BY id").collect()] == NASTY
    cases = " ".join(f"WHEN v = {literal(v)} THEN {literal(v + v)}" for v in NASTY)
    lake.sql(f"UPDATE t SET v = CASE {cases} END WHERE v IN ({', '.join(map(literal, NASTY))})")
    found = [row.v for row in lake.sql("SELECT v FROM t ORDER BY id").collect()]
    assert found == [v + v for v in NASTY]
    listed = ", ".join(literal(v + v) for v in NASTY[1:])
    assert (
        lake.sql(f"DELETE FROM t WHERE v IN (SELECT v FROM t WHERE v IN ({listed}))").rows_deleted
        == 12
    )


def test_columns_called_as_the_words_of_case(lake, mode):
    """`end`, `case` and `from` within CASE, before words that end a part of the statement."""
    lake.sql(
        "CREATE TABLE t (id INT, end INT, n INT, case INT, from ARRAY<INT>)"
        f" TBLPROPERTIES ('write.update.mode' = '{mode}', 'write.merge.mode' = '{mode}')"
    )
    lake.sql("INSERT INTO t (id, end, n) VALUES (1, NULL, 1), (2, 20, 2), (3, 30, 3)")

    lake.sql(
        "UPDATE t SET n = CASE WHEN end IS NULL THEN 0 WHEN 25 < end THEN end ELSE -end END,"
        " end = CASE end WHEN 20 THEN end + end ELSE (CASE WHEN id = 1 THEN 7 ELSE end END) END,"
        " case = CASE WHEN id = 1 THEN 1 END, `from` = CASE WHEN t.from IS NULL THEN array() END"
        " WHERE CASE WHEN id > 0 THEN end ELSE NULL END IS NOT DISTINCT FROM end"
    )
    found = [(1, 7, 0, 1, []), (2, 40, -20, None, []), (3, 30, 30, None, [])]
    assert rows(lake.table("t")) == found

    lake.sql(
        "UPDATE t SET case = 5, `from` = CASE WHEN id = 2 THEN array()::ARRAY<INT> END, "
        "n = CASE WHEN n < 0 THEN n ELSE case END WHERE CASE WHEN id > 1 THEN t.from END IS NOT NULL"
    )
    lake.sql(
        "MERGE INTO t USING (SELECT 2 AS id, 1 AS end UNION ALL SELECT 4, 4) s ON t.id = s.id "
        "WHEN MATCHED AND CASE WHEN s.end > 0 THEN t.from END IS NOT NULL THEN UPDATE SET end = 1 "
        "WHEN NOT MATCHED AND CASE WHEN end > 0 THEN end END > 0 THEN INSERT (id, end) "
        "VALUES (id, CASE WHEN end = 4 THEN end ELSE 0 END)"
    )
    changed = [(2, 1, -20, 5, []), (3, 30, None, 5, None), (4, 4, None, None, None)]
    assert rows(lake.table("t")) == [found[0], *changed]


def test_names_do_only_what_they_say(lake, mode):
    """Columns and aliases with quotes, semicolons, backticks, braces and newlines."""
    names = [name for name in NASTY if name]
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    columns = ", ".join(f"{name} INT" for name in quoted)
    lake.sql(f"CREATE TABLE t (id INT, {columns}) TBLPROPERTIES ('write.merge.mode' = '{mode}')")
    lake.sql(f"INSERT INTO t (id, {', '.join(quoted)}) VALUES (1, {', '.join('1' for _ in names)})")
    assert lake.sql("SELECT * FROM t").columns == ["id", *names]
    sets = ", ".join(f"{name} = {name} + 1" for name in quoted)
    assert (
        lake.sql(
            f"UPDATE t SET {sets} WHERE {' AND '.join(f'{n} = 1' for n in quoted)}"
        ).rows_updated
        == 1
    )
    alias = quoted[-1]
    merge = f"""
        MERGE INTO t AS {alias} USING (SELECT 1 AS id, {", ".join(f"5 AS {n}" for n in quoted)}) AS {quoted[0]}
        ON {alias}.id = {quoted[0]}.id
        WHEN MATCHED THEN UPDATE SET {", ".join(f"{alias}.{n} = {quoted[0]}.{n}" for n in quoted)}
    """
    assert lake.sql(merge).rows_updated == 1
    assert tuple(lake.sql(f"SELECT {', '.join(quoted)} FROM t").first()) == (5,) * len(names)
    assert lake.tables() == ["default.t"]


@pytest.mark.parametrize("name", ["it's", "a;b -- c", "{f0}", "100%25 é"])
def test_tables_may_have_odd_names(lake, name):
    lake.sql(f"CREATE TABLE odd.`{name}` (id INT); INSERT INTO odd.`{name}` VALUES (1), (2)")
    assert lake.tables() == [f"odd.{name}"]
    assert lake.sql(f"SELECT sum(odd.`{name}`.id) FROM odd.`{name}`").first()[0] == 3
    assert lake.sql(f"DELETE FROM odd.`{name}` WHERE `{name}`.id = 1").rows_deleted == 1
    shown = lake.sql(f"SHOW CREATE TABLE odd.`{name}`").first().createtab_stmt
    lake.sql(f"DROP TABLE odd.`{name}`")
    lake.sql(shown)
    assert lake.sql(f"SELECT count(*) FROM odd.`{name}`").first()[0] == 0


@pytest.mark.parametrize("name", ["`a.b`", "`a``b`", "``", "ns.`x.y`"])
def test_names_that_would_mean_another_table_are_refused(lake, name):
    with pytest.raises(StatementError, match="cannot be part of a table name"):
        lake.sql(f"CREATE TABLE {name} (id INT)")


@pytest.mark.parametrize("name", ["new\nline", "a#b", "why?"])
def test_names_that_no_location_can_have_are_refused(lake, name):
    with pytest.raises(StatementError, match="A table cannot be named"):
        lake.sql(f"CREATE TABLE `{name}` (id INT)")


def test_the_place_of_a_parse_error(lake):
    lake.sql("CREATE TABLE t (id INT)")
    with pytest.raises(ParseError) as raised:
        lake.sql("SELECT 1;\nDELETE FROM t\nWHERE id = = 2")
    assert (raised.value.line, raised.value.column) == (3, 12)
    assert str(raised.value).splitlines()[1:] == ["  WHERE id = = 2", "             ^"]


def test_the_result_is_the_last_statements(lake):
    text = "CREATE TABLE t (id INT); INSERT INTO t VALUES (1);"
    assert lake.sql(text).rows_inserted == 1
    assert lake.sql("INSERT INTO t VALUES (2); SELECT max(id) FROM t").first()[0] == 2


def test_a_query_is_lazy_and_holds_what_it_read(lake):
    lake.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    found = lake.sql("SELECT * FROM t").filter("id > 0")
    lake.sql("INSERT INTO t VALUES (2)")
    assert found.count() == 1


def test_a_dynamic_overwrite_follows_the_session(lake, spark):
    lake.sql("CREATE TABLE t (id INT, p STRING) PARTITIONED BY (p)")
    lake.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        lake.sql("INSERT OVERWRITE t VALUES (3, 'b')")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert rows(lake.table("t")) == [(1, "a"), (3, "b")]
    lake.sql("INSERT OVERWRITE t VALUES (4, 'c')")
    assert rows(lake.table("t")) == [(4, "c")]


def test_an_explained_statement_changes_nothing(lake):
    lake.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    before = lake.table("t").snapshot_id
    plan = lake.sql("EXPLAIN UPDATE t SET id = 2 WHERE id = 1")
    assert plan.columns == ["plan"]
    assert "UPDATE default.t" in plan.first().plan
    assert "== Physical Plan ==" in lake.sql("EXPLAIN EXTENDED SELECT * FROM t").first().plan
    assert lake.table("t").snapshot_id == before


def test_subqueries_of_builders_read_metadata_tables_and_history(lake, spark):
    lake.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1), (2), (3), (4)")
    table = lake.table("t")
    first = table.snapshot_id
    table.delete().where("id = 4").execute()
    old = f"id IN (SELECT max(id) - 1 FROM t VERSION AS OF {first})"
    text = f"{old} AND 2 = (SELECT count(*) FROM t.history)"
    views = spark.catalog.listTables()
    assert table.delete().where(text).execute().rows_deleted == 1
    assert rows(table) == [(1,), (2,)]
    assert spark.catalog.listTables() == views


def test_rows_of_a_query_given_twice_are_refused(lake):
    lake.sql("CREATE TABLE t (id INT, v INT)")
    with pytest.raises(SchemaMismatchError, match="gives a column twice"):
        lake.sql("INSERT INTO t BY NAME SELECT 1 AS id, 2 AS ID")
