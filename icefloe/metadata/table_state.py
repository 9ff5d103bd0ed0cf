"""The state of a table that one statement reads, and changes of its metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, ResolveError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.types import IcebergType, NestedField, PrimitiveType
from pyiceberg.utils.properties import property_as_bool
from pyroaring import BitMap64

from icefloe.errors import StatementError, UnsupportedTableError
from icefloe.redaction import DISTINCT, masked_repr, register
from icefloe.settings import INLINE_STORE, Settings
from icefloe.storage.file_io import io_of
from icefloe.storage.files import delete_files

if TYPE_CHECKING:
    from icefloe.inline.cut import Cut

MAIN = "main"


@dataclass(frozen=True, slots=True)
class InlineDeletes:
    """Rows of data files that a database says are deleted, beside the table's delete files."""

    positions: Mapping[str, BitMap64] = field(default_factory=dict)  # by data file location
    version: int = 0  # the last change of them
    live_in: int | None = None  # a snapshot in which all of these files were live
    # Of files that left the table since the last flush: a rollback may bring them back.
    former: Mapping[str, BitMap64] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows are deleted."""
        return sum(map(len, self.positions.values()))


@masked_repr
@dataclass(frozen=True, slots=True)
class TableState:
    """Metadata of a table, and the snapshot of it that a statement reads."""

    name: str
    metadata: TableMetadata = field(repr=False)  # has the table's properties as they are
    io: FileIO = field(repr=False)
    snapshot: Snapshot | None
    schema: Schema
    settings: Settings
    branch: str = MAIN
    called: str | None = None  # the alias that the statement gives the table
    pointer: str | None = None  # where the metadata was read from
    files_only: bool = False  # inline rows are not part of it: they are later, or in files by now
    # None where they have not been read; only a state that cannot have any is scanned then.
    inline_deletes: InlineDeletes | None = field(default=None, repr=False)
    # All inline rows, where a statement reads the table more than once: each read sees the same.
    inline_cut: Cut | None = field(default=None, repr=False)

    @property
    def alias(self) -> str:
        """The qualifier of the table's columns in the statement's texts."""
        return self.called or self.name.rpartition(".")[2]

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read; None if the table has none yet."""
        return self.snapshot.snapshot_id if self.snapshot else None

    @property
    def has_inline_tier(self) -> bool:
        """Whether a database may hold rows of it; the tier belongs to main."""
        if self.files_only or self.branch != MAIN:
            return False
        return self.settings.inline_enabled or INLINE_STORE in self.metadata.properties

    @property
    def deleted_inline(self) -> Mapping[str, BitMap64]:
        """Rows of data files that are deleted in the inline tier, by data file location.

        They must have been read where there may be any: without them deleted rows would come back.
        """
        if self.inline_deletes is not None:
            return self.inline_deletes.positions
        if self.has_inline_tier:
            raise AssertionError(f"the inlined deletes of {self.name} were not read")
        return {}

    @property
    def data_location(self) -> str:
        """Folder of data files."""
        return _folder(self.metadata, "write.data.path", "data")

    @property
    def index_location(self) -> str:
        """Folder of the sidecars of indexes.

        Other engines keep it: they skip folders whose name begins with an underscore, or delete
        files whose name is that of no reachable file, and a sidecar has the name of its data file.
        """
        configured = self.settings.index_location
        return (configured or f"{self.metadata.location.rstrip('/')}/_icefloe/index").rstrip("/")

    @property
    def metadata_location(self) -> str:
        """Folder of manifests and metadata."""
        return metadata_folder(self.metadata)


def state_of(table: IcebergTable, name: str, branch: str = MAIN) -> TableState:
    """The current state of a branch; a branch that does not exist yet starts at main."""
    metadata = table.metadata
    own = metadata.properties
    register({key: value for key, value in table.io.properties.items() if key not in own})
    register(own, shortest=DISTINCT, names=metadata.schema().column_names)
    if metadata.format_version > 2:
        raise UnsupportedTableError(
            f"{name} has format version {metadata.format_version}; icefloe works on versions 1 "
            "and 2. Create the table with format_version=2."
        )
    ref = metadata.refs.get(branch)
    if ref is not None and ref.snapshot_ref_type != "branch":
        raise StatementError(f"{branch!r} is a tag of {name}, not a branch: it cannot be changed.")
    snapshot = metadata.snapshot_by_name(branch) if ref else metadata.current_snapshot()
    return TableState(
        name=name,
        metadata=metadata,
        io=io_of(table),
        snapshot=snapshot,
        schema=metadata.schema(),
        settings=Settings.of(metadata.properties),
        branch=branch,
        pointer=table.metadata_location,
    )


def at_snapshot(state: TableState, snapshot_id: int) -> TableState:
    """The table as of a snapshot, with the schema it had then."""
    snapshot = state.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        newest = ", ".join(str(s.snapshot_id) for s in state.metadata.snapshots[-5:])
        raise StatementError(
            f"{state.name} has no snapshot {snapshot_id}. The newest are: {newest or '(none)'}."
        )
    schemas = {schema.schema_id: schema for schema in state.metadata.schemas}
    schema = schemas.get(snapshot.schema_id or 0, state.schema)
    return replace(
        state,
        snapshot=snapshot,
        schema=schema,
        files_only=True,
        inline_deletes=None,
        inline_cut=None,
    )


def snapshot_as_of(state: TableState, timestamp: datetime) -> int:
    """The snapshot that was current at `timestamp`; a naive datetime is local time."""
    millis = timestamp.astimezone(UTC).timestamp() * 1000
    log = state.metadata.snapshot_log
    entries = [e for e in log if e.timestamp_ms <= millis]
    if not entries:
        raise StatementError(f"{state.name} has no snapshot as old as {timestamp.isoformat()}.")
    snapshot_id = entries[-1].snapshot_id
    if len(entries) < len(log) and _is_gap(
        state.metadata, snapshot_id, log[len(entries)].snapshot_id
    ):
        raise StatementError(
            f"The snapshot that {state.name} had at {timestamp.isoformat()} has expired. The "
            f"newest earlier one is {snapshot_id}: read it with snapshot_id={snapshot_id}."
        )
    return snapshot_id


def _is_gap(metadata: TableMetadata, before: int, after: int) -> bool:
    """Whether snapshots between two of the log have expired: the second's parent is missing.

    After rollbacks back and forth the same snapshot may be in the log twice in a row.
    """
    old, new = metadata.snapshot_by_id(before), metadata.snapshot_by_id(after)
    if old is None or new is None or before == after:
        return before == after
    parent = new.parent_snapshot_id
    lost = parent is None or metadata.snapshot_by_id(parent) is None
    # Format version 1 has no sequence numbers, so a missing parent always counts as a gap.
    return lost and (
        not new.sequence_number or new.sequence_number > (old.sequence_number or 0) + 1
    )


def ancestors(metadata: TableMetadata, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and its parents, newest first, as far as they have not expired."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None


def metadata_folder(metadata: TableMetadata) -> str:
    """Folder of manifests and metadata."""
    return _folder(metadata, "write.metadata.path", "metadata")


def _folder(metadata: TableMetadata, key: str, default: str) -> str:
    folder = metadata.properties.get(key) or f"{metadata.location.rstrip('/')}/{default}"
    return folder.rstrip("/")


# -------------------------------------------------------------------------------------------------
# Changes of the metadata that are committed together with a statement's files


@dataclass(frozen=True, slots=True)
class MetadataUpdates:
    """Updates that are committed together with a statement's files.

    `requirements` state what the table must still be like, beyond what every commit requires.
    """

    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...] = ()
    reason: str = "another writer changed the table's metadata since the statement read it"

    @classmethod
    def new_schema(cls, state: TableState, schema: Schema) -> MetadataUpdates:
        """Make `schema` the table's current one, under an id of its own."""
        metadata = state.metadata
        numbered = Schema(
            *schema.fields,
            schema_id=max(earlier.schema_id for earlier in metadata.schemas) + 1,
            identifier_field_ids=list(schema.identifier_field_ids),
        )
        return cls(
            (AddSchemaUpdate(schema_=numbered), SetCurrentSchemaUpdate(schema_id=-1)),
            (
                AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
                AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
            ),
            "another writer changed the schema since the statement read it",
        )

    def fit(self, state: TableState) -> bool:
        """Whether the table is still what the updates were made for."""
        try:
            for requirement in self.requirements:
                requirement.validate(state.metadata)
        except CommitFailedException:
            return False
        return True

    def applied(self, state: TableState) -> TableState:
        """The state with the updates; nothing is published."""
        metadata = update_table_metadata(state.metadata, self.updates)
        return replace(state, metadata=metadata, schema=metadata.schema())


# -------------------------------------------------------------------------------------------------
# Whether files of one schema can be read with a later one


def unreadable_columns(written: Schema, current: Schema) -> list[str]:
    """Columns of `current` that files of `written` cannot provide: new and required, or retyped.

    Dropped, renamed, added optional and promoted columns are no problem: columns are read by id.
    """
    if written.schema_id == current.schema_id:
        return []
    before = {field.field_id: field for field in written.fields}
    return [field.name for field in current.fields if not _fits(before.get(field.field_id), field)]


def _fits(before: NestedField | None, now: NestedField) -> bool:
    if before is None:
        return not now.required
    if now.required and not before.required:
        return False
    return _promotes(before.field_type, now.field_type)


def _promotes(before: IcebergType, now: IcebergType) -> bool:
    if before == now:
        return True
    if not isinstance(now, PrimitiveType):
        # Nested fields are read by id too; another kind of nesting is a new column.
        return type(before) is type(now)
    try:
        promote(before, now)
    except ResolveError:
        return False
    return True


# -------------------------------------------------------------------------------------------------
# Metadata files of a commit


@dataclass(frozen=True, slots=True)
class StagedMetadata:
    """A metadata file that is written and not published yet."""

    metadata: TableMetadata
    location: str
    previous: str  # the location that the pointer must still have


def stage_metadata(
    catalog: MetastoreCatalog,
    table: IcebergTable,
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
) -> StagedMetadata:
    """Write the metadata file of a commit, as the catalog's `commit_table` does before it swaps."""
    staged = catalog._update_and_stage_table(table, table.name(), requirements, updates)
    catalog._write_metadata(
        metadata=staged.metadata, io=staged.io, metadata_path=staged.metadata_location
    )
    return StagedMetadata(staged.metadata, staged.metadata_location, table.metadata_location)


_METADATA_FILES = "pyiceberg.serializers"  # reads and writes metadata files, and nothing else
_WRITE = "_write_metadata"  # of catalogs that write metadata files in this process
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_METADATA_FILE = re.compile(r"[^?#]+\.metadata\.json(\.gz)?")


def delete_old_metadata(io: FileIO, before: TableMetadata, after: TableMetadata) -> None:
    """Delete metadata files that a commit dropped from the log, if the table's properties ask so.

    Only metadata files in the table's metadata folder: the log may name any path. The commit has
    succeeded, so nothing here is a reason to fail.
    """
    try:
        is_enabled = property_as_bool(after.properties, _DELETE_AFTER_COMMIT, default=False)
    except ValueError:
        return
    if not is_enabled:
        return
    folder = metadata_folder(after)
    logged = {entry.metadata_file for entry in after.metadata_log}
    dropped = {entry.metadata_file for entry in before.metadata_log} - logged
    with suppress(Exception):
        delete_files(io, [location for location in sorted(dropped) if _is_in(folder, location)])


def _is_in(folder: str, location: str) -> bool:
    parent, _, name = location.rpartition("/")
    return parent == folder and _METADATA_FILE.fullmatch(name) is not None


def is_of_metadata_file(error: OSError) -> bool:
    """Whether an error was raised while a metadata file was read or written, before the swap.

    The class does not show it: a connection to the catalog may fail with any kind of OSError.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__"))
        if module == _METADATA_FILES or (
            module.startswith("pyiceberg.") and frame.f_code.co_name == _WRITE
        ):
            return True
        trace = trace.tb_next
    return False
