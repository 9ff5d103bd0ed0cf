"""An upsert of rows that the driver holds, by an index of their key: no Spark job, the same rows."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from icefloe.errors import CardinalityError, ConflictError, NullabilityError
from support.foreign_files import equality_delete, publish
from support.indexed_tables import sidecar_of, warnings_of_icefloe
from support.tables import data_files, rows, snapshots, summary

KEYS = {
    "BIGINT": (pa.int64(), lambda n: n * 7919 % 5003 - 2000),
    "INT": (pa.int32(), lambda n: n * 7919 % 5003 - 2000),
    "DATE": (pa.date32(), lambda n: date(1969, 6, 1) + timedelta(days=n * 31 % 5003)),
    "TIMESTAMP": (
        pa.timestamp("us", "UTC"),
        lambda n: datetime(1969, 12, 31, 23, tzinfo=UTC) + timedelta(seconds=n * 77 % 5003),
    ),
    "DECIMAL(9,2)": (pa.decimal128(9, 2), lambda n: Decimal(n * 7919 % 5003 - 2000).scaleb(-2)),
}
LAYOUTS: dict[str, tuple[str, ...]] = {
    "unpartitioned": (),
    "region": ("region",),
    "bucket": ("bucket(3, k)",),
}
QUICK = [("BIGINT", "region")]
VARIANTS = [
    pytest.param(
        kind, layout, id=f"{kind}-{name}", marks=[] if (kind, name) in QUICK else pytest.mark.slow
    )
    for kind in KEYS
    for name, layout in LAYOUTS.items()
]


def arrow(kind: str, numbers: list[int | None], text: str) -> pa.Table:
    """Rows with these keys; None is a NULL key."""
    type_, key = KEYS[kind]
    return pa.table(
        {
            "k": pa.array([None if n is None else key(n) for n in numbers], type_),
            "region": pa.array([f"r{(n or 0) % 3}" for n in numbers]),
            "v": pa.array([text] * len(numbers)),
        }
    )


def is_local(merge) -> bool:
    return "the driver looks the source's keys up" in str(merge.explain())


def content(table) -> list[tuple]:
    return sorted(map(tuple, table.scan(["k", "region", "v"]).collect()), key=str)


@pytest.mark.requirement("L12", "X03", "X05")
@pytest.mark.parametrize(("kind", "partition_by"), VARIANTS)
@pytest.mark.every_variant
def test_upserts_are_those_of_a_table_without_an_index(table_of, kind, partition_by, jobs):
    """On tables with NULL keys, deletes in two delete files, and files without a match."""
    schema = f"k {kind}, region STRING, v STRING"
    tables = [table_of(schema, partition_by=partition_by) for _ in range(2)]
    for table in tables:
        table.append(arrow(kind, [*range(400), None], "a"))
        table.append(arrow(kind, [*range(400, 900), None], "b"))
        table.append(arrow(kind, list(range(4000, 4050)), "far"))
    indexed, plain = tables
    indexed.create_index("by_k", "btree", "k")
    chosen = random.Random(kind)
    for step in range(4):
        numbers: list[int | None] = chosen.sample(range(1100), 60)
        source = arrow(kind, [*numbers, None, None], f"step {step}")
        merge = indexed.upsert(source, ["k"])
        assert is_local(merge)
        before = jobs()
        ours = merge.execute()
        assert jobs() == before
        theirs = plain.upsert(source, ["k"]).execute()
        assert (ours.rows_updated, ours.rows_inserted, ours.clauses) == (
            theirs.rows_updated,
            theirs.rows_inserted,
            theirs.clauses,
        )
        assert ours.files_scanned == 0
        assert content(indexed) == content(plain)
        ours_said, theirs_said = summary(indexed), summary(plain)
        for name in ("operation", "spark.merge-into.num-target-rows-matched-updated"):
            assert ours_said[name] == theirs_said[name]
        for table in tables:
            table.delete().where(f"v <> 'far' AND pmod(hash(k), 9) = {step}").execute()
    [listed] = indexed.indexes().collect()
    assert listed.files_covered == listed.files


def test_rows_with_one_key_are_all_replaced(table_of):
    """The key need not be unique in the table."""
    table = table_of("k BIGINT, region STRING, v STRING")
    table.append(arrow("BIGINT", [1, 1, 2, 3], "a"))
    table.append(arrow("BIGINT", [1, 4], "b"))
    table.create_index("by_k", "btree", "k")
    result = table.upsert(arrow("BIGINT", [1, 9], "new"), ["k"]).execute()
    assert (result.rows_updated, result.rows_inserted) == (3, 1)
    values = [row.v for row in table.scan(["v"]).collect()]
    assert sorted(values) == ["a", "a", "b", "new", "new", "new", "new"]


def test_a_row_that_two_source_rows_match_is_an_error(table_of):
    table = table_of("k BIGINT, region STRING, v STRING")
    table.append(arrow("BIGINT", [1, 2], "a"))
    table.create_index("by_k", "btree", "k")
    before = len(snapshots(table))
    key = KEYS["BIGINT"][1](2)
    with pytest.raises(CardinalityError, match=f"keys: {key}"):
        table.upsert(arrow("BIGINT", [2, 2, 5], "new"), ["k"]).execute()
    assert len(snapshots(table)) == before
    twice_new = table.upsert(arrow("BIGINT", [7, 7], "new"), ["k"]).execute()
    assert (twice_new.rows_updated, twice_new.rows_inserted) == (0, 2)


def test_null_in_a_required_column_is_refused(table_of):
    table = table_of("k BIGINT, region STRING, v STRING NOT NULL")
    table.append(arrow("BIGINT", [1, 2], "a"))
    table.create_index("by_k", "btree", "k")
    source = arrow("BIGINT", [1, 3], "x").set_column(2, "v", pa.array(["x", None]))
    with pytest.raises(NullabilityError, match="'v' is required"):
        table.upsert(source, ["k"]).execute()
    assert len(snapshots(table)) == 1


@pytest.mark.parametrize("change", ["delete", "update", "append", "elsewhere"])
def test_what_others_commit_in_between(lake, table_of, change):
    """As for every MERGE: a matched row that is deleted, or a new row with a key, conflicts."""
    table = table_of("k BIGINT, region STRING, v STRING")
    table.append(arrow("BIGINT", list(range(100)), "a"))
    table.create_index("by_k", "btree", "k")
    key = KEYS["BIGINT"][1]
    other = lake.table(table.name)

    def commit() -> None:
        lake.before_publish = lambda: None
        match change:
            case "delete":
                other.delete().where(f"k = {key(5)}").execute()
            case "update":
                other.update().set("v", "'other'").where(f"k = {key(5)}").execute()
            case "append":
                other.append(arrow("BIGINT", [200], "other"))
            case _:
                other.delete().where(f"k = {key(50)}").execute()

    lake.before_publish = commit
    merge = table.upsert(arrow("BIGINT", [5, 200], "new"), ["k"])
    try:
        if change == "elsewhere":
            assert merge.execute().total_affected == 2
        else:
            with pytest.raises(ConflictError):
                merge.execute()
    finally:
        lake.before_publish = lambda: None
    again = merge.execute()
    assert (again.rows_updated, again.rows_inserted) == {
        "delete": (0, 2),
        "update": (1, 1),
        "append": (2, 0),
        "elsewhere": (2, 0),
    }[change]
    found = {row.k: row.v for row in table.scan(where=f"k IN ({key(5)}, {key(200)})").collect()}
    assert found == {key(5): "new", key(200): "new"}


def test_sidecars_that_are_missing_or_damaged_and_equality_deletes_leave_it_to_spark(
    lake, table_of
):
    table = table_of("k BIGINT, region STRING, v STRING")
    table.append(arrow("BIGINT", list(range(50)), "a"))
    table.create_index("by_k", "btree", "k")
    merge = table.upsert(arrow("BIGINT", [1, 60], "new"), ["k"])
    [file] = data_files(table)
    sidecar = sidecar_of(table, "by_k", file)
    whole = sidecar.read_bytes()
    sidecar.write_bytes(whole[: len(whole) // 2])
    with warnings_of_icefloe() as warnings:
        assert not is_local(merge)
    assert warnings
    sidecar.unlink()
    assert not is_local(merge)
    sidecar.write_bytes(whole)
    assert is_local(merge)
    publish(lake, table, deletes=[equality_delete(table, [{"k": KEYS["BIGINT"][1](1)}])])
    assert not is_local(merge)
    result = merge.execute()
    assert (result.rows_updated, result.rows_inserted) == (0, 2)


def test_statements_that_need_more_than_the_rows_are_for_spark(table_of):
    table = table_of("k BIGINT, region STRING, v STRING")
    table.append(arrow("BIGINT", list(range(50)), "a"))
    table.create_index("by_k", "btree", "k")
    source = arrow("BIGINT", [1, 60], "new")
    assert is_local(table.upsert(source, ["k"]))
    assert is_local(table.upsert(source.to_pylist(), ["K"]))
    assert is_local(table.upsert(source.to_batches()[0], ["k"]))
    for on in (
        "target.k = source.k",
        "source.K = (`target`.k)",
        "(TARGET.k=source.k) -- the key",
    ):
        assert is_local(table.upsert(source, on)), on
    for on in (
        "target.k = source.k AND true",
        "target.k = source.k OR false",
        "target.k <=> source.k",
        "target.k = source.k + 0",
        "target.k = CAST(source.region AS BIGINT)",
        "target.region = source.v",
        "target.k = target.k",
        "target.k = 1",
        "target.k = source.k -- \\\nAND false",
    ):
        assert not is_local(table.upsert(source, on)), on
    merge = table.merge(source, ["k"])
    others = [
        table.upsert(source, ["k"]).with_options(mode="copy-on-write"),
        table.upsert(source, ["k"]).with_options(duplicates="first"),
        table.upsert(source, ["k", "region"]),
        table.upsert(source.append_column("extra", pa.array([1, 2])), ["k"]),
        table.upsert(source.set_column(0, "k", source["k"].cast(pa.int32())), ["k"]),
        merge.when_matched("source.v = 'new'").update_all().when_not_matched().insert_all(),
        merge.when_matched().delete().when_not_matched().insert_all(),
        merge.when_matched().update_all(),
    ]
    assert not any(map(is_local, others))
    table.set_properties({"icefloe.inline.enabled": "true"})
    assert not is_local(table.upsert(source, ["k"]))


def test_an_upsert_that_fails_while_it_writes_leaves_no_file(lake, table_of):
    table = table_of("k BIGINT, region STRING, v STRING")
    table.append(arrow("BIGINT", list(range(50)), "a"))
    table.create_index("by_k", "btree", "k")
    before = sorted(str(p) for p in _files(table))

    def fail() -> None:
        raise OSError("the disk is full")

    lake.before_publish = fail
    try:
        with pytest.raises(OSError, match="disk is full"):
            table.upsert(arrow("BIGINT", [1, 60], "new"), ["k"]).execute()
    finally:
        lake.before_publish = lambda: None
    assert sorted(str(p) for p in _files(table)) == before
    assert rows(table, "v") == [("a",)] * 50


def _files(table):
    folder = Path(table.location.removeprefix("file://"))
    return [p for p in folder.rglob("*.parquet") if p.is_file()]
