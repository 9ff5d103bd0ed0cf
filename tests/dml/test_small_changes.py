"""Changes of few rows in few small files, which the driver makes without a Spark job.

Each program runs on two tables of the same files: the driver changes one, Spark the other.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from conftest import leave_small_changes_to_spark
from icefloe import results
from icefloe.commands import update_delete
from icefloe.commands.merge import held_source, local
from icefloe.errors import CardinalityError, ConflictError, NullabilityError, StatementError
from icefloe.scan import arrow_rows
from support.foreign_files import equality_delete, publish
from support.tables import data_files, delete_files, rows, snapshots, summary

pytestmark = pytest.mark.changed_by("driver")

SCHEMA = "id BIGINT, region STRING, n INT, price DECIMAL(9,2), day DATE, ts TIMESTAMP, x DOUBLE, b BOOLEAN"
LAYOUTS = [(), ("region",), ("bucket(3, id)",), ("truncate(1, region)", "months(day)")]


def row(number: int) -> dict:
    chosen = random.Random(number)

    def some(value):
        return None if chosen.random() < 0.15 else value

    return {
        "id": some(number),
        "region": some(chosen.choice(["us", "eu", "ap", "Ünï"])),
        "n": some(chosen.randint(-5, 5)),
        "price": some(Decimal(chosen.randint(-500, 500)).scaleb(-2)),
        "day": some(date(2024, chosen.randint(1, 3), 5)),
        "ts": some(datetime(2024, 1, chosen.randint(1, 9), 12, tzinfo=UTC)),
        "x": some(chosen.choice([0.5, -0.0, 0.0, float("nan"), 1e300])),
        "b": some(chosen.random() < 0.5),
    }


CONDITIONS = [
    "id = 7",
    "id IN (3, 17, 33) AND region <> 'us'",
    "NOT (n > 2) OR price < 1.5",
    "day = DATE '2024-02-05' AND b = true",
    "region IS NULL OR id IS NULL",
    "x >= 1.0",  # NaN is the largest
    "x = 0.0",
    "region = 'Ünï'",
    "id = 100000",
    "region LIKE 'e%'",
    None,
]
ASSIGNMENTS = [
    {"n": 5},
    {"region": "'eu'", "price": "1.25"},
    {"day": "DATE '2025-01-01'", "b": True, "x": 2.5},
    {"n": "NULL"},
]


def twins(table_of, layout):
    """Two tables of the same rows, in two files or more, with rows deleted in one of them."""
    tables = [table_of(SCHEMA, partition_by=layout) for _ in range(2)]
    for table in tables:
        table.append([row(n) for n in range(20)])
        table.append([row(n) for n in range(20, 40)])
        table.delete().where("id = 9 OR n = -5").execute()
    return tables


@pytest.fixture
def by_spark():
    """Runs a statement with Spark."""

    def run(builder):
        with pytest.MonkeyPatch.context() as patch:
            leave_small_changes_to_spark(patch)
            return builder().execute()

    return run


def counts(result: results.DmlResult) -> dict[str, object]:
    """What a result says of rows; how many files new rows are in is up to Spark's tasks."""
    values = asdict(result)
    return {name: values[name] for name in ("operation", "mode", "clauses") if name in values} | {
        name: value for name, value in values.items() if name.startswith("rows_")
    }


@pytest.fixture
def many_files(monkeypatch):
    """The driver reads as many files as a partitioned table has."""
    monkeypatch.setattr(arrow_rows, "MOST_FILES", 1000)


@pytest.mark.requirement("U01", "U08", "U12", "X03")
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout) or "none")
def test_the_driver_changes_the_rows_that_spark_changes(
    table_of, by_spark, jobs, many_files, layout
):
    ours, theirs = twins(table_of, layout)
    chosen = random.Random(str(layout))
    for condition in chosen.sample(CONDITIONS, len(CONDITIONS)):
        changes = chosen.choice([*ASSIGNMENTS, {}])

        def statement(table, condition=condition, changes=changes):
            builder = table.update() if changes else table.delete()
            for name, value in changes.items():
                builder = builder.set(name, value)
            return builder.where(condition) if condition else builder

        if condition is None and not changes:
            continue
        before = jobs()
        mine = statement(ours).execute()
        assert jobs() == before, (condition, changes)
        expected = by_spark(lambda: statement(theirs))
        assert str(rows(ours)) == str(rows(theirs)), (condition, changes)
        assert counts(mine) == counts(expected), (condition, changes)
    assert str(sorted(map(str, ours.scan().collect()))) == str(
        sorted(map(str, theirs.scan().collect()))
    )


@pytest.mark.requirement("U10", "U11")
def test_files_are_under_the_specs_that_spark_writes_them_under(table_of, by_spark, many_files):
    ours, theirs = twins(table_of, ("region",))
    for table in (ours, theirs):
        table.evolve_partitions(["bucket(2, id)"])
    ours.update().set("n", 100).where("id = 7 OR id = 8").execute()
    by_spark(lambda: theirs.update().set("n", 100).where("id = 7 OR id = 8"))
    assert str(rows(ours)) == str(rows(theirs))
    for files in (data_files, delete_files):
        specs = [
            sorted((f.spec_id, str(f.file.partition), f.rows) for f in files(table))
            for table in (ours, theirs)
        ]
        assert specs[0] == specs[1]


@pytest.mark.requirement("D15")
def test_a_file_that_loses_its_last_row_is_removed_with_its_deletes(table_of, jobs):
    table = table_of(
        "id BIGINT, n INT", [{"id": 1, "n": 1}, {"id": 2, "n": 2}], [{"id": 3, "n": 3}]
    )
    table.delete().where("n = 1").execute()
    before = jobs()
    removed = table.delete().where("n = 2").execute()
    assert (removed.rows_deleted, removed.data_files_removed, removed.delete_files_removed) == (
        1,
        1,
        1,
    )
    updated = table.update().set("n", 4).where("n = 3").execute()
    assert (updated.data_files_removed, updated.data_files_added) == (1, 1)
    assert jobs() == before
    assert rows(table) == [(3, 4)]
    assert not delete_files(table)


@pytest.mark.requirement("X09")
def test_a_statement_without_matches_makes_no_snapshot(table_of):
    table = table_of("id BIGINT, n INT", [{"id": 1, "n": 1}, {"id": 3, "n": None}])
    before = snapshots(table)
    assert table.delete().where("id = 2").execute().snapshot_id is None
    assert table.update().set("n", 1).where("n <> 1").execute().snapshot_id is None
    assert table.upsert([], ["id"]).execute().snapshot_id is None
    assert snapshots(table) == before


def test_spark_changes_what_the_driver_cannot(table_of, jobs):
    """Conditions and values of which only Spark knows the meaning, other modes, many rows."""
    table = table_of("id BIGINT, n INT", [{"id": i, "n": i} for i in range(40)])
    for statement in (
        lambda: table.update().set("n", "n + 1").where("id = 1"),
        lambda: table.delete().where("abs(id) = 2"),
        lambda: table.delete().where("id = 3").with_options(mode="copy-on-write"),
        lambda: table.delete().where("id = 4").with_options(mode="auto"),
    ):
        before = jobs()
        assert statement().execute().total_affected == 1
        assert jobs() > before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_delete, "MOST_ROWS", 5)
        before = jobs()
        assert table.delete().where("id BETWEEN 10 AND 15").execute().rows_deleted == 6
        assert jobs() > before
        before = jobs()
        assert table.delete().where("id BETWEEN 20 AND 24").execute().rows_deleted == 5
        assert jobs() == before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_rows, "MOST_FILES", 0)
        before = jobs()
        assert table.delete().where("id = 30").execute().rows_deleted == 1
        assert jobs() > before


@pytest.mark.requirement("X05", "D16", "T33")
def test_rows_below_equality_deletes_are_left_to_spark(lake, table_of, jobs):
    table = table_of("id BIGINT, n INT", [{"id": i, "n": i} for i in range(5)])
    publish(lake, table, deletes=[equality_delete(table, [{"id": 1}])])
    before = jobs()
    assert table.update().set("n", 7).where("id < 3").execute().rows_updated == 2
    assert table.upsert(
        pa.table({"id": [1, 2], "n": pa.array([8, 8], pa.int32())}), ["id"]
    ).execute()
    assert jobs() > before
    assert rows(table) == [(0, 7), (1, 8), (2, 8), (3, 3), (4, 4)]


@pytest.mark.requirement("X10")
def test_a_required_column_stays_so(table_of):
    table = table_of("id BIGINT NOT NULL, n INT", [{"id": 1, "n": 1}])
    before = snapshots(table)
    with pytest.raises(NullabilityError, match="id"):
        table.update().set("id", None).execute()
    with pytest.raises(NullabilityError, match="id"):
        table.upsert([{"id": None, "n": 1}], ["id"]).execute()
    assert snapshots(table) == before


@pytest.mark.requirement("U13")
def test_a_row_added_concurrently_is_a_conflict_and_one_elsewhere_is_not(lake, table_of):
    table = table_of(
        "id BIGINT, region STRING", [{"id": 1, "region": "us"}], partition_by=("region",)
    )

    def beside(rows, statement):
        lake.before_publish = lambda: (
            setattr(lake, "before_publish", lambda: None),
            table.append(rows),
        )
        return statement.execute()

    beside([{"id": 2, "region": "eu"}], table.update().set("id", 5).where("region = 'us'"))
    with pytest.raises(ConflictError):
        beside([{"id": 5, "region": "us"}], table.delete().where("region = 'us' AND id = 5"))
    assert rows(table) == [(2, "eu"), (5, "us"), (5, "us")]


def test_explain_says_that_the_driver_reads_the_files(table_of):
    table = table_of("id BIGINT, n INT", [{"id": 1, "n": 1}])
    assert "few and small" in str(table.update().set("n", 2).where("id = 1").explain())
    assert "few and small" in str(table.upsert([{"id": 1, "n": 1}], ["id"]).explain())


# -------------------------------------------------------------------------------------------------
# Upserts

KEYS = {
    "BIGINT": (pa.int64(), lambda n: n - 50),
    "INT": (pa.int32(), lambda n: n - 50),
    "STRING": (pa.string(), lambda n: f"kéy {n:x}"),
    "DATE": (pa.date32(), lambda n: date.fromordinal(719_100 + n)),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), lambda n: datetime.fromtimestamp(n - 50, UTC)),
    "DECIMAL(30,2)": (pa.decimal128(30, 2), lambda n: Decimal(n - 50).scaleb(-2)),
}


@pytest.mark.requirement("M01", "M11", "D12", "X03")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("INT", "DATE", "TIMESTAMP")))
        for kind in KEYS
    ],
)
def test_an_upsert_equals_that_of_spark(table_of, by_spark, jobs, many_files, kind):
    """On tables with NULL keys, keys in several rows, deletes, and layouts by the key."""
    type_, key = KEYS[kind]
    chosen = random.Random(kind)
    layout = chosen.choice([(), ("region",), ("bucket(3, k)",)])

    def arrow(numbers, text):
        return pa.table(
            {
                "k": pa.array([None if n is None else key(n) for n in numbers], type_),
                "region": pa.array([None if n is None else f"r{n % 2}" for n in numbers]),
                "v": pa.array([text] * len(numbers)),
            }
        )

    ours, theirs = (
        table_of(f"k {kind}, region STRING, v STRING", partition_by=layout) for _ in "12"
    )
    for table in (ours, theirs):
        table.append(arrow([*range(60), None, 3], "a"))
        if layout == ():
            table.append(arrow(range(60, 90), "b"))
        table.delete().where("v = 'b' AND region = 'r1'").execute()
    for step in range(3):
        source = arrow([*chosen.sample(range(120), 12), None, None], f"step {step}")
        before = jobs()
        mine = ours.upsert(source, "target.k = source.k" if step == 1 else ["k"]).execute()
        assert jobs() == before
        expected = by_spark(lambda source=source: theirs.upsert(source, ["k"]))
        assert counts(mine) == counts(expected)
        same = [k for k in summary(ours) if k.startswith("spark.merge-into")]
        assert [summary(ours)[k] for k in same] == [summary(theirs)[k] for k in same]
        assert sorted(map(str, ours.scan().collect())) == sorted(map(str, theirs.scan().collect()))


@pytest.mark.requirement("M01", "X03")
@pytest.mark.parametrize("most", ["rows", "bytes", None])
def test_an_upsert_of_rows_that_spark_keeps(table_of, by_spark, spark, monkeypatch, most):
    """Wide sources are measured by Spark; where few small files are left, the driver reads them."""
    monkeypatch.setattr(held_source, "_MOST_BYTES", 0)
    if most is not None:
        monkeypatch.setattr(local, f"_MOST_KEPT_{most.upper()}", 3)
    ours, theirs = (table_of(SCHEMA, partition_by=("region",)) for _ in "12")
    for table in (ours, theirs):
        table.append([{**row(n), "id": n} for n in range(1, 40)])
        table.delete().where("id = 9").execute()
    new = [{**row(n), "id": n, "n": 77} for n in (3, 9, 17, 50)] + [{**row(60), "id": None}]
    source = spark.createDataFrame(new, ours.schema).repartition(3)
    merge = ours.upsert(source, "target.id = source.id")
    assert (merge.explain().join == "driver") is (most is None)
    mine, expected = merge.execute(), by_spark(lambda: theirs.upsert(source, ["id"]))
    assert counts(mine) == counts(expected)
    assert (mine.rows_updated, mine.rows_inserted) == (2, 3)
    assert sorted(map(str, ours.scan().collect())) == sorted(map(str, theirs.scan().collect()))


@pytest.mark.requirement("M01")
@pytest.mark.parametrize("most_bytes", [0, 2**20])
def test_a_source_with_two_columns_of_one_name_is_refused(table_of, spark, monkeypatch, most_bytes):
    monkeypatch.setattr(held_source, "_MOST_BYTES", most_bytes)
    table = table_of("id BIGINT, n INT", [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    source = spark.sql("SELECT 2L AS id, 22 AS n, 'a' AS x, 'b' AS x")
    with pytest.raises(StatementError, match="column 'x' twice"):
        table.upsert(source, "target.id = source.id").execute()
    assert sorted(map(tuple, table.scan().collect())) == [(1, 1), (2, 2)]


@pytest.mark.requirement("M01")
def test_a_merge_in_sql_that_is_an_upsert_is_made_by_the_driver(lake, table_of, jobs):
    table = table_of("id BIGINT, n INT", [{"id": i, "n": 0} for i in range(5)])
    target = table.name
    source = [{"id": 3, "n": 33}, {"id": 9, "n": 9}, {"id": None, "n": 1}]
    merge = (
        "MERGE INTO {} AS t USING {} AS s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT * WHEN MATCHED THEN UPDATE SET *"
    )
    rows_of = pa.Table.from_pylist(source, pa.schema([("id", pa.int64()), ("n", pa.int32())]))
    before = jobs()
    done = lake.sql(merge.format(target, "changes"), changes=rows_of)
    assert jobs() == before + 1  # which reads the source
    assert (done.rows_updated, done.rows_inserted, done.clauses) == (1, 2, (2, 1))
    again = f"(SELECT id, n + 1 AS n FROM {target} WHERE id = 3)"
    done = lake.sql(merge.format(target, again))  # reads the table: Spark runs it
    assert jobs() > before + 2
    assert (done.rows_updated, done.rows_inserted) == (1, 0)
    expected = [(0, 0), (1, 0), (2, 0), (3, 34), (4, 0), (9, 9), (None, 1)]
    assert sorted(map(tuple, table.scan().collect()), key=str) == sorted(expected, key=str)


@pytest.mark.requirement("M02")
def test_a_row_matched_twice_is_refused(table_of):
    table = table_of("id BIGINT, n INT", [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    before = snapshots(table)
    twice = [{"id": 1, "n": 5}, {"id": 1, "n": 6}, {"id": 3, "n": 3}, {"id": 3, "n": 4}]
    with pytest.raises(CardinalityError, match=r"\b1\b"):
        table.upsert(twice, ["id"]).execute()
    assert snapshots(table) == before
    assert table.upsert(twice[2:], ["id"]).execute().rows_inserted == 2
