"""Schemas, partition specs and current snapshots that either engine changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import Row

from support.two_engines import Both, Values, plain

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]

EVENTS = """
    id BIGINT, region STRING, n INT, share FLOAT, price DECIMAL(9, 2), at TIMESTAMP,
    place STRUCT<city: STRING>, points ARRAY<STRUCT<x: INT>>
"""


def event(number: int) -> Values:
    return {
        "id": number,
        "region": ("eu", "us", None)[number % 3],
        "n": number,
        "share": number / 4,
        "price": None,
        "at": datetime(2024, 1, 1 + number % 3, number % 24),
        "place": Row(f"city {number}") if number % 4 else None,
        "points": [Row(number)] * (number % 3),
    }


def test_we_follow_the_schema_and_specs_that_the_reference_evolved(both: MakeBoth) -> None:
    t = both(EVENTS).made_by_reference(("region",))
    t.insert(map(event, range(6)))
    t.sql("DELETE FROM {t} WHERE id = 1")
    for change in (
        "ALTER COLUMN n TYPE BIGINT",
        "ALTER COLUMN share TYPE DOUBLE",
        "ALTER COLUMN price TYPE DECIMAL(20, 2)",
        "RENAME COLUMN n TO amount",
        "ADD COLUMN n STRING AFTER id",  # an old name that means another column now
        "ADD COLUMN place.country STRING",
        "ADD COLUMN points.element.y DOUBLE FIRST",
        "REPLACE PARTITION FIELD region WITH bucket(4, id)",
    ):
        t.sql(f"ALTER TABLE {{t}} {change}")
    t.schema = _schema_of(t)
    t.expect(lambda r: None if r["id"] == 1 else _widened(r))
    t.check()

    t.insert(_evolved(i) for i in range(6, 9))
    t.sql("ALTER TABLE {t} ADD PARTITION FIELD days(at)")
    t.insert(_evolved(i) for i in range(9, 12))
    t.check()
    assert t.sql("SELECT DISTINCT spec_id FROM {t}.data_files").count() == 3

    t.ours.update().set("amount", "amount + 1").set("n", "'set'").where("id % 2 = 0").with_options(
        mode="copy-on-write"
    ).execute()
    t.ours.update().set("place.country", "'CH'").where("id IN (3, 7, 11)").with_options(
        mode="merge-on-read"
    ).execute()
    t.ours.delete().where("amount = 5 OR id = 9").with_options(mode="merge-on-read").execute()
    t.expect(lambda r: {**r, "amount": r["amount"] + 1, "n": "set"} if r["id"] % 2 == 0 else r)
    t.expect(lambda r: {**r, "place": _in_ch(r["place"])} if r["id"] in (3, 7, 11) else r)
    t.expect(lambda r: None if r["amount"] == 5 or r["id"] == 9 else r)
    t.check()

    t.sql("ALTER TABLE {t} DROP PARTITION FIELD bucket(4, id)")
    t.sql("ALTER TABLE {t} DROP COLUMN share")
    t.schema = _schema_of(t)
    t.append(_evolved(i) for i in range(12, 14))
    t.ours.delete().where("id IN (0, 8, 13)").with_options(mode="copy-on-write").execute()
    t.expect(lambda r: None if r["id"] in (0, 8, 13) else r)
    t.check()
    t.sql("UPDATE {t} SET amount = 0 WHERE region IS NULL OR id = 10")
    t.expect(lambda r: {**r, "amount": 0} if r["region"] is None or r["id"] == 10 else r)
    t.check()


def test_the_reference_follows_the_schema_and_specs_that_we_evolved(both: MakeBoth) -> None:
    t = both(EVENTS).made_by_us(("region",))
    t.append(map(event, range(6)))
    t.ours.delete().where("id = 1").execute()
    t.ours.rename_column("n", "amount")
    t.ours.add_column("n", "STRING")
    t.ours.add_column("place.country", "STRING")
    t.ours.drop_column("share")
    t.ours.evolve_partitions(("bucket(4, id)", "days(at)"))
    t.schema = _schema_of(t)
    t.expect(lambda r: None if r["id"] == 1 else {**_widened(r), "points": r["points"]})
    t.check()

    new = [{**_widened(event(i)), "points": [Row(i)], "n": "new"} for i in range(6, 12)]
    t.append(new[:3])
    t.insert(new[3:])
    t.sql("UPDATE {t} SET amount = amount + 1 WHERE id % 2 = 0")
    t.ours.update().set("amount", "amount + 1").where("id % 3 = 0").execute()
    t.expect(lambda r: {**r, "amount": r["amount"] + (r["id"] % 2 == 0) + (r["id"] % 3 == 0)})
    t.check()

    t.ours.evolve_partitions(())
    t.reference_mode("copy-on-write")
    t.sql("UPDATE {t} SET n = 'last' WHERE id IN (2, 7, 10)")
    t.ours.delete().where("id IN (3, 7)").execute()
    t.expect(lambda r: {**r, "n": "last"} if r["id"] in (2, 7, 10) else r)
    t.expect(lambda r: None if r["id"] in (3, 7) else r)
    t.check()
    t.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert t.sql("SELECT DISTINCT spec_id FROM {t}.data_files").collect() == [Row(2)]
    t.check()
    t.ours.update().set("n", "'compacted'").execute()
    t.expect(lambda r: {**r, "n": "compacted"})
    t.check()


def test_each_reads_the_snapshots_of_the_other_and_rolls_them_back(both: MakeBoth) -> None:
    t = both(EVENTS).made_by_us(("region",))
    t.append(map(event, range(4)))
    t.insert(map(event, range(4, 8)))
    t.ours.delete().where("id < 2").execute()
    t.sql("UPDATE {t} SET n = -n WHERE id > 5")
    t.ours.rename_column("share", "part")
    t.ours.update().set("part", "0").where("id = 4").with_options(mode="copy-on-write").execute()
    t.sql("DELETE FROM {t} WHERE region = 'us'")
    taken = t.sql("SELECT snapshot_id, committed_at FROM {t}.snapshots ORDER BY 2").collect()
    assert len(taken) == 6
    seen = {s.snapshot_id: t.check_snapshot(s.snapshot_id) for s in taken}
    assert [len(found) for found in seen.values()] == [4, 8, 6, 6, 6, 4]

    moment = taken[2].committed_at
    theirs = t.sql(f"SELECT * FROM {{t}} TIMESTAMP AS OF '{moment}'").collect()
    ours = t.ours.scan(as_of=moment.replace(tzinfo=UTC)).collect()
    assert plain(ours) == plain(theirs) == seen[taken[2].snapshot_id]

    second, third = taken[1].snapshot_id, taken[2].snapshot_id
    t.ours.rollback(third)
    assert plain(t.sql("SELECT * FROM {t}").collect()) == seen[third]
    t.call("rollback_to_snapshot", f"snapshot_id => {second}")
    assert plain(t.ours.scan().collect()) == seen[second]
    t.expected = [{**event(i), "part": i / 4} for i in range(8)]
    t.check()

    t.ours.delete().where("id = 0").execute()
    t.sql("DELETE FROM {t} WHERE id = 1")
    t.expect(lambda r: None if r["id"] < 2 else r)
    t.check()
    ancestors = t.sql("SELECT * FROM {t}.history WHERE is_current_ancestor").count()
    assert ancestors == 5  # the second is there twice: it became current twice


def _schema_of(t: Both) -> str:
    """The table's columns as the reference has them now."""
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}"
        for field in t.spark.table(t.path).schema.fields
    )


def _evolved(number: int) -> Values:
    return {**_widened(event(number)), "n": f"n {number}"}


def _widened(r: Values) -> Values:
    """A row of the first schema as the evolved one has it."""
    return {
        **r,
        "amount": r["n"],
        "n": None,
        "place": r["place"] and Row(r["place"][0], None),
        "points": [Row(None, point[0]) for point in r["points"]],
    }


def _in_ch(place: Row | None) -> Row:
    return Row(place[0] if place else None, "CH")
