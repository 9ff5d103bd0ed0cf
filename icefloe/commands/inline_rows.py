"""Insert rows into the inline tier, and change or remove rows that are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import Column, DataFrame, SparkSession

from icefloe.commands.bind import Bound
from icefloe.commands.context import NeedsFlushError
from icefloe.commands.input_rows import as_schema
from icefloe.commands.scan import inline_frame
from icefloe.commit.catalog import changing_catalog, reading_catalog, refuse_other_table
from icefloe.commit.publish import find_earlier_result
from icefloe.errors import CommitOutcomeUnknown, StorageError, TableNotFoundError
from icefloe.file_changes import FileChanges, InlineChanges, RowVersion
from icefloe.inline.bookkeeping import claim_key, find_seq
from icefloe.inline.cut import Cut, PointerMovedError
from icefloe.inline.encode import encode_rows
from icefloe.inline.layout import InlineTable, Value, inline_columns
from icefloe.inline.rows import InsertedRows, insert_if_current, insert_rows
from icefloe.inline.store import ChangeStamp, StoreConnection
from icefloe.inline.tables import add_missing_columns, register_table
from icefloe.inline.tier import InlineTier
from icefloe.metadata.table_state import TableState
from icefloe.results import INLINE_MODE, DmlResult
from icefloe.settings import INLINE_STORE
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.errors import translate_spark_errors

# -------------------------------------------------------------------------------------------------
# INSERT


def set_inline_store(catalog: Catalog, tier: InlineTier, state: TableState) -> None:
    """Note in the table's properties which database its inline rows are in.

    Without it, they would not be read once the tier is switched off.
    """
    name, store_id = state.name, tier.store_id()
    with reading_catalog(f"read {name}"):
        table = catalog.load_table(name)
    refuse_other_table(table.metadata, name, state.metadata.table_uuid)
    if INLINE_STORE in table.properties:
        return

    def has_landed() -> bool:
        return INLINE_STORE in catalog.load_table(name).properties

    try:
        with (
            changing_catalog(catalog, f"note the inline store of {name}", has_landed),
            table.transaction() as transaction,
        ):
            transaction.set_properties({INLINE_STORE: store_id})
    except CommitFailedException:
        return  # the caller looks at the table again


@dataclass(frozen=True, slots=True)
class InlineInsert:
    """Rows that fit a table, for one transaction in the database of its inline rows."""

    tier: InlineTier
    state: TableState
    rows: pa.Table
    key: str | None = None  # of idempotency

    def run(self) -> tuple[DmlResult, int]:
        """Insert the rows; also returns an upper bound of the inline rows that there are then.

        Raises:
            PointerMovedError: The table's metadata changed, so the rows may no longer fit.
        """
        result = DmlResult("insert", INLINE_MODE, rows_inserted=self.rows.num_rows)
        if self.key is not None and (
            earlier := find_earlier_result(self.state, self.key, self.tier)
        ):
            return earlier, 0
        encoded = encode_rows(self.rows, self.state.schema)
        stamp: ChangeStamp | None = None
        try:
            with self.tier.store.writing() as connection:
                if (done := self._insert_at_once(connection, encoded)) is not None:
                    inserted, stamp = done
                    return result, inserted.span
                table = self._table(connection)
                stamp = self.tier.stamp(connection, self.state, table)
                if self.key is not None:
                    taken = claim_key(connection, table, self.key, result.as_json(), stamp)
                    if taken is not None:
                        return DmlResult.from_json(taken), 0
                span = self._insert(connection, table, encoded, stamp)
        except CommitOutcomeUnknown:
            if stamp is None or not self._has_landed(stamp):
                raise
            return result, 0
        return result, span

    def _insert_at_once(
        self, connection: StoreConnection, encoded: list[list[Value]]
    ) -> tuple[InsertedRows, ChangeStamp] | None:
        """Insert the rows by one statement; None, without a change, if that cannot be done."""
        if self.key is not None or not connection.is_postgresql:
            return None
        columns = inline_columns(self.state.schema)
        known = self.tier.known_table(self.state)
        if known is None or not set(columns) <= set(known[0].columns):
            return None
        table, current = known
        try:
            return insert_if_current(connection, table, columns, encoded, current)
        except TableNotFoundError as dropped:  # there may be another one of that name
            self.tier.forget_table(self.state)
            raise PointerMovedError from dropped

    def _table(self, connection: StoreConnection) -> InlineTable:
        """The table in the store, if the rows were fitted to its current metadata.

        A catalog in another database was asked for it just before. What it says is not current any
        more is no harm: values are stored by field id.
        """
        needed = inline_columns(self.state.schema)
        table = self.tier.find_current(connection, self.state)
        if table is None:
            uuid = str(self.state.metadata.table_uuid)
            table = register_table(connection, self.tier.name_of(self.state), uuid, needed)
        if not self.tier.shares_database:
            # A flush must not find this insert's number taken and its rows missing.
            connection.lock_table(table, shared=True)
        return add_missing_columns(connection, table, needed)

    def _insert(
        self,
        connection: StoreConnection,
        table: InlineTable,
        encoded: list[list[Value]],
        stamp: ChangeStamp,
    ) -> int:
        columns = inline_columns(self.state.schema)
        return insert_rows(connection, table, columns, encoded, stamp).span

    def _has_landed(self, stamp: ChangeStamp) -> bool:
        """Whether the rows are there; if they are flushed already, only the key shows it."""
        try:
            with self.tier.store.reading() as connection:
                table = self.tier.find(connection, self.state)
                return table is not None and find_seq(connection, table, stamp.seq)
        except StorageError:
            return False


# -------------------------------------------------------------------------------------------------
# UPDATE, DELETE and replacements


def change_inline_rows(
    spark: SparkSession, bound: Bound, cut: Cut | None, alias: str
) -> InlineChanges:
    """The inline rows that a statement changes, with their new values.

    Spark evaluates the condition and the new values. Where SQL has judged the condition exactly and
    the rows are to be deleted, there is nothing to evaluate.
    """
    if cut is None or not len(cut.rows):
        return InlineChanges()
    read = read_rows_of(cut)
    if not bound.assigned and cut.is_exact and bound.lowered.exact_for_rows:
        return replace(read, removed=tuple(cut.rows.versions))
    changed = _changed_rows(spark, bound, cut, alias)
    versions = versions_at(cut, changed.column(columns.POS))
    if not bound.assigned:
        return replace(read, removed=versions)
    values = as_schema(changed.drop_columns([columns.POS]), cut.schema)
    new_values = values if versions else None
    return replace(read, replaced=versions, new_values=new_values)


def remove_inline_rows(
    spark: SparkSession, cut: Cut | None, choose: Callable[[DataFrame], DataFrame]
) -> InlineChanges:
    """The removal of the inline rows that `choose` selects; it keeps their positions."""
    if cut is None or not len(cut.rows):
        return InlineChanges()
    with translate_spark_errors([field.name for field in cut.schema.fields]):
        chosen = choose(inline_frame(spark, cut)).select(columns.POS).toArrow()
    return replace(read_rows_of(cut), removed=versions_at(cut, chosen.column(columns.POS)))


def read_rows_of(cut: Cut) -> InlineChanges:
    """No change of rows that were read; where a subquery read them, too, all must stay so."""
    versions = cut.rows.versions
    relied_on = tuple(versions) if cut.is_pinned else ()
    return InlineChanges(read=frozenset(versions), read_at=cut.read_at, relied_on=relied_on)


def versions_at(cut: Cut, row_ids: pa.ChunkedArray) -> tuple[RowVersion, ...]:
    """The versions of the rows with these ids."""
    seqs = dict(cut.rows.versions)
    return tuple((row_id, seqs[row_id]) for row_id in row_ids.to_pylist())


def with_inline_changes(
    tier: InlineTier, report: DmlResult, changes: FileChanges, inline: InlineChanges
) -> tuple[DmlResult, FileChanges]:
    """A statement's report and changes, with those of inline rows.

    Raises:
        NeedsFlushError: One commit cannot change rows in files and in another database.
    """
    relies_on_inline = not inline.is_empty or inline.relied_on
    if changes.changes_files and relies_on_inline and not tier.shares_database:
        raise NeedsFlushError
    changes = replace(changes, inline=inline)
    report = replace(
        report,
        rows_updated=report.rows_updated + len(inline.replaced),
        rows_deleted=report.rows_deleted + len(inline.removed),
    )
    if not inline.is_empty and not changes.changes_files:
        report = replace(report, mode=INLINE_MODE)
    return report, changes


def _changed_rows(spark: SparkSession, bound: Bound, cut: Cut, alias: str) -> pa.Table:
    """The rows that the condition is TRUE for, with their new values and ids."""
    frame = inline_frame(spark, cut).drop(columns.FILE).alias(alias)
    if bound.condition is not None:
        frame = frame.filter(bound.condition)
    assigned: dict[str, Column] = dict(bound.assigned)
    if assigned:
        frame = frame.withColumns(assigned)
        names = [quote(field.name) for field in cut.schema.fields]
        frame = frame.selectExpr(*names, columns.POS)
    else:
        frame = frame.select(columns.POS)
    with translate_spark_errors([field.name for field in cut.schema.fields]):
        return frame.toArrow()
