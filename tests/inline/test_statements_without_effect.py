"""Statements that change nothing: no transaction that writes, no file, no snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake, Table
from icefloe.lake import open_catalog
from support.tables import row, scanned_rows
from support.watched_calls import Watch, watching

SCHEMA = "id BIGINT, region STRING, n INT"
INLINE = {"icefloe.inline.enabled": "true"}
READS = ("SELECT", "BEGIN", "PRAGMA", "SHOW", "ROLLBACK", "CONNECT", "INFO", "READ", "LIST")
LOCKS = ("IMMEDIATE", "PG_ADVISORY", " FOR UPDATE", " FOR SHARE")


@pytest.fixture
def table(spark: SparkSession, place: str) -> Iterator[Table]:
    """Rows 1 and 2 in a file, row 2 deleted there; rows 3 and 4 inline."""
    uri, _, beside = place.partition(" ")
    catalog = open_catalog(beside or uri, None, {"type": "sql", "uri": uri} if beside else {})
    with Lake(catalog, spark) as lake:
        made = lake.create_table("shop.t", SCHEMA, properties=INLINE)
        made.append([row(1), row(2)])
        made.insert([row(3, "eu", 3), row(4, None, None)])
        assert made.delete().where("id = 2").execute().mode == "inline"
        yield made


def replace_no_rows(table: Table) -> object:
    return table.replace_where("id = 9", []).with_options(scope="rows").execute()


def merge_without_matches(table: Table) -> object:
    return table.merge([row(9)], on="target.id = source.id").when_matched().update_all().execute()


# True: Spark runs no job of it either.
STATEMENTS: dict[str, tuple[Callable[[Table], object], bool]] = {
    "insert": (lambda t: t.insert([]), True),
    "insert with a key": (lambda t: t.insert([], idempotency_key="k"), True),
    "append": (lambda t: t.append([]), True),
    "update, no row": (lambda t: t.update().set("n", "5").where("id = 9").execute(), True),
    "update, the deleted row": (lambda t: t.update().set("n", "5").where("id = 2").execute(), True),
    "update, FALSE": (lambda t: t.update().set("n", "5").where("FALSE").execute(), True),
    "update by Spark": (
        lambda t: t.update().set("n", "n + 1").where("length(region) > 9").execute(),
        False,
    ),
    "update, copy-on-write": (
        lambda t: t.update().set("n", "5").where("id = 9 OR length(region) > 9")
        .with_options(mode="copy-on-write").execute(),
        False,
    ),
    "delete, no row": (lambda t: t.delete().where("id = 9").execute(), True),
    "delete, NULL": (lambda t: t.delete().where("id = NULL").execute(), True),
    "delete, again": (lambda t: t.delete().where("id = 2").execute(), True),
    "delete by Spark": (lambda t: t.delete().where("length(region) > 9").execute(), False),
    "merge, no source": (lambda t: t.upsert([], ["id"]).execute(), False),
    "merge, no match": (merge_without_matches, False),
    "replace where, scope rows": (replace_no_rows, False),
}  # fmt: skip


@pytest.mark.requirement("X09")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_that_changes_nothing_writes_nothing(table, jobs, name):
    run, is_local = STATEMENTS[name]
    before = table.iceberg.metadata_location, scanned_rows(table), table.inline
    ran = jobs()
    assert writes_of(lambda: run(table)) == []
    assert (jobs() == ran) or not is_local
    after = table.iceberg.metadata_location, scanned_rows(table), table.inline
    assert after[:2] == before[:2]
    assert (after[2].rows, after[2].deletes) == (before[2].rows, before[2].deletes) == (2, 1)


def writes_of(run: Callable[[], object]) -> list[str]:
    """The calls to the database and to files that do more than read."""
    with watching(Watch()) as watch:
        run()
    return [call for call in watch.calls if not only_reads(call.upper())]


def only_reads(call: str) -> bool:
    return call.startswith(READS) and not any(lock in call for lock in LOCKS)


@pytest.mark.requirement("X09")
def test_a_flush_of_nothing_writes_nothing(table):
    table.flush()
    table.truncate()
    for lake in (table._lake, icefloe.Lake(table._lake.catalog, table._lake.spark)):
        again = lake.table(table.name)
        before = again.iceberg.metadata_location
        for run in (again.flush, again.truncate):
            assert writes_of(run) == []
        assert again.iceberg.metadata_location == before
    assert "COMMIT" in writes_of(lambda: table.insert([row(5)]))
