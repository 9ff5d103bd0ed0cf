"""Changes to a table's schema, partitioning, properties and current snapshot."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate
from pyiceberg.types import NestedField

from icefloe.commands.context import Context
from icefloe.commands.flush import FlushCommand
from icefloe.commands.run import flush, run_command
from icefloe.commit.catalog import (
    changing_catalog,
    reading_catalog,
    refuse_other_table,
    refuse_partial_history,
)
from icefloe.errors import (
    ColumnNotFoundError,
    ConflictError,
    IcefloeError,
    StatementError,
    UnsupportedTableError,
)
from icefloe.indexes.definitions import definitions_of
from icefloe.inline.layout import inline_columns
from icefloe.metadata.table_state import (
    MAIN,
    TableState,
    at_snapshot,
    snapshot_as_of,
)
from icefloe.redaction import scrubbed
from icefloe.schema.partition_spec import parse_partition_by
from icefloe.schema.to_iceberg import to_iceberg_schema
from icefloe.settings import INLINE, INLINE_STORE, Settings, properties_to_store
from icefloe.spark import columns
from icefloe.spark.columns import quote

log = logging.getLogger("icefloe")

_FORMAT_VERSION = "format-version"


def set_properties(context: Context, table: IcebergTable, properties: Mapping[str, object]) -> None:
    """Store properties; modes in Iceberg's spelling, `format-version` as an upgrade."""
    stored = properties_to_store(properties)
    upgrade = stored.pop(_FORMAT_VERSION, None)
    state = context.read_state(MAIN)
    turns_off = False
    if INLINE in stored and Settings.of(stored).inline_enabled:
        stored[INLINE_STORE] = _inline_store(context, state)
    elif INLINE in stored:
        turns_off = state.has_inline_tier
    with changing_table(table), table.transaction() as transaction:
        if upgrade is not None:
            transaction.upgrade_table_version(_version(upgrade))
        if stored and not turns_off:
            transaction.set_properties(stored)
    if turns_off:
        _switch_off(context, state, stored)


def _inline_store(context: Context, state: TableState) -> str:
    """The id of the inline tier's database, for a table that may have the tier."""
    inline_columns(state.schema)  # refuses types that the tier cannot store
    store = context.tier.store_id()
    if state.metadata.properties.get(INLINE_STORE, store) != store:
        raise UnsupportedTableError(
            f"Inline rows of {state.name} are in another database, the inline store "
            f"{state.metadata.properties[INLINE_STORE]}. Flush them first, through the catalog or "
            "the inline_uri= that they were written with."
        )
    return store


def _switch_off(context: Context, state: TableState, stored: dict[str, str]) -> None:
    """Store the properties, and flush inline rows in the same commit.

    A row that is inserted while they are flushed stays inline, is read as before, and is flushed
    next; after the commit no further row can be inserted.
    """
    result = run_command(FlushCommand(context, properties=stored), context)
    if result.snapshot_id is None:
        with reading_catalog(f"read {state.name}"):
            table = context.catalog.load_table(state.name)
        with changing_table(table), table.transaction() as transaction:
            transaction.set_properties(stored)
    try:
        flush(context)
    except IcefloeError as error:  # the tier is off, and its last rows are read where they are
        log.warning("Inline rows are left, and flush() moves them: %s", error)


def add_column(table: IcebergTable, name: str, kind: str, default: Any) -> None:
    """Add an optional column of a Spark SQL type."""
    if default is not None:
        raise UnsupportedTableError(
            f"A default for {name!r} needs format version 3, which icefloe does not write; Iceberg "
            "keeps no defaults in version 2. Add the column and set it with update()."
        )
    add_columns(table, [(tuple(name.split(".")), kind)])


def add_columns(table: IcebergTable, added: Sequence[tuple[tuple[str, ...], str]]) -> None:
    """Add optional columns, or fields of structs, in one commit; types may have a COMMENT."""
    names = {column.name.lower() for column in table.schema().fields}
    fields = []
    for path, kind in added:
        fields.append(_new_field(path, kind))
        if len(path) == 1 and path[0].lower() in names:
            raise StatementError(f"The table already has a column {path[0]!r}.")
        names |= {path[0].lower()} if len(path) == 1 else set()
    with changing_table(table), table.update_schema() as update:
        for (path, _), field in zip(added, fields, strict=True):
            update.add_column(path if len(path) > 1 else path[0], field.field_type, field.doc)


def _new_field(path: tuple[str, ...], kind: str) -> NestedField:
    name, last = ".".join(path), path[-1]
    if last.startswith(columns.PREFIX):
        raise StatementError(f"Column names must not start with {columns.PREFIX!r}: {name!r}.")
    field = to_iceberg_schema(f"{quote(last)} {kind}").fields[0]
    if field.required:
        raise StatementError(
            f"A new column cannot be NOT NULL: existing rows have no value for {name!r}."
        )
    return field


def drop_column(table: IcebergTable, name: str) -> None:
    """Drop a column that the current partition spec does not use."""
    drop_columns(table, [name])


def drop_columns(table: IcebergTable, names: Sequence[str]) -> None:
    """Drop columns in one commit; none that the partition spec or the sort order uses."""
    dropped = [_column(table, name) for name in names]
    used = [field.source_id for field in table.spec().fields]
    ordered = [field.source_id for field in table.sort_order().fields]
    for column in dropped:
        field = table.schema().find_field(column)
        for source_id in {field.field_id, *index_by_id(field.field_type)} & {*used, *ordered}:
            source = table.schema().find_column_name(source_id)
            how = "partitioned" if source_id in used else "sorted"
            raise StatementError(
                f"The table is {how} by {source!r}, so {column!r} cannot be dropped."
            )
        _refuse_indexed(table, field)
    with changing_table(table), table.update_schema() as update:
        for column in dropped:
            update.delete_column(column)


def _refuse_indexed(table: IcebergTable, field: NestedField) -> None:
    """Refuse to drop a column of an index."""
    for definition in definitions_of(table.metadata):
        if field.field_id in definition.field_ids:
            raise StatementError(
                f"Index {definition.name!r} is on {field.name!r}, so the column cannot be dropped. "
                f"Drop the index first: drop_index({definition.name!r})."
            )


def rename_column(table: IcebergTable, old: str, new: str) -> None:
    """Rename a column."""
    column = _column(table, old)
    names = {field.name.lower() for field in table.schema().fields}
    if new.lower() in names - {old.lower()}:
        raise StatementError(f"The table already has a column {new!r}.")
    if new.startswith(columns.PREFIX) or not new:
        raise StatementError(f"{new!r} is not a valid column name.")
    with changing_table(table), table.update_schema() as update:
        update.rename_column(column, new)


def evolve_partitions(table: IcebergTable, partition_by: Sequence[str] | str) -> None:
    """Make `partition_by` the spec of new files; fields that both specs have are kept."""
    new_spec = parse_partition_by(partition_by, table.schema())
    current = {(f.source_id, str(f.transform)): f for f in table.spec().fields}
    new = {(f.source_id, str(f.transform)): f for f in new_spec.fields}
    with changing_table(table), table.update_spec() as update:
        for key, field in current.items():
            if key not in new and str(field.transform) != "void":
                update.remove_field(field.name)
        for key, field in new.items():
            if key not in current:
                source = table.schema().find_column_name(field.source_id)
                update.add_field(str(source), field.transform, _free_name(field, table))


def _free_name(field: PartitionField, table: IcebergTable) -> str:
    """The field's name, or one with its width where an earlier field has that name."""
    taken = {f.name for spec in table.specs().values() for f in spec.fields}
    if field.name not in taken:
        return field.name
    wide = f"{field.name}_{re.sub(r'[^0-9]', '', str(field.transform)) or 'again'}"
    return next(
        name for name in (wide, *(f"{wide}_{n}" for n in range(2, 1000))) if name not in taken
    )


@scrubbed()
def rollback(context: Context, snapshot_id: int | None, as_of: datetime | None) -> None:
    """Point the main branch at an earlier snapshot; inline rows are flushed before."""
    catalog, state = context.catalog, context.read_state(MAIN)
    refuse_partial_history(catalog)
    if (snapshot_id is None) == (as_of is None):
        raise StatementError("rollback takes either a snapshot_id or as_of.")
    target = snapshot_as_of(state, as_of) if as_of is not None else snapshot_id
    at_snapshot(state, int(str(target)))  # raises for a snapshot that the table does not have
    if state.has_inline_tier:
        flush(context)
        state = context.read_state(MAIN)
    with reading_catalog(f"read {state.name}"):
        table = catalog.load_table(state.name)
    uuid = state.metadata.table_uuid
    refuse_other_table(table.metadata, state.name, uuid)
    ref = table.metadata.refs.get("main")
    with changing_table(table):
        catalog.commit_table(
            table,
            (
                AssertTableUUID(uuid=uuid),
                AssertRefSnapshotId(ref="main", snapshot_id=state.metadata.current_snapshot_id),
            ),
            (
                SetSnapshotRefUpdate(
                    ref_name="main",
                    type=SnapshotRefType.BRANCH,
                    snapshot_id=target,
                    max_ref_age_ms=ref.max_ref_age_ms if ref else None,
                    max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
                    min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
                ),
            ),
        )


def _column(table: IcebergTable, name: str) -> str:
    """The full name of a column as the table spells it; the lookup ignores case."""
    schema = table.schema()
    try:
        return str(schema.find_column_name(schema.find_field(name, case_sensitive=False).field_id))
    except ValueError:
        raise ColumnNotFoundError(name, [field.name for field in schema.fields]) from None


def _version(text: str) -> Any:
    if text not in ("1", "2"):
        raise UnsupportedTableError(f"Format version {text} is not supported; use 2.")
    return int(text)


@contextmanager
def changing_table(table: IcebergTable) -> Iterator[None]:
    """Translate the errors of a commit that changes metadata alone."""
    name = ".".join(table.name())

    def has_landed() -> bool | None:
        """The pointer shows only that no change was made."""
        current = table.catalog.load_table(table.name())
        return False if current.metadata_location == table.metadata_location else None

    try:
        with changing_catalog(table.catalog, f"change {name}", has_landed):
            yield
    except CommitFailedException as lost:
        raise ConflictError(
            f"another writer changed the table concurrently ({lost})",
            table=name,
            base_snapshot_id=table.metadata.current_snapshot_id,
            current_snapshot_id=None,
        ) from lost
    except (ValueError, ValidationError) as invalid:
        raise StatementError(f"{name}: {invalid}") from invalid
