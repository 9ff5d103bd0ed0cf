"""Tables with an index on every column that can have one, and what statements should do to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow

from icefloe import Lake, Table
from icefloe.commands.merge import lookup as merge_lookup
from icefloe.indexes import lookup
from support.foreign_files import equality_delete, publish
from support.random_conditions import SCHEMA, random_rows

INDEXED = ("i", "l", "d", "f", "n", "s", "day", "ts", "ntz")
Rows = list[dict[str, Any]]


def use_indexes_always(patched: pytest.MonkeyPatch) -> None:
    """Tables of tests are small: whole files would be as cheap to read."""
    patched.setattr(lookup, "_why_not_read", lambda *_: None)
    patched.setattr(merge_lookup, "_MOST_KEYS", 0)
    patched.setattr(merge_lookup, "_MOST_FETCHED", 0)


def make_indexed(
    lake: Lake, name: str, mode: str = "merge-on-read", partition_by: Sequence[str] = ()
) -> Table:
    """An empty table with an index on every column, and one on two of them."""
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
    table = lake.create_table(
        name, SCHEMA, partition_by=("b",) if partition_by else (), properties=modes
    )
    for column in INDEXED:
        table.create_index(f"by_{column}", "btree", [column])
    table.create_index("pair", "btree", ["i", "s"])
    return table


def fill(table: Table, lake: Lake, *, of_others: bool = True) -> None:
    """Files of two specs with deleted rows; some of them from writers that know no index."""
    table.append(random_rows(1, 60))
    table.delete().where("id % 7 = 3").with_options(mode="merge-on-read").execute()
    if of_others:
        append_by_pyiceberg(table, numbered(random_rows(2, 40), 100))
    first_spec = table.iceberg.spec()
    if of_others and first_spec.is_unpartitioned():
        publish(lake, table, deletes=[equality_delete(table, [{"i": 5}, {"i": None}])])
    elif of_others:
        deletes = equality_delete(table, [{"i": 5}], partition=(True,), spec_id=first_spec.spec_id)
        publish(lake, table, deletes=[deletes])
    table.evolve_partitions(() if table.iceberg.spec().fields else ("b",))
    table.append(numbered(random_rows(3, 60), 200))
    table.delete().where("id % 11 = 4").with_options(mode="merge-on-read").execute()


def numbered(rows: Rows, first: int) -> Rows:
    return [{**each, "id": first + number} for number, each in enumerate(rows)]


def append_by_pyiceberg(table: Table, rows: Rows) -> None:
    schema = schema_to_pyarrow(table.iceberg.schema(), include_field_ids=False)
    table.iceberg.append(pa.Table.from_pylist(rows, schema=schema))


def texts(rows: Rows) -> list[str]:
    """Rows as texts, in which NaN equals itself and -0.0 is not 0.0."""
    return sorted(map(repr, rows))


@dataclass(frozen=True)
class JudgedRows:
    """Every live row, read without an index, and which conditions Spark finds TRUE for it."""

    rows: Rows
    truths: list[list[bool]]  # by row

    @staticmethod
    def of(table: Table, conditions: Sequence[str]) -> JudgedRows:
        judged = [f"coalesce(({text}), false) AS p{n}" for n, text in enumerate(conditions)]
        found = table.scan().selectExpr("*", *judged).toArrow()
        names = [field.name for field in SCHEMA.fields]
        truths = found.drop_columns(names).to_pylist()
        return JudgedRows(found.select(names).to_pylist(), [[*row.values()] for row in truths])

    def true_for(self, number: int) -> Rows:
        return [r for r, truths in zip(self.rows, self.truths, strict=True) if truths[number]]

    def others(self, number: int) -> Rows:
        return [r for r, truths in zip(self.rows, self.truths, strict=True) if not truths[number]]


# New values of columns: as SQL, and in Python.
NEW_VALUES: list[tuple[str, str, Any]] = [
    ("i", "5", 5),
    ("i", "NULL", None),
    ("l", "-1", -1),
    ("l", "9223372036854775807", 2**63 - 1),
    ("d", "double('NaN')", float("nan")),
    ("d", "1.5", 1.5),
    ("s", "'ab'", "ab"),
    ("s", "''", ""),
    ("day", "DATE '2024-02-29'", date(2024, 2, 29)),
    ("b", "true", True),
]
