"""Fifteen MERGEs in a row, and the tables that they are run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from icefloe import DmlResult, Table
from support.merge_clauses import Clause, with_clauses

SCHEMA = """
    id BIGINT NOT NULL, region STRING, n INT, price DOUBLE, day DATE, at TIMESTAMP,
    tags ARRAY<STRING>, place STRUCT<city: STRING, zip: INT>
"""
# Spark's spelling for a source with more columns than the table.
SOURCE = f"{SCHEMA}, op STRING"


def row(i: int, **others: Any) -> dict[str, Any]:
    """A row of SOURCE; NULL in every column but the key now and then."""
    moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=9 * i, microseconds=i)
    made = {
        "id": i,
        "region": ["eu", "us", "ap", None][i % 4],
        "n": None if i % 7 == 0 else i * 10,
        "price": [1.5 * i, float("nan"), None, -0.0][i % 4],
        "day": None if i % 6 == 0 else date(2024, 1, 1) + timedelta(days=i % 3),
        "at": None if i % 9 == 0 else moment,
        "tags": [["a", f"t{i}"], [], None, [None]][i % 4],
        "place": None if i % 5 == 4 else {"city": f"city {i}", "zip": None if i % 3 else i},
        "op": "U",
    }
    return {**made, **others}


def target_row(i: int) -> dict[str, Any]:
    return {key: value for key, value in row(i).items() if key != "op"}


@dataclass(frozen=True)
class Layout:
    """A first partitioning, and those that the table evolves to while it is filled and merged."""

    name: str
    partition_by: tuple[str, ...]
    before_filled: tuple[str, ...] | None = None
    before_last: tuple[str, ...] | None = None

    def fill(self, table: Table, append: Callable[[list[dict[str, Any]]], Any]) -> None:
        append([target_row(i) for i in range(12)])
        if self.before_filled is not None:
            table.evolve_partitions(self.before_filled)
        append([target_row(i) for i in range(12, 20)])
        table.delete().where("id IN (3, 14)").with_options(mode="merge-on-read").execute()


LAYOUTS = [
    Layout("unpartitioned", ()),
    Layout("identity", ("region",), before_last=("bucket(2, id)",)),
    Layout("bucket-and-days", ("bucket(3, id)", "days(at)")),
    Layout("evolved", (), ("region",), ("truncate(1, region)", "months(at)")),
]


@dataclass(frozen=True)
class Merge:
    """One MERGE, and how many rows each of its clauses is for."""

    name: str
    source: tuple[dict[str, Any], ...]
    on: str
    clauses: tuple[Clause, ...]
    counts: tuple[int, ...]

    def run(self, table: Table, source: Any = None) -> DmlResult:
        given = list(self.source) if source is None else source
        return with_clauses(table.merge(given, self.on), self.clauses).execute()

    def sql(self, table: str, source: str) -> str:
        start = f"MERGE INTO {table} AS target USING {source} AS source ON {self.on}"
        return " ".join((start, *(clause.sql() for clause in self.clauses)))


def matched(then: str, condition: str | None = None, **values: str) -> Clause:
    return Clause("matched", condition, then, _paths(values) or None)


def inserting(condition: str | None = None, **values: str) -> Clause:
    return Clause("not matched", condition, "insert", _paths(values) or None)


def orphans(then: str, condition: str | None = None, **values: str) -> Clause:
    return Clause("not matched by source", condition, then, _paths(values) or None)


def _paths(values: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in values.items()}


ID = "target.id = source.id"

# The table begins with ids 0 to 19 without 3 and 14.
MERGES = [
    Merge(
        "upsert",
        (row(1, n=-1), row(3), row(12, region="us"), row(20), row(21)),
        ID,
        (matched("update"), inserting()),
        (2, 3),
    ),
    Merge("delete_matched", (row(2), row(13), row(99)), ID, (matched("delete"),), (2,)),
    Merge("insert_only", (row(1), row(22), row(22, n=5), row(23)), ID, (inserting(),), (3,)),
    Merge(
        "changes_by_op",
        (row(4, op="D"), row(5, n=55), row(24, op="I"), row(25, op="D"), row(22, op="X")),
        "source.id = target.id AND source.op <> 'X'",
        (
            matched("delete", "source.op = 'D'"),
            matched("update", None, n="source.n + 1", tags="array(source.op, NULL)"),
            inserting("source.op = 'I'"),
        ),
        (1, 1, 1),
    ),
    Merge(
        "delete_what_the_source_lacks",
        (row(19), row(18)),
        ID,
        (orphans("delete", "target.id IN (17, 18) OR target.n = 5"),),
        (2,),
    ),
    Merge(
        "update_what_the_source_lacks",
        tuple(row(i) for i in range(10)),
        ID,
        (orphans("update", "target.region = 'us'", n="target.n - 1000", price="NULL"),),
        (2,),
    ),
    Merge(
        "compound_key_with_null",
        (row(5, n=500), row(7, n=700), row(8, region="us"), row(26, region=None)),
        f"{ID} AND target.region = source.region",
        (matched("update", None, n="source.n"), inserting("source.id > 20")),
        (1, 1),
    ),
    Merge(
        "rows_move_to_other_partitions",
        (row(0, region="moved"), row(6, region=None), row(10, region="ap"), row(16)),
        ID,
        (
            matched(
                "update",
                "source.region IS NULL OR source.region <> 'eu'",
                region="source.region",
                at="target.at + INTERVAL 40 DAYS",
                day="date_add(target.day, 1)",
            ),
        ),
        (3,),
    ),
    Merge(
        "or_in_the_condition",
        (row(9, n=-7), row(50, n=110)),
        "target.id = source.id OR target.n = source.n",
        (matched("update", None, price="coalesce(target.price, 0) + source.n"), inserting()),
        (2, 0),
    ),
    Merge(
        "values_become_null",
        (row(11), row(15), row(51)),
        ID,
        (
            matched(
                "update", None, tags="NULL", day="NULL", place="NULL", price="CAST(NULL AS DOUBLE)"
            ),
            inserting(None, id="source.id"),
        ),
        (2, 1),
    ),
    Merge(
        "struct_field",
        (row(0), row(1, op="new"), row(8, op="new")),
        ID,
        (
            matched("delete", "target.region = 'nowhere'"),
            matched(
                "update",
                "target.place IS NOT NULL",
                place__city="concat(source.op, target.place.city)",
            ),
        ),
        (0, 3),
    ),
    Merge(
        "nothing_to_do",
        (row(0), row(60)),
        ID,
        (matched("delete", "source.n > 100000"), inserting("source.n IS NULL")),
        (0, 0),
    ),
    Merge(
        "ranges",
        (row(61, n=-500), row(62, n=100000)),
        "target.n < source.n AND source.n < 0",
        (matched("update", None, n="0"), inserting(None, id="source.id", n="source.n * 2")),
        (1, 1),
    ),
    Merge(
        "duplicates_that_are_inserted",
        (row(0), row(1), row(70), row(70)),
        ID,
        (matched("delete", "source.id = 1"), inserting()),
        (1, 2),
    ),
    Merge(
        "clauses_of_every_kind",
        (row(0, op="D"), row(5), row(10, n=None), row(15), row(80), row(81, op="D")),
        ID,
        (
            matched("delete", "source.op = 'D'"),
            matched("update", "source.n > 100", n="source.n + target.n"),
            matched("update"),
            inserting("source.op <> 'D'"),
            orphans("delete", "target.id >= 60"),
            orphans("update", "target.id % 2 = 0", n="coalesce(target.n, 0) + 1"),
        ),
        (1, 1, 2, 1, 3, 9),
    ),
]
