"""The engine on a cluster and over Spark Connect: the same statements, the same answers."""

from __future__ import annotations

import datetime as dt
import importlib
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import icefloe
from icefloe.errors import (
    CardinalityError,
    ColumnNotFoundError,
    ConflictError,
    ConstraintError,
    NullabilityError,
    ParseError,
    SchemaMismatchError,
    StatementError,
    TypeMismatchError,
)
from icefloe.spark.frames import few_rows
from icefloe.spark.session import READS_BY_ID
from support.tables import data_files, delete_files, rows, snapshots, summary
from support.unreferenced_files import leftovers

pytestmark = pytest.mark.cluster

SCHEMA = "id BIGINT, name STRING, v DOUBLE"
ROWS = [{"id": i, "name": f"name-{i}", "v": i / 2} for i in range(20)]


@pytest.fixture(params=[(), ("bucket(4, name)",)], ids=["unpartitioned", "bucketed"])
def partition_by(request):
    return request.param


@pytest.fixture
def table(table_of, mode, partition_by):
    """Twenty rows in two files or more, whose statements take the mode of the test."""
    return table_of(SCHEMA, ROWS[:10], ROWS[10:], mode=mode, partition_by=partition_by)


def test_workers_have_pyarrow_but_not_icefloe(spark):
    """Functions are sent by value: workers need not have the package."""

    def look(batches):
        for _ in batches:
            pass
        try:
            found = importlib.import_module("icefloe").__file__
        except ModuleNotFoundError as error:
            found = str(error)
        version = importlib.import_module("pyarrow").__version__
        yield pa.RecordBatch.from_pydict({"icefloe": [found], "pyarrow": [version]})

    told = spark.range(4).repartition(2).mapInArrow(look, "icefloe string, pyarrow string")
    expected = {("No module named 'icefloe'", pa.__version__)}
    assert {tuple(row) for row in told.collect()} == expected


def test_cluster_has_its_own_executors(spark, backend):
    """Tasks run in other processes than the driver's JVM where there is a cluster."""
    if backend == "connect":
        assert type(spark).__module__.startswith("pyspark.sql.connect")
    else:
        assert spark.sparkContext.master.startswith("spark://127.0.0.1:")


def test_update_and_delete(table, mode):
    updated = table.update().set("v", "v + 100").where("id % 2 = 0").execute()
    deleted = table.delete().where("id >= 15").execute()

    assert (updated.rows_updated, deleted.rows_deleted) == (10, 5)
    assert (updated.mode, deleted.mode) == (mode, mode)
    expected = [(i, f"name-{i}", i / 2 + (100 if i % 2 == 0 else 0)) for i in range(15)]
    assert rows(table) == sorted(expected, key=repr)
    assert bool(delete_files(table)) == (mode == "merge-on-read")
    assert leftovers(table) == set()


def test_merge_with_every_clause(table, spark, mode):
    changes = spark.range(0, 24, 4).selectExpr("id", "concat('name-', id) AS name", "-id / 2 AS v")
    result = (
        table.merge(changes, on="target.id = source.id")
        .when_matched("source.id = 4").delete()
        .when_matched().update({"v": "source.v"})
        .when_not_matched().insert_all()
        .when_not_matched_by_source("target.id >= 17").delete()
        .execute()
    )  # fmt: skip

    assert (result.clauses, result.mode) == ((1, 4, 1, 3), mode)
    expected = [(i, f"name-{i}", -i / 2 if i % 4 == 0 else i / 2) for i in range(17) if i != 4]
    assert rows(table) == sorted([*expected, (20, "name-20", -10.0)], key=repr)
    assert leftovers(table) == set()

    again = [{"id": 20, "name": "name-20", "v": 1.0}] * 2
    with pytest.raises(CardinalityError) as caught:
        table.upsert(again, on=["id"]).execute()
    assert caught.value.keys == (20,)
    assert table.upsert(again[:1], on=["id", "name"]).execute().rows_updated == 1


def test_change_of_the_partition_column(table):
    table.update().set("name", "concat(name, '-moved')").where("id < 3").execute()
    table.update().set("name", "upper(name)").where("name LIKE '%moved'").execute()
    assert sorted(row["name"] for row in table.scan(["name"], "id < 3").collect()) == [
        "NAME-0-MOVED", "NAME-1-MOVED", "NAME-2-MOVED"
    ]  # fmt: skip
    assert table.count() == 20


def test_scan_with_deletes_columns_conditions_and_positions(table):
    first = table.snapshot_id
    table.delete().where("id in (1, 11)").execute()
    table.update().set("v", "0").where("id = 2").execute()

    assert table.count() == 18
    assert rows(table, "id", where="id < 4") == [(0,), (2,), (3,)]
    assert rows(table, "v", where=F.col("id") == 2) == [(0.0,)]
    assert len(table.scan(limit=5).collect()) == 5
    assert table.scan(snapshot_id=first).count() == 20
    located = table.scan(["id", "_file", "_pos"]).collect()
    assert {row["_file"] for row in located} <= {file.path for file in data_files(table)}
    assert table.to_arrow().num_rows == len(table.to_pandas()) == 18


def test_auto_mode_and_subquery(table):
    table.update().set("v", "-1").where(f"id > (SELECT avg(id) FROM {table.name})").with_options(
        mode="auto"
    ).execute()
    assert table.scan(where="v = -1").count() == 10


def test_rows_of_every_kind(lake, spark, partition_by):
    table = lake.create_table("kinds", SCHEMA, partition_by=partition_by)
    table.append(spark.createDataFrame([(1, "a", 1.0)], SCHEMA))
    table.append(pa.table({"id": [2], "name": ["b"], "v": [2.0]}))
    table.append(pa.record_batch({"id": [3], "name": ["c"], "v": [3.0]}))
    table.append(pd.DataFrame({"id": [4], "name": ["d"], "v": [4.0]}))
    table.append([{"id": 5, "name": None, "v": None}])
    assert rows(table) == [
        (1, "a", 1.0),
        (2, "b", 2.0),
        (3, "c", 3.0),
        (4, "d", 4.0),
        (5, None, None),
    ]
    assert summary(table)["total-records"] == "5"


def test_types_and_time_partitions(lake):
    schema = "ts TIMESTAMP, day DATE, price DECIMAL(10,2), tags ARRAY<STRING>, s STRUCT<a: INT>"
    table = lake.create_table("types", schema, partition_by=["days(ts)", "bucket(4, price)"])
    moment = dt.datetime(2024, 2, 29, 23, 30, tzinfo=dt.UTC)
    one = {
        "ts": moment,
        "day": dt.date(2024, 2, 29),
        "price": Decimal("9.99"),
        "tags": ["x"],
        "s": {"a": 1},
    }
    table.append([one, {**one, "ts": moment + dt.timedelta(hours=1)}])

    table.update().set("s.a", "7").set("price", "price + 1").where("ts < '2024-03-01'").execute()

    found = table.scan(["day", "price", "tags", "s.a"]).orderBy("price").collect()
    assert [tuple(row) for row in found] == [
        (dt.date(2024, 2, 29), Decimal("9.99"), ["x"], 1),
        (dt.date(2024, 2, 29), Decimal("10.99"), ["x"], 7),
    ]


def test_overwrite_and_truncate(table):
    table.overwrite_partitions([{"id": 0, "name": "name-0", "v": -1.0}])
    assert (0, "name-0", -1.0) in rows(table)
    table.overwrite([{"id": 7, "name": "x", "v": 0.0}])
    assert rows(table) == [(7, "x", 0.0)]
    assert table.truncate().rows_deleted == 1
    assert rows(table) == []


def test_replacements(lake, mode):
    schema = "id INT, day DATE, at TIMESTAMP, n TIMESTAMP_NTZ, p DECIMAL(9,2), s STRING"
    days = [dt.date(2024, 1, d) for d in (1, 2)]
    old = [
        {"id": i, "day": days[i % 2], "at": None, "n": None, "p": Decimal(i), "s": None}
        for i in range(6)
    ]
    table = lake.create_table(
        f"replaced_{mode[:4]}", schema, partition_by=["day"], properties={"write.delete.mode": mode}
    )
    table.append(old)
    predicate = table.partitions_of([old[0]])
    assert predicate == "`day` IN (DATE '2024-01-01')"
    assert table.replace_where(predicate, [old[0]]).execute().rows_deleted == 3
    with pytest.raises(ConstraintError, match="2024"):
        table.replace_where(predicate, [old[0], old[1]]).execute()
    result = table.replace_where("p >= 3 OR s IN (SELECT upper('x'))", [old[3]]).with_options(
        scope="rows"
    )
    assert result.execute().rows_deleted == 2
    assert table.replace_using(["id"], [old[3], old[4]]).execute().rows_deleted == 1
    table.evolve_partitions(["bucket(2, s)", "truncate(2, id)", "hours(at)", "n", "p"])
    table.overwrite_partitions([{**old[3], "s": None}])
    assert [i for i, *_ in rows(table)] == [0, 1, 3, 4]
    two = table.replace_where("p = 3 AND n IS NULL AND at IS NULL", [old[3]])
    two = two.and_where("id >= 20 AND id < 22 AND n = '2024-01-01' AND at IS NULL", [])
    assert two.with_options(scope="rows").execute().rows_deleted == 1
    assert leftovers(table) == set()


def test_statement_that_matches_nothing_makes_no_snapshot(table):
    before = len(snapshots(table))
    assert table.update().set("v", "1").where("id = 99").execute().snapshot_id is None
    assert table.delete().where("name = 'nobody'").execute().snapshot_id is None
    assert len(snapshots(table)) == before


def test_explain_shows_the_plan_and_changes_nothing(table, mode):
    before = table.snapshot_id
    plan = table.update().set("v", "0").where("id = 3").explain()
    assert plan.mode == mode
    assert plan.files_scanned >= 1
    assert plan.files_skipped >= 1
    assert "scan -> filter -> transform -> write -> coalesce -> commit" in str(plan)
    assert table.snapshot_id == before


def test_metadata_tables(table):
    assert table.snapshots().count() == table.history().count() == 2
    assert table.files().count() == len(data_files(table))


@pytest.mark.parametrize(
    ("condition", "error", "told"),
    [
        ("idd = 1", ColumnNotFoundError, "Did you mean 'id'"),
        ("id = = 1", ParseError, "(?i)syntax error at or near '='"),
        ("id + 1", TypeMismatchError, "BOOLEAN"),
        ("rand() < 0.5", StatementError, "not deterministic"),
        ("id / 0 = 1", StatementError, "(?i)divi"),
    ],
)
def test_bad_condition_is_our_error_and_changes_nothing(table_of, condition, error, told):
    table = table_of(SCHEMA, ROWS[:2])
    with pytest.raises(error, match=told) as caught:
        table.delete().where(condition).execute()
    assert "at org.apache" not in str(caught.value)
    assert len(snapshots(table)) == 1
    assert leftovers(table) == set()


def test_bad_rows_and_values_are_our_errors(lake, spark):
    table = lake.create_table("strict", "id BIGINT NOT NULL, n INT")
    with pytest.raises(SchemaMismatchError, match="lack 'n'"):
        table.append(spark.range(1))
    with pytest.raises(NullabilityError, match="'id'"):
        table.append([{"id": None, "n": 1}])
    table.append([{"id": 1, "n": 1}])
    with pytest.raises(TypeMismatchError, match="int but got string"):
        table.update().set("n", "'x'").execute()
    with pytest.raises(TypeMismatchError, match="out of range"):
        table.update().set("n", "id + 3000000000").execute()
    with pytest.raises(NullabilityError, match="'id'"):
        table.update().set("id", "nullif(id, 1)").execute()
    with pytest.raises(ColumnNotFoundError, match="'nn'"):
        table.scan(where="nn = 1").collect()
    assert rows(table) == [(1, 1)]
    assert leftovers(table) == set()


def test_running_session_is_found_without_being_given(spark, tmp_path):
    """api.md: without `spark=` the active session is used, classic or Connect."""
    with icefloe.connect(tmp_path / "lake") as lake:
        assert lake.spark is spark
        lake.create_table("t", "id BIGINT").append([{"id": 1}])
        assert lake.table("t").count() == 1


@pytest.mark.requirement("U35", "M12")
def test_sql(lake, spark, mode):
    """Statements, names and errors of `lake.sql` where plans are made elsewhere."""
    modes = ", ".join(f"'write.{kind}.mode' = '{mode}'" for kind in ("delete", "update", "merge"))
    lake.sql(f"CREATE TABLE s.t (id BIGINT, v STRING) TBLPROPERTIES ({modes})")
    lake.sql("INSERT INTO s.t VALUES (1, 'a'), (2, '{b}'), (3, 'c')")
    found = lake.sql(
        "SELECT t.id, '{x}' AS x FROM s.t JOIN src ON s.t.id = src.id", src=[{"id": 2}]
    )
    other = found.filter("id > 0")
    lake.sql("UPDATE s.t SET v = 'x' WHERE id IN (SELECT max(id) FROM s.t)")
    assert other.collect() == [(2, "{x}")]  # as it was
    merged = lake.sql(
        "MERGE INTO s.t USING (SELECT id + 2 AS id, 'n' AS v FROM src) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        src=[{"id": 1}, {"id": 2}],
    )
    assert (merged.rows_updated, merged.rows_inserted) == (1, 1)
    assert lake.sql("WITH d AS (SELECT 1 AS id) DELETE FROM s.t WHERE id IN (SELECT id FROM d)")
    found = lake.sql("SELECT id, v FROM s.t ORDER BY id")
    assert [tuple(row) for row in found.collect()] == [(2, "{b}"), (3, "n"), (4, "n")]
    assert lake.sql("SELECT count(*) FROM s.t.snapshots").first()[0] == 4
    assert lake.sql("SELECT count(*) FROM s.t TIMESTAMP AS OF current_timestamp()").first()[0] == 3
    assert "DELETE s.t" in lake.sql("EXPLAIN DELETE FROM s.t WHERE id = 2").first().plan
    assert "Plan" in lake.sql("EXPLAIN SELECT * FROM s.t").first().plan
    assert lake.sql("SHOW TABLES IN s").collect() == [("s", "t", False)]
    for text, place in (
        ("SELECT *\nFROM s.t WHERE id = = 1", (2, 21)),
        ("DELETE FROM s.t\nWHERE id = = 1", (2, 12)),
    ):
        with pytest.raises(ParseError) as raised:
            lake.sql(text)
        assert (raised.value.line, raised.value.column) == place
    assert not [view.name for view in spark.catalog.listTables() if "icefloe" in view.name]


def test_a_session_that_was_reset(table_of, lake, mode):
    """Statements and new scans read by field id again; a scan from before fails when it is run."""
    table = table_of(SCHEMA, ROWS, mode=mode)
    table.rename_column("name", "title")
    frame = table.scan(["id", "title"], where="id = 3")
    lake.spark.conf.unset(READS_BY_ID)
    with pytest.raises(Exception, match=READS_BY_ID):
        frame.collect()
    table.update().set("v", "v + 1").where("title = 'name-3'").execute()
    lake.spark.conf.unset(READS_BY_ID)
    table.compact()
    assert table.scan(["id", "title", "v"], where="id = 3").collect() == [(3, "name-3", 2.5)]


def test_a_merge_whose_matched_row_was_deleted(table_of, lake):
    """Whether it was matched is looked at by a job of its own."""
    table = table_of(SCHEMA, ROWS)
    deletes = ["id = 3", "id = 4"]

    def delete_first():
        if deletes:
            condition = deletes.pop()
            table.delete().where(condition).execute()

    source = [{"id": 4, "name": "x", "v": 0.0}, {"id": 99, "name": "new", "v": 1.0}]
    merge = table.merge(source, on=["id"]).when_not_matched().insert_all()
    lake.before_publish = delete_first
    with pytest.raises(ConflictError, match="source matched"):
        merge.execute()


@pytest.mark.requirement("L16", "L18", "L20")
def test_inline_rows_and_rows_of_files_that_are_deleted_inline(table_of, partition_by):
    table = table_of(
        SCHEMA,
        ROWS[:10],
        partition_by=partition_by,
        properties={"icefloe.inline.enabled": "true"},
    )
    table.insert(ROWS[10:])
    assert table.update().set("v", "v + id").where("id % 4 = 1").execute().mode == "inline"
    assert table.delete().where("length(name) = 7").execute().rows_deleted == 10
    left = [(f"name-{i}", i / 2 + (i if i % 4 == 1 else 0)) for i in range(10)]
    assert rows(table, "name", "v") == left
    table.merge([{"id": 3}, {"id": 30}], ["id"]).when_matched().delete().execute()
    table.flush()
    assert rows(table, "name", "v") == left[:3] + left[4:]
    assert len(table.iceberg.scan().to_arrow()) == 9


MANY = [{"id": 7 * i % 4000, "name": f"name-{i}", "v": i / 2} for i in range(4000)]


@pytest.mark.requirement("L11", "L12")
def test_a_btree_index_is_built_used_and_kept_up(table_of, spark, mode, partition_by):
    table = table_of(SCHEMA, MANY[:2000], mode=mode, partition_by=partition_by)
    built = table.create_index("by_id", "btree", ["id"])
    assert (built.files_covered, built.rows, dict(built.files_skipped)) == (built.files, 2000, {})
    table.append(MANY[2000:])
    [listed] = table.indexes().collect()
    assert listed.files_covered == listed.files == len(data_files(table))
    expected = {r["id"]: (r["name"], r["v"]) for r in MANY}

    source = spark.createDataFrame([(9, "new", 0.0), (9000, "x", 1.0)], SCHEMA)
    # The driver may look up the keys of a plain upsert itself; of this one, tasks do.
    merge = table.merge(source, ["id"]).when_matched().update({"name": "source.name", "v": "0.0"})
    merge = merge.when_not_matched().insert_all()
    assert "index by_id: the source's keys are looked up" in str(merge.explain())
    assert merge.execute().total_affected == 2
    expected |= {9: ("new", 0.0), 9000: ("x", 1.0)}
    held = table.upsert([{"id": 9001, "name": "y", "v": 2.0}], ["id"]).execute()
    assert held.total_affected == 1
    assert table.delete().where("id = 9001").execute().rows_deleted == 1
    assert table.update().set("v", "v + 1").where("id = 21").execute().rows_updated == 1
    expected[21] = (expected[21][0], expected[21][1] + 1)
    assert table.delete().where("id IN (28, 35, 5000)").execute().rows_deleted == 2
    del expected[28], expected[35]

    found = table.scan(where="id IN (9, 21, 28, 35, 9000)").collect()
    assert {r.id: (r.name, r.v) for r in found} == {k: expected[k] for k in (9, 21, 9000)}
    assert table.count("id BETWEEN 20 AND 40") == 19
    assert {r["id"]: (r["name"], r["v"]) for r in table.to_arrow().to_pylist()} == expected


@pytest.mark.requirement("L11", "L12")
def test_text_is_indexed_and_searched_on_workers(table_of):
    texts = ["red apples", "green apples and pears", "大学の図書館", None, "pears"]
    rows_ = [{"id": i, "name": text, "v": 0.0} for i, text in enumerate(texts)]
    table = table_of(SCHEMA, rows_[:3], rows_[3:])
    table.create_index("words", "bm25", "name")
    assert [r.id for r in table.search("words", "pears").collect()] == [4, 1]
    assert [r.id for r in table.search("words", "+apples -red").collect()] == [1]
    assert [r.id for r in table.search("words", "大学").collect()] == [2]
    table.delete().where("id = 4").execute()
    assert [r.id for r in table.search("words", "pears", limit=1).collect()] == [1]


def test_conditions_as_columns_skip_the_files_of_their_text(table, spark):
    """Trees of a classic session and of Spark Connect say the same."""
    source = spark.createDataFrame([(3, "new", 0.0)], SCHEMA)
    on = (F.col("target.id") == F.col("source.id")) & (F.col("target.v") < 2)
    pairs = [
        (table.delete().where("id = 3"), table.delete().where(F.col("id") == 3)),
        (
            table.update().set("v", "0").where("name IN ('name-3', 'x') AND v < 2.5"),
            table.update()
            .set("v", "0")
            .where(F.expr("name IN ('name-3', 'x')") & (F.col("v") < 2.5)),
        ),
        (
            table.merge(source, "target.id = source.id AND target.v < 2").when_matched().delete(),
            table.merge(source, on).when_matched().delete(),
        ),
    ]
    for text, column in pairs:
        of_text, of_column = text.explain(), column.explain()
        assert of_column.files_skipped == of_text.files_skipped > 0
        assert set(of_column.files) == set(of_text.files)
    assert table.count(F.col("id") < 10) == 10
    assert rows(table, "id", where=F.col("name").startswith("name-1") & (F.col("id") > 17)) == [
        (18,),
        (19,),
    ]
    assert pairs[2][1].execute().rows_deleted == 1
    assert table.count() == 19


def test_few_rows_of_several_tasks_keep_their_order(spark):
    """The first of the source rows that match one row is the first in the source."""
    rows = spark.range(0, 40_000, 1, 8).filter("id >= 0")
    for _ in range(3):
        assert few_rows(rows, 50_000, 2**23).column("id").to_pylist() == [*range(40_000)]
