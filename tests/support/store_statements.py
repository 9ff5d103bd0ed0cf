"""A sequence of statements on one table, each with what it must leave: for object stores and REST.

Partition values have a blank, a slash, a percent sign and no value at all, which keys of objects have to spell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from icefloe import Lake, Table
from icefloe.results import DmlResult

SCHEMA = "id BIGINT, region STRING, n BIGINT, note STRING"
REGIONS = ("north sea", "a/b", "100%", None)
Row = tuple[str | None, int | None, str | None]  # without the id


def row(number: int, n: int | None = 0, region: str | None = "") -> dict[str, Any]:
    """A row whose region follows from its id, unless it is named."""
    chosen = REGIONS[number % len(REGIONS)] if region == "" else region
    return {"id": number, "region": chosen, "n": n, "note": f"note {number}"}


@dataclass
class Checked:
    """A table, and the rows that it must have."""

    lake: Lake
    name: str
    mode: str
    rows: dict[int, Row] = field(default_factory=dict)
    first_snapshot: int | None = None

    @property
    def table(self) -> Table:
        return self.lake.table(self.name)

    @property
    def tuples(self) -> list[tuple[Any, ...]]:
        """The rows that must be there."""
        return sorted((number, *values) for number, values in self.rows.items())

    def put(self, *rows: dict[str, Any]) -> None:
        """Expect rows, in place of those with the same ids."""
        self.rows |= {r["id"]: (r["region"], r["n"], r["note"]) for r in rows}

    def add(self, amount: int, *numbers: int) -> None:
        """Expect rows to have more in `n`."""
        for number in numbers:
            region, n, note = self.rows[number]
            self.rows[number] = (region, (n or 0) + amount, note)

    def remove(self, *numbers: int) -> None:
        """Expect rows to be deleted."""
        for number in numbers:
            del self.rows[number]

    def of_region(self, region: str | None) -> list[int]:
        """Ids of the rows of a partition."""
        return [number for number, values in self.rows.items() if values[0] == region]

    def scanned(self, **options: Any) -> list[tuple[Any, ...]]:
        """The rows that Spark reads."""
        return sorted(tuple(found) for found in self.table.scan(**options).collect())

    def check(self) -> None:
        """The table has exactly these rows, by its scan."""
        assert self.scanned() == self.tuples


def affected(result: DmlResult, count: int) -> None:
    assert result.total_affected == count, result


# -------------------------------------------------------------------------------------------------
# The statements, in their order


def create(t: Checked) -> None:
    modes = {f"write.{kind}.mode": t.mode for kind in ("delete", "update", "merge")}
    t.lake.create_table(t.name, SCHEMA, partition_by=["region"], properties=modes)


def append(t: Checked) -> None:
    new = [row(number) for number in range(40)]
    affected(t.table.append(new), 40)
    t.put(*new)


def append_frame(t: Checked) -> None:
    new = [row(number, None) for number in range(40, 60)]
    affected(t.table.append(t.lake.spark.createDataFrame(pa.Table.from_pylist(new))), 20)
    t.put(*new)
    t.first_snapshot = t.table.snapshot_id


def scan(t: Checked) -> None:
    t.check()


def scan_part(t: Checked) -> None:
    found = t.scanned(columns=["id", "n"], where="region = 'a/b' AND id < 20")
    assert found == [(number, 0) for number in t.of_region("a/b") if number < 20]


def update(t: Checked) -> None:
    result = t.table.update().set("n", "coalesce(n, 0) + 7").where("id % 5 = 0").execute()
    hit = [number for number in t.rows if number % 5 == 0]
    affected(result, len(hit))
    t.add(7, *hit)


def update_of_the_partition(t: Checked) -> None:
    affected(t.table.update().set("region", "'a/b c%d'").where("id IN (4, 5, 7)").execute(), 3)
    for number in (4, 5, 7):
        t.rows[number] = ("a/b c%d", *t.rows[number][1:])


def delete(t: Checked) -> None:
    affected(t.table.delete().where("id BETWEEN 10 AND 15").execute(), 6)
    t.remove(*range(10, 16))


def delete_partition(t: Checked) -> None:
    result = t.table.delete().where("region = '100%'").execute()
    affected(result, len(t.of_region("100%")))
    t.remove(*t.of_region("100%"))


def merge(t: Checked) -> None:
    source = [row(number, 100) for number in (8, 9, 16, 17, 200, 201, 203)]
    frame = t.lake.spark.createDataFrame(pa.Table.from_pylist(source))
    merged = (
        t.table.merge(frame, on="target.id = source.id")
        .when_matched("source.id < 10").delete()
        .when_matched().update({"n": "source.n"})
        .when_not_matched().insert_all()
        .execute()
    )  # fmt: skip
    affected(merged, 7)
    t.remove(8, 9)
    for number in (16, 17):
        t.rows[number] = (t.rows[number][0], 100, t.rows[number][2])
    t.put(*source[-3:])


def upsert(t: Checked) -> None:
    source = [row(number, -1) for number in (20, 21, 300)]
    affected(t.table.upsert(source, ["id", "region"]).execute(), 3)
    t.put(*source)


def replace_where(t: Checked) -> None:
    new = [row(number, 5, "a/b") for number in (1, 401, 402)]
    old = t.of_region("a/b")
    affected(t.table.replace_where("region = 'a/b'", new).execute(), len(old) + 3)
    t.remove(*old)
    t.put(*new)


def create_index(t: Checked) -> None:
    built = t.table.create_index("by_id", "btree", ["id"])
    assert (built.files_covered, dict(built.files_skipped)) == (built.files, {})


def look_up(t: Checked) -> None:
    assert t.scanned(where="id IN (1, 20, 999)") == [
        (number, *t.rows[number]) for number in (1, 20)
    ]


def update_by_index(t: Checked) -> None:
    affected(t.table.update().set("n", "n + 1").where("id = 300").execute(), 1)
    t.add(1, 300)


def search(t: Checked) -> None:
    t.table.create_index("words", "bm25", "note")
    assert [found.id for found in t.table.search("words", "203").collect()] == [203]


def insert(t: Checked) -> None:
    t.table.set_properties({"icefloe.inline.enabled": "true"})
    new = [row(number, 1) for number in (500, 501, 502, 503)]
    result = t.table.insert(new)
    assert (result.mode, result.rows_inserted) == ("inline", 4)
    t.put(*new)


def update_inline(t: Checked) -> None:
    affected(t.table.update().set("n", "n + 1").where("id IN (16, 500, 501)").execute(), 3)
    t.add(1, 16, 500, 501)
    affected(t.table.delete().where("id = 502").execute(), 1)
    t.remove(502)


def flush(t: Checked) -> None:
    t.table.flush()
    facts = t.table.inline
    assert facts is not None
    assert facts.rows == 0


def compact(t: Checked) -> None:
    t.table.compact()


def time_travel(t: Checked) -> None:
    assert len(t.scanned(snapshot_id=t.first_snapshot)) == 60


def expire(t: Checked) -> None:
    result = t.table.expire_snapshots(older_than=datetime.now(UTC), retain_last=1)
    assert (result.snapshots_kept, result.files_failed) == (1, ())
    assert result.files_deleted > 0


def orphans(t: Checked) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    found = t.table.remove_orphans(older_than=soon, allow_recent=True, dry_run=False)
    assert found.files_failed == ()


STATEMENTS: dict[str, Callable[[Checked], None]] = {
    "create table": create,
    "append 40 rows": append,
    "append a DataFrame": append_frame,
    "scan": scan,
    "scan with a condition": scan_part,
    "UPDATE": update,
    "UPDATE of the partition": update_of_the_partition,
    "DELETE": delete,
    "DELETE of a partition": delete_partition,
    "MERGE": merge,
    "upsert of 3 rows": upsert,
    "REPLACE WHERE": replace_where,
    "create a btree index": create_index,
    "scan by the index": look_up,
    "UPDATE by the index": update_by_index,
    "create a bm25 index, search": search,
    "switch the inline tier on, insert": insert,
    "UPDATE and DELETE of inline rows": update_inline,
    "flush": flush,
    "compact": compact,
    "scan of an earlier snapshot": time_travel,
    "expire snapshots": expire,
    "remove orphans": orphans,
}
