"""Tables that Iceberg's own Spark runtime and icefloe make, change and compact in turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from support.two_engines import Both, Values, row

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]

_bucket = BucketTransform(4).transform(LongType())

# Partitionings, and the partition that a row belongs to.
LAYOUTS: dict[str, tuple[tuple[str, ...], Callable[[Values], Any]]] = {
    "unpartitioned": ((), lambda _r: ()),
    "identity": (("region",), lambda r: r["region"]),
    "bucket": (("bucket(4, id)",), lambda r: _bucket(r["id"])),
    "days": (("days(at)",), lambda r: r["at"] and r["at"].date()),
    "several": (
        ("day", "truncate(5, name)", "hours(local)"),
        lambda r: (
            r["day"],
            r["name"] and r["name"][:5],
            r["local"] and r["local"].replace(minute=0, second=0, microsecond=0),
        ),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_we_change_what_the_reference_made(both: MakeBoth, layout: str) -> None:
    partition_by, partition_of = LAYOUTS[layout]
    t = both().made_by_reference(partition_by)
    t.insert(map(row, range(12)))
    t.insert(map(row, range(12, 16)))
    t.check()

    t.sql("DELETE FROM {t} WHERE id IN (2, 9)")
    t.sql("UPDATE {t} SET n = n + 100 WHERE id % 4 = 1")
    t.expect(lambda r: None if r["id"] in (2, 9) else r)
    t.expect(lambda r: {**r, "n": r["n"] + 100} if r["id"] % 4 == 1 and r["n"] is not None else r)
    t.check()

    cow, mor = {"mode": "copy-on-write"}, {"mode": "merge-on-read"}
    t.ours.update().set("n", "coalesce(n, 0) + 1").where("id < 6").with_options(**cow).execute()
    t.expect(lambda r: {**r, "n": (r["n"] or 0) + 1} if r["id"] < 6 else r)
    t.check()

    moving = t.ours.update().set("region", "'moved'").set("at", "at + INTERVAL 1 DAY")
    moving.set("place.city", "concat('new ', place.city)").where("id % 3 = 0").with_options(
        **mor
    ).execute()
    t.expect(lambda r: _moved(r) if r["id"] % 3 == 0 else r)
    t.check()

    t.ours.delete().where("id = 5 OR id = 13").with_options(**cow).execute()
    t.expect(lambda r: None if r["id"] in (5, 13) else r)
    t.check()

    t.ours.delete().where("small > 0.2 AND ok").with_options(**mor).execute()
    t.expect(lambda r: None if r["ok"] and r["small"] * 5 > 1 else r)
    t.check()

    t.append(map(row, range(16, 20)))
    fresh = [row(20), row(21)]
    t.ours.overwrite_partitions(t.frame(fresh))
    replaced = {partition_of(r) for r in fresh}
    t.expect(lambda r: None if partition_of(r) in replaced else r)
    t.expected += fresh
    t.check()

    t.reference_mode("copy-on-write")
    t.sql("UPDATE {t} SET name = 'last' WHERE id % 2 = 0")
    t.expect(lambda r: {**r, "name": "last"} if r["id"] % 2 == 0 else r)
    t.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reference_changes_and_compacts_what_we_made(both: MakeBoth, layout: str) -> None:
    partition_by, _ = LAYOUTS[layout]
    t = both().made_by_us(partition_by)
    t.append(map(row, range(12)))
    t.append(map(row, range(12, 16)))
    t.ours.update().set("ratio", "id / 4").where("id % 5 = 0").execute()
    t.ours.delete().where("id IN (1, 14)").execute()
    t.expect(lambda r: None if r["id"] in (1, 14) else r)
    t.expect(lambda r: {**r, "ratio": r["id"] / 4} if r["id"] % 5 == 0 else r)
    t.check()

    t.sql("UPDATE {t} SET n = coalesce(n, 0) + 1, tags = array('new') WHERE id % 2 = 0")
    t.expect(lambda r: {**r, "n": (r["n"] or 0) + 1, "tags": ["new"]} if r["id"] % 2 == 0 else r)
    t.check()

    t.reference_mode("copy-on-write")
    t.sql("DELETE FROM {t} WHERE id IN (3, 6) OR region IS NULL AND id = 4")
    t.insert([row(17)])
    t.expect(lambda r: None if r["id"] in (3, 4, 6) else r)
    t.check()

    t.reference_mode("merge-on-read")
    _merge(t, [row(7) | {"region": "merged"}, row(18)], delete=8)
    t.check()

    t.ours.delete().where("id = 10").with_options(mode="merge-on-read").execute()
    t.ours.update().set("small", "small * 2").where("id > 10").with_options(
        mode="copy-on-write"
    ).execute()
    t.expect(lambda r: None if r["id"] == 10 else r)
    t.expect(
        lambda r: {**r, "small": r["small"] * 2} if r["id"] > 10 and r["small"] is not None else r
    )
    t.check()

    t.ours.update().set("n", 1).where("id = 0 OR id = 11").execute()
    t.expect(lambda r: {**r, "n": 1} if r["id"] in (0, 11) else r)
    t.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
    t.check()
    t.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    t.check()
    t.call("rewrite_manifests")
    t.check()
    expired = t.call("expire_snapshots", "older_than => TIMESTAMP '2999-01-01', retain_last => 1")
    assert expired["deleted_data_files_count"] > 0
    t.check()

    t.ours.update().set("n", "n + 5").where("id % 2 = 1").execute()
    t.ours.delete().where("id = 0").with_options(mode="copy-on-write").execute()
    t.expect(lambda r: None if r["id"] == 0 else r)
    t.expect(lambda r: {**r, "n": r["n"] + 5} if r["id"] % 2 and r["n"] is not None else r)
    t.append([row(19)])
    t.check()

    t.reference_mode("copy-on-write")
    _merge(t, [row(19) | {"name": "again"}, row(21)], delete=11)
    t.check()


def test_deletes_of_either_granularity_are_read_and_added_to(both: MakeBoth) -> None:
    for granularity, files in (("file", 3), ("partition", 1)):
        t = both("id BIGINT, n INT, region STRING").made_by_reference(
            ("region",), **{"write.delete.granularity": granularity}
        )
        for start in (0, 10, 20):
            t.insert({"id": i, "n": 0, "region": "eu"} for i in range(start, start + 10))
        t.sql("DELETE FROM {t} WHERE id % 10 < 3")
        t.expect(lambda r: None if r["id"] % 10 < 3 else r)
        assert t.sql("SELECT * FROM {t}.delete_files").count() == files
        t.check()

        t.ours.delete().where("id IN (3, 13)").with_options(mode="merge-on-read").execute()
        t.ours.update().set("n", "n + 1").where("id % 10 = 4").with_options(
            mode="merge-on-read"
        ).execute()
        t.expect(lambda r: None if r["id"] in (3, 13) else r)
        t.expect(lambda r: {**r, "n": r["n"] + 1} if r["id"] % 10 == 4 else r)
        t.check()

        # The reference replaces deletes of a file with united ones; a rewrite must not revive rows.
        t.sql("DELETE FROM {t} WHERE id IN (5, 14)")
        t.ours.update().set("n", 7).where("id BETWEEN 10 AND 19").with_options(
            mode="copy-on-write"
        ).execute()
        t.expect(lambda r: None if r["id"] in (5, 14) else r)
        t.expect(lambda r: {**r, "n": 7} if 10 <= r["id"] < 20 else r)
        t.check()
        t.sql("UPDATE {t} SET n = n + 1 WHERE id > 15")
        t.expect(lambda r: {**r, "n": r["n"] + 1} if r["id"] > 15 else r)
        t.check()


def test_version_1_tables_are_read_and_rewritten(both: MakeBoth) -> None:
    t = both().made_by_reference(("region",), **{"format-version": "1"})
    t.reference_mode("copy-on-write")
    t.insert(map(row, range(10)))
    t.ours.update().set("n", "0").where("id % 2 = 0").with_options(mode="copy-on-write").execute()
    t.expect(lambda r: {**r, "n": 0} if r["id"] % 2 == 0 else r)
    t.check()
    t.append([row(10)])
    t.sql("DELETE FROM {t} WHERE id IN (0, 1, 10)")
    t.ours.delete().where("id = 2").with_options(mode="copy-on-write").execute()
    t.expect(lambda r: None if r["id"] in (0, 1, 2, 10) else r)
    t.check()


def _moved(r: Values) -> Values:
    city = r["place"] and f"new {r['place'][0]}"
    return {
        **r,
        "region": "moved",
        "at": r["at"] and r["at"] + timedelta(days=1),
        "place": r["place"] and (city, r["place"][1]),
    }


def _merge(t: Both, source: list[Values], delete: int) -> None:
    """MERGE by the reference: replaces rows of the source, adds its new ones, deletes one."""
    gone = {**row(delete), "name": "delete me"}
    t.frame([*source, gone]).createOrReplaceTempView("turns_source")
    t.sql(
        "MERGE INTO {t} t USING turns_source s ON t.id = s.id "
        "WHEN MATCHED AND s.name = 'delete me' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    new = {r["id"]: r for r in source}
    t.expect(lambda r: None if r["id"] == delete or r["id"] in new else r)
    t.expected += source
