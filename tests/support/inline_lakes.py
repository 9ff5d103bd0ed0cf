"""Lakes with inline rows that never start Spark, on every kind of database, and what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe import Lake, Table
from icefloe.inline.cut import PointerMovedError
from icefloe.inline.layout import TABLE
from icefloe.lake import open_catalog
from icefloe.metadata.table_state import TableState

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])
INLINE = {"icefloe.inline.enabled": "true"}
NAME = "shop.t"
Rows = list[tuple[int, str | None]]


class SparkNeededError(AssertionError):
    """A statement cannot do without Spark."""


class NoSpark:
    """A session that has settings, and of which nothing else can be asked."""

    @property
    def conf(self) -> NoSpark:
        return self

    def get(self, _name: str, _default: object = None) -> str:
        return "false"

    def __getattr__(self, name: str) -> NoReturn:
        raise SparkNeededError(f"Spark was used: {name}")


def open_place(place: str) -> Lake:
    """The lake of a place.

    A folder, a PostgreSQL catalog and its warehouse (`URI FOLDER`), or a REST catalog and the
    database of its inline rows (`URI INLINE_URI`).
    """
    uri, _, beside = place.partition(" ")
    if not beside:
        lake = Lake(open_catalog(Path(place), None, {}))
    elif uri.startswith("postgresql"):
        lake = Lake(open_catalog(Path(beside), None, {"type": "sql", "uri": uri}))
    else:
        lake = Lake(open_catalog(None, "prod", {"type": "rest", "uri": uri}), None, beside)
    lake._spark = NoSpark()  # type: ignore[assignment]
    return lake


def row(number: int, s: str | None = None) -> dict[str, Any]:
    return {"id": number, "s": s}


def everything(table: Table) -> Rows:
    """The rows of both tiers, each read by itself: a row in both would be here twice."""
    while True:
        try:
            state = table._lake.tier.with_deletes(table._state())
            cut = table._lake.tier.cut(state)
        except PointerMovedError:
            continue
        filed: Counter[tuple[int, str | None]] = Counter()
        if state.snapshot_id is not None:  # there may be one by now
            snapshot = table.iceberg.scan(snapshot_id=state.snapshot_id)
            filed = Counter(_as_rows(snapshot.to_arrow()))
        filed.subtract(_deleted_rows(state))
        assert min(filed.values(), default=0) >= 0, "a row that is not there is deleted"
        inline = [] if cut is None else _as_rows(cut.arrow())
        return sorted([*filed.elements(), *inline])


def _deleted_rows(state: TableState) -> Rows:
    """The rows of files that are deleted in the database."""
    deleted: Rows = []
    for path, positions in state.deleted_inline.items():
        rows = pq.read_table(urlparse(path).path, columns=SCHEMA.names)
        deleted += _as_rows(rows.take(list(positions)))
    return deleted


def _as_rows(rows: pa.Table) -> Rows:
    return [(found["id"], found["s"]) for found in rows.to_pylist()]


def registered(lake: Lake) -> int:
    """How many tables the store knows."""
    with lake.tier.store.reading() as connection:
        return len(connection.execute(TABLE.select()).all())


def new_table(lake: Lake, name: str = NAME, **properties: str) -> Table:
    """Row 1 in a file, rows 2 and 3 inline."""
    table = lake.create_table(name, SCHEMA, properties={**INLINE, **properties})
    table.insert([row(1, "a")])
    table.flush()
    table.insert([row(2, "b"), row(3)])
    return table


def _table_of_files(lake: Lake, name: str) -> Table:
    """Rows 1 and 2 and a deleted one in a file, row 2 of the file in a new version inline."""
    table = lake.create_table(name, SCHEMA, properties=INLINE)
    table.insert([row(1, "a"), row(2, "old"), row(3), row(5)])
    table.flush()
    table.delete().where("id = 5").execute()
    table.update().set("s", "'b'").where("id = 2").execute()
    assert table.inline is not None
    assert table.inline.deletes == 2
    return table


def _table_of_commits(lake: Lake, name: str) -> Table:
    """Rows 1, 4 and 5 in a file, rows 2 and 3 inline; rows of files are deleted by commits."""
    properties = {**INLINE, "icefloe.inline.deletes": "false"}
    table = lake.create_table(name, SCHEMA, properties=properties)
    table.insert([row(1, "a"), row(4, "four"), row(5, "five")])
    table.flush()
    table.insert([row(2, "b"), row(3)])
    return table


def _empty_table(lake: Lake, name: str) -> Table:
    return lake.create_table(name, SCHEMA, properties=INLINE)


def _switched_on_by_others(lake: Lake, name: str) -> None:
    with lake.create_table(name, SCHEMA).iceberg.transaction() as transaction:
        transaction.set_properties(INLINE)


def _plain_table(lake: Lake, name: str) -> Table:
    return lake.create_table(name, SCHEMA)


ROWS: Rows = [(1, "a"), (2, "b"), (3, None)]


@dataclass(frozen=True)
class Operation:
    """A statement and the rows of its table before and after it; None: there is no table."""

    run: Callable[[Lake, str], object]
    after: Rows | None
    before: Rows | None = field(default_factory=list)
    make: Callable[[Lake, str], object] = new_table

    @classmethod
    def on_rows(cls, run: Callable[[Lake, str], object], after: Rows | None) -> Operation:
        return cls(run, after, ROWS)

    def name_after(self, name: str) -> str:
        """The name of the table once the statement is done."""
        return f"{name}_renamed" if self is OPERATIONS["rename"] else name


OPERATIONS: dict[str, Operation] = {
    "insert": Operation.on_rows(
        lambda lake, name: lake.table(name).insert([row(4, "new")]), [*ROWS, (4, "new")]
    ),
    "insert after a read": Operation.on_rows(  # in PostgreSQL it is one statement
        lambda lake, name: (lake.table(name).to_arrow(), lake.table(name).insert([row(4, "new")])),
        [*ROWS, (4, "new")],
    ),
    "insert with a key": Operation.on_rows(
        lambda lake, name: lake.table(name).insert([row(4, "new")], idempotency_key="k"),
        [*ROWS, (4, "new")],
    ),
    "update": Operation.on_rows(
        lambda lake, name: lake.table(name).update().set("s", "'new'").where("id > 1").execute(),
        [(1, "a"), (2, "new"), (3, "new")],
    ),
    "delete": Operation.on_rows(
        lambda lake, name: lake.table(name).delete().where("id = 2").execute(),
        [(1, "a"), (3, None)],
    ),
    "update a row of a file": Operation(
        lambda lake, name: lake.table(name).update().set("s", "'c'").where("id < 3").execute(),
        [(1, "c"), (2, "c"), (3, None)],
        ROWS,
        _table_of_files,
    ),
    "delete a row of a file": Operation(
        lambda lake, name: lake.table(name).delete().where("id IN (1, 2)").execute(),
        [(3, None)],
        ROWS,
        _table_of_files,
    ),
    "flush deletes": Operation(
        lambda lake, name: lake.table(name).flush(), ROWS, ROWS, _table_of_files
    ),
    "flush": Operation.on_rows(lambda lake, name: lake.table(name).flush(), ROWS),
    "truncate": Operation.on_rows(lambda lake, name: lake.table(name).truncate(), []),
    "drop": Operation.on_rows(lambda lake, name: lake.drop_table(name), None),
    "purge": Operation.on_rows(lambda lake, name: lake.drop_table(name, purge=True), None),
    "rename": Operation.on_rows(
        lambda lake, name: lake.rename_table(name, f"{name}_renamed"), ROWS
    ),
    "switch off": Operation.on_rows(
        lambda lake, name: lake.table(name).set_properties({"icefloe.inline.enabled": False}), ROWS
    ),
    "first insert": Operation(
        lambda lake, name: lake.table(name).insert([row(4, "new")]),
        [(4, "new")],
        make=_empty_table,
    ),
    "insert where another engine switched on": Operation(
        lambda lake, name: lake.table(name).insert([row(4, "new")]),
        [(4, "new")],
        make=_switched_on_by_others,
    ),
    "create": Operation(
        lambda lake, name: lake.create_table(name, SCHEMA, properties=INLINE),
        [],
        before=None,
        make=lambda lake, name: lake.create_namespace(name.partition(".")[0]),
    ),
    "switch on": Operation(
        lambda lake, name: lake.table(name).set_properties(INLINE), [], make=_plain_table
    ),
}


# Statements that change rows of both tiers and need Spark.
SPARK_OPERATIONS: dict[str, Operation] = {
    "merge": Operation(
        lambda lake, name: (
            lake.table(name)
            .merge([row(1, "m"), row(2, "m"), row(3, "m"), row(4, "n")], on="target.id = source.id")
            .when_matched("source.id = 3").delete()
            .when_matched().update_all()
            .when_not_matched().insert_all()
            .execute()
        ),
        [(1, "m"), (2, "m"), (4, "n")],
        ROWS,
        _table_of_files,
    ),
    "update, copy-on-write": Operation(
        lambda lake, name: (
            lake.table(name).update().set("s", "s || '!'").where("length(s) = 1")
            .with_options(mode="copy-on-write").execute()
        ),
        [(1, "a!"), (2, "b!"), (3, None)],
        ROWS,
        _table_of_files,
    ),
    "update, in the database": Operation(
        lambda lake, name: (
            lake.table(name).update().set("s", "s || '!'").where("length(s) = 1").execute()
        ),
        [(1, "a!"), (2, "b!"), (3, None)],
        ROWS,
        _table_of_files,
    ),
    "delete, merge-on-read": Operation(
        lambda lake, name: lake.table(name).delete().where("length(s) = 1 OR id = 4").execute(),
        [(3, None), (5, "five")],
        [(1, "a"), (2, "b"), (3, None), (4, "four"), (5, "five")],
        _table_of_commits,
    ),
    "replace where": Operation(
        lambda lake, name: (
            lake.table(name).replace_where("id < 3", [row(1, "r")])
            .with_options(scope="rows").execute()
        ),
        [(1, "r"), (3, None)],
        ROWS,
        _table_of_files,
    ),
    "overwrite": Operation(
        lambda lake, name: lake.table(name).overwrite(
            lake.spark.createDataFrame([(7, "o")], "id BIGINT, s STRING")
        ),
        [(7, "o")],
        ROWS,
        _table_of_files,
    ),
    "compact": Operation(
        lambda lake, name: lake.table(name).compact(), ROWS, ROWS, _table_of_files
    ),
}  # fmt: skip
EVERY_OPERATION = {**OPERATIONS, **SPARK_OPERATIONS}


def present_name(place: str, operation: Operation, name: str) -> str | None:
    """What the table is called now; None if it is gone."""
    with open_place(place) as lake:
        names = lake.tables("shop")
    found = [each for each in (name, operation.name_after(name)) if each in names]
    return found[0] if found else None


def rows_of(place: str, operation: Operation, name: str) -> Rows | None:
    """What another lake reads; None if the table is gone."""
    present = present_name(place, operation, name)
    if present is None:
        return None
    with open_place(place) as lake:
        return everything(lake.table(present))


def cases(third: int, operations: Mapping[str, Operation] = OPERATIONS) -> list[object]:
    """Each statement at a few of its calls, and in `make test-all` on both databases at all.

    Some of the statements are on PostgreSQL in `make test` too, the others on SQLite.
    """
    return [
        pytest.param(
            database,
            name,
            every,
            id=f"{database}-{name}{', every call' * every}",
            marks=[pytest.mark.slow] if every else [],
        )
        for every in (False, True)
        for number, name in enumerate(operations)
        for database in ("sqlite", "postgresql")
        if every or (database == "postgresql") == (number % 3 == third)
    ]
