"""Rows of the table names in a text: tables of the lake, sources, metadata tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.commands.context import Tables
from icefloe.commands.scan import ScanRequest, read_once, read_rows
from icefloe.errors import StatementError, UnknownTableError
from icefloe.inspection.metadata_tables import METADATA_TABLES, metadata_table
from icefloe.metadata.table_state import MAIN, TableState, state_of
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.table_names import DEFAULT_NAMESPACE, TableName, Travel
from icefloe.spark.tokens import TokenKind, tokenize
from icefloe.sql.cursor import string_value
from icefloe.sql.syntax import Name


@dataclass(slots=True)
class TablesRead:
    """The states of tables that a statement has read: it sees each table at one time."""

    reading: TableState | None = None  # of the table that the statement changes
    states: dict[str, TableState] = field(default_factory=dict)

    def state(
        self, full: str, reading: TableState | None, read: Callable[[], TableState]
    ) -> TableState:
        """The state of a table; all are read again where the statement runs again."""
        if reading is not self.reading:
            self.reading = reading
            self.states.clear()
        if full not in self.states:
            self.states[full] = read()
        return self.states[full]


@dataclass(frozen=True, slots=True)
class Names:
    """Resolves names: of a WITH, then tables of the lake, then sources. Spark resolves the rest."""

    tables: Tables
    sources: Mapping[str, DataFrame] = field(default_factory=dict)  # names in lower case
    ctes: Mapping[str, DataFrame] = field(default_factory=dict)
    reading: TableState | None = None  # of the table that the statement changes
    lake_only: bool = (
        False  # refuse names that only Spark can resolve: files, views, other catalogs
    )
    read: TablesRead = field(default_factory=TablesRead)  # of one statement

    def rows(self, name: TableName) -> DataFrame | None:
        """The rows of a name; None if only Spark can resolve it."""
        rows = self._by_name(name, self.ctes)
        if rows is not None:
            return rows
        plain = all(map(_is_plain, name.parts))
        full = full_name(name.parts) if plain else ""
        if plain and self.tables.catalog.table_exists(full):
            return self._table(name, full)
        rows = self._by_name(name, self.sources)
        if rows is None and plain:
            rows = self._metadata(name)
        if rows is None and self.lake_only:
            self.check(name)
        return rows

    def check(self, name: TableName) -> None:
        """Refuse a name that is not one of the lake's, without reading its table."""
        if all(map(_is_plain, name.parts)):
            if self.tables.catalog.table_exists(full_name(name.parts)):
                return
            if self._metadata_name(name)[1] is not None:
                return
        raise UnknownTableError(
            f"{name} is not a table of this lake, and only such tables can be read here: no files, "
            "no views and no tables of other catalogs."
        )

    def is_target(self, name: TableName) -> bool:
        """Whether a name is the table that the statement changes, without time travel."""
        if self.reading is None or name.travel is not None or not all(map(_is_plain, name.parts)):
            return False
        return self._by_name(name, self.ctes) is None and full_name(name.parts) == self.reading.name

    def _by_name(self, name: TableName, frames: Mapping[str, DataFrame]) -> DataFrame | None:
        rows = frames.get(name.parts[0].lower()) if len(name.parts) == 1 else None
        if rows is not None:
            _refuse_travel(name, "a source has no history")
        return rows

    def _table(self, name: TableName, full: str) -> DataFrame:
        def read_state(branch: str) -> TableState:
            return state_of(self.tables.load(full), full, branch)

        context = self.tables.context(read_state)
        if name.travel is None:
            if self.reading is not None and self.is_target(name):
                return read_rows(context, self.reading)
            once = self.read.state(full, self.reading, lambda: read_once(context, read_state(MAIN)))
            return read_rows(context, once)
        state = read_state(MAIN)
        match name.travel:
            case Travel.VERSION:
                snapshot_id = _snapshot_id(name.version, state)
                return read_rows(context, state, ScanRequest(snapshot_id=snapshot_id))
            case Travel.TIMESTAMP:
                timestamp = self._timestamp(name.version)
                return read_rows(context, state, ScanRequest(as_of=timestamp))

    def _metadata(self, name: TableName) -> DataFrame | None:
        """The rows of `ns.t.files`, in Trino's spelling `ns.t$files`."""
        kind, full = self._metadata_name(name)
        if full is None:
            return None
        _refuse_travel(name, "a metadata table shows the current state only")
        return metadata_table(kind, self.tables.load(full), self.tables.spark)

    def _metadata_name(self, name: TableName) -> tuple[str, str | None]:
        """The kind of a metadata table, and its table; None for other names."""
        *head, last = name.parts
        if "$" in last:
            base, _, kind = last.rpartition("$")
            parts: Name = (*head, base)
        else:
            parts, kind = tuple(head), last
        kind = kind.lower()
        if kind not in METADATA_TABLES or not parts or not parts[-1]:
            return kind, None
        full = full_name(parts)
        return kind, full if self.tables.catalog.table_exists(full) else None

    def _timestamp(self, text: str) -> datetime:
        """The value of TIMESTAMP AS OF, computed by Spark in the session's time zone."""
        with translate_spark_errors():
            row = (
                self.tables.spark.range(1)
                .select(F.unix_micros(F.expr(f"CAST(({text}\n) AS TIMESTAMP)")).alias("at"))
                .first()
            )
        if row is None or row["at"] is None:
            raise StatementError(f"TIMESTAMP AS OF {text} is not a valid timestamp.")
        return datetime.fromtimestamp(row["at"] / 1_000_000).astimezone()


def full_name(parts: Name) -> str:
    """The full name of a table; refuses parts with dots or backticks."""
    for part in parts:
        if not _is_plain(part):
            raise StatementError(
                f"{part!r} cannot be part of a table name: dots, backticks and empty names are "
                "not supported."
            )
    return ".".join(parts) if len(parts) > 1 else f"{DEFAULT_NAMESPACE}.{parts[0]}"


def _is_plain(part: str) -> bool:
    return part != "" and not set(part) & {".", "`"}


def _refuse_travel(name: TableName, reason: str) -> None:
    if name.travel is not None:
        raise StatementError(f"{name} {name.travel.value} cannot be read: {reason}.")


def _snapshot_id(text: str, state: TableState) -> int:
    """The snapshot of VERSION AS OF: an id, or the name of a branch or tag as a string."""
    (token, *more) = tokenize(text)
    value = string_value(token.text) if token.kind is TokenKind.STRING else token.text
    if token.kind is TokenKind.STRING and value in state.metadata.refs:
        return state.metadata.refs[value].snapshot_id
    if more or not value.isdecimal():
        refs = ", ".join(sorted(state.metadata.refs)) or "(none)"
        raise StatementError(
            f"VERSION AS OF takes a snapshot id, or the name of a branch or tag as a string, "
            f"not {text}. Branches and tags of {state.name}: {refs}."
        )
    return int(value)
