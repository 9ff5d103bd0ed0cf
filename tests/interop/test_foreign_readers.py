"""Twenty statements, both modes, four kinds of tables: after each, five engines read what we read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from icefloe import Table
from support.foreign_readers import READERS, disagreements, icefloe_rows, one_in_turn

SCHEMA = """
    id BIGINT NOT NULL, n INT, m INT, region STRING, price DOUBLE, cost DECIMAL(12, 2), day DATE,
    at TIMESTAMP, local TIMESTAMP_NTZ, ok BOOLEAN, raw BINARY, tags ARRAY<STRING>,
    place STRUCT<city: STRING, zip: INT>, attrs MAP<STRING, BIGINT>
"""


def row(i: int) -> dict[str, Any]:
    """A row of SCHEMA; NULL in every column but the key now and then, NaN and -0.0 in `price`."""
    return {
        "id": i,
        "n": None if i % 7 == 0 else i * 10,
        "m": None if i % 8 == 3 else -i,
        "region": ["eu", "us", "ap", None][i % 4],
        "price": [1.5 * i, float("nan"), None, -0.0][i % 4],
        "cost": None if i % 5 == 0 else Decimal(i) / 4,
        "day": None if i % 6 == 0 else date(2024, 1, 1) + timedelta(days=i % 3),
        "at": None if i % 9 == 0 else moment(i).replace(tzinfo=UTC),
        "local": None if i % 10 == 0 else moment(i - 500_000),
        "ok": [True, False, None][i % 3],
        "raw": None if i % 4 == 3 else bytes([i, 255, 0]),
        "tags": [["a", f"t{i}"], [], None, [None]][i % 4],
        "place": None if i % 5 == 4 else {"city": f"city {i}", "zip": None if i % 3 else i},
        "attrs": [{"k": i}, {}, None, {"x": None, "y": i}][i % 4],
    }


def moment(i: int) -> datetime:
    return datetime(2024, 1, 1) + timedelta(hours=5 * i, microseconds=i)


def batch(*ids: int, **others: Any) -> list[dict[str, Any]]:
    return [{**row(i), **others} for i in ids]


@dataclass(frozen=True)
class Kind:
    """A kind of table: its first partitioning, the one it evolves to, and how it is filled."""

    name: str
    partition_by: tuple[str, ...]
    then_by: tuple[str, ...]

    def fill(self, table: Table) -> None:
        table.append(batch(*range(12)))
        table.append(batch(*range(12, 20)))


@dataclass(frozen=True)
class EvolvedKind(Kind):
    """Filled while its columns and its partitioning change, so that files differ in both."""

    def fill(self, table: Table) -> None:
        table.append(batch(*range(8)))
        table.add_column("extra", "STRING").evolve_partitions(("region",))
        table.append(batch(*range(8, 14), extra="e"))
        table.rename_column("extra", "more").drop_column("more").add_column("extra", "INT")
        table.evolve_partitions(("truncate(1, region)", "bucket(2, id)"))
        table.append(batch(*range(14, 20), extra=1))
        table.drop_column("extra")


KINDS = [
    Kind("unpartitioned", (), ("bucket(2, id)",)),
    Kind("identity", ("region",), ("region", "months(at)")),
    Kind("bucket-and-days", ("bucket(3, id)", "days(at)"), ("day",)),
    EvolvedKind("evolved", (), ()),
]


@dataclass(frozen=True)
class Case:
    """A statement; `left` is how many rows are there afterwards, in tables of every kind."""

    name: str
    apply: Callable[[Table, Kind], Any]
    left: int | None


def delete(where: str) -> Callable[[Table, Kind], Any]:
    return lambda table, _kind: table.delete().where(where).execute()


def update(where: str, **assignments: str) -> Callable[[Table, Kind], Any]:
    def run(table: Table, _kind: Kind) -> Any:
        statement = table.update()
        for column, value in assignments.items():
            statement = statement.set(column.replace("__", "."), value)
        return statement.where(where).execute()

    return run


def every(*steps: Callable[[Table, Kind], Any]) -> Callable[[Table, Kind], Any]:
    return lambda table, kind: [step(table, kind) for step in steps]


def delete_file_of_row_20(table: Table, kind: Kind) -> None:
    files = dict(table.scan(["id", "_file"]).collect())
    same = sorted(i for i, file in files.items() if file == files[20])
    table.delete().where(f"id IN ({', '.join(map(str, same))})").execute()
    table.append(batch(*same))  # so that every kind of table goes on with the same rows


def overwrite_partitions(table: Table, kind: Kind) -> None:
    table.overwrite_partitions(later(29, 33, 37))


STATEMENTS = [
    Case("delete_by_predicate", delete("id IN (1, 5, 14)"), 17),
    Case("delete_nothing", delete("id < 0"), 17),
    Case("delete_with_null_predicate", delete("n > 170 OR n > CAST(NULL AS INT)"), 15),
    Case("delete_where_there_are_deletes", delete("id % 6 = 0"), 12),
    Case("update_one_column", update("id IN (2, 8, 15)", price="coalesce(price, 0) + 1"), 12),
    Case(
        "update_many_columns_and_swap_two",
        update(
            "id > 7",
            n="m",
            m="n",
            ok="NOT ok",
            cost="CAST(cost * 2 AS DECIMAL(12, 2))",
            tags="array('x', region)",
            attrs="map('n', CAST(n AS BIGINT))",
            local="local + INTERVAL 1 HOUR",
            raw="CAST('raw' AS BINARY)",
        ),
        12,
    ),
    Case(
        "update_partition_columns",
        update("region = 'ap'", region="'us'", at="at + INTERVAL 40 DAYS", day="date_add(day, 1)"),
        12,
    ),
    Case("update_struct_field", update("id % 2 = 0", place__city="upper(place.city)"), 12),
    Case(
        "update_to_null",
        update("id IN (3, 9)", price="NULL", tags="NULL", attrs="NULL", day="NULL", place="NULL"),
        12,
    ),
    Case("update_same_row_thrice", every(*[update("id = 4", n="n + 1")] * 3), 12),
    Case("append_after_delete", lambda table, _: table.append(batch(*range(20, 28))), 20),
    Case("delete_whole_partition", delete("region = 'us'"), 13),
    Case("delete_all_rows_of_one_file", delete_file_of_row_20, 13),
    Case(
        "update_after_add_column",
        every(
            lambda table, _: table.add_column("note", "STRING").add_column("place.lat", "DOUBLE"),
            update("id % 3 = 0", note="concat('note ', id)", place__lat="id / 2.0D"),
        ),
        13,
    ),
    Case(
        "update_after_rename_column",
        every(
            lambda table, _: table.rename_column("price", "amount"),
            update("id % 2 = 1", amount="coalesce(amount, 0) + m"),
        ),
        13,
    ),
    Case(
        "delete_and_update_after_drop_column",
        every(
            lambda table, _: table.drop_column("raw").drop_column("place.zip"),
            delete("id = 3"),
            update("id IN (4, 20, 24)", ok="true", n="1"),
        ),
        12,
    ),
    Case("overwrite_partitions", overwrite_partitions, None),
    Case(
        "update_and_append_after_evolve_partitions",
        every(
            lambda table, kind: table.evolve_partitions(kind.then_by),
            update("id >= 11", n="coalesce(n, 0) + 1"),
            lambda table, _: table.append(later(28, 30, 31, 32)),
            delete("id IN (28, 31)"),
        ),
        None,  # after overwrite_partitions as many as the table's partitions have it
    ),
    Case("overwrite", lambda table, _: table.overwrite(later(*range(40, 52))), 12),
    Case(
        "truncate_then_append",
        every(
            lambda table, _: table.truncate(),
            lambda table, _: table.append(later(*range(60, 68))),
            delete("id = 61"),
        ),
        7,
    ),
]


def later(*ids: int) -> list[dict[str, Any]]:
    """Rows as the table has them once columns are renamed, dropped and added."""
    made = []
    for old in batch(*ids):
        place = old["place"] and {"city": old["place"]["city"], "lat": 0.5}
        changed = {"amount": old["price"], "note": None, "place": place}
        gone = ("price", "raw")
        made.append({k: v for k, v in {**old, **changed}.items() if k not in gone})
    return made


@pytest.mark.parametrize(
    ("mode", "kind", "in_turn"),
    [
        pytest.param("merge-on-read", KINDS[-1], True, id="one engine in turn"),
        *(
            pytest.param(mode, kind, False, id=f"{mode}-{kind.name}", marks=pytest.mark.slow)
            for mode in ("merge-on-read", "copy-on-write")
            for kind in KINDS
        ),
    ],
)
def test_five_engines_read_the_same_rows_after_each_statement(
    table_of: Callable[..., Table], mode: str, kind: Kind, in_turn: bool
) -> None:
    assert len(STATEMENTS) == 20
    table = table_of(SCHEMA, mode=mode, partition_by=kind.partition_by)
    kind.fill(table)
    assert disagreements(table) == {}
    for turn, case in enumerate(STATEMENTS):
        case.apply(table, kind)
        expected = icefloe_rows(table)
        readers = one_in_turn(turn) if in_turn else READERS
        assert disagreements(table, expected, readers) == {}, case.name
        assert case.left in (None, len(expected)), case.name
    assert disagreements(table) == {}
