"""Tables with replaced partitions, rows and keys: five engines read what we read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from support.foreign_readers import disagreements, icefloe_rows

SCHEMA = "id BIGINT, region STRING, at TIMESTAMP, n INT"
START = datetime(2024, 1, 1, tzinfo=UTC)


def row(i, n=0):
    at = None if i % 7 == 0 else START + timedelta(hours=9 * i)
    return {"id": i, "region": ["eu", "us", None][i % 3], "at": at, "n": n}


def batch(*ids, n=0):
    return [row(i, n) for i in ids]


STATEMENTS = {
    "partitions": lambda t: t.replace_where("region = 'eu'", batch(30, 33, n=1)),
    "null partition": lambda t: t.replace_where("region IS NULL", batch(32, n=1)),
    "several": lambda t: t.replace_where("region = 'us'", batch(31, 34, n=2)).and_where(
        "region IS NULL", batch(35, 38, n=2)
    ),
    "rows": lambda t: t.replace_where("id % 4 = 2", batch(34, 38, n=3)).with_options(scope="rows"),
    "keys": lambda t: t.replace_using(["id"], batch(31, 38, 40, 41, n=4)),
    "nothing new": lambda t: t.replace_where("id < 34", []).with_options(scope="rows"),
}


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_foreign_readers_agree_after_each_replacement(table_of, mode):
    table = table_of(SCHEMA, batch(*range(12)), mode=mode, partition_by=("region",))
    table.delete().where("id IN (3, 4)").execute()
    for name, statement in STATEMENTS.items():
        before = len(icefloe_rows(table))
        result = statement(table).execute()
        expected = icefloe_rows(table)
        assert len(expected) == before - result.rows_deleted + result.rows_inserted, name
        assert disagreements(table, expected) == {}, name


@pytest.mark.parametrize(
    "mode", ["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.slow)]
)
def test_foreign_readers_agree_on_partitions_overwritten_over_specs(table_of, mode):
    table = table_of(SCHEMA, batch(*range(8)), mode=mode)
    table.evolve_partitions(("region", "days(at)"))
    table.append(batch(*range(8, 16)))
    table.overwrite_partitions(batch(1, 7, n=1))
    assert disagreements(table) == {}
    table.evolve_partitions(("bucket(3, id)",))
    table.overwrite_partitions(batch(20, n=2))
    assert disagreements(table) == {}
