"""A SQL catalog that reads each metadata file at most once in a process, and copies no history.

A metadata file lists every snapshot and is never changed; the catalog's pointer moves to another
one. A statement asks for it up to four times: for its state, for the newest one before each attempt
to commit, and in PyIceberg's own commit. That commit also copies every snapshot, object by object,
which takes three times as long as writing the file. What this process has written it does not read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.typedef import Identifier
from pyiceberg.utils.datetime import datetime_to_millis

from icefloe.errors import StorageError
from icefloe.storage.file_cache import FileCache
from icefloe.storage.file_io import StoreFileIO, has_unique_name
from icefloe.storage.filesystem import StoreError
from icefloe.storage.s3 import with_advice

MOST_BYTES = 8 * 2**20  # of the files; in memory they take some times as much


@dataclass(frozen=True, slots=True)
class _Held:
    length: int
    metadata: TableMetadata


files: FileCache[_Held] = FileCache(lambda held: held.length)


class ReadOnceSqlCatalog(SqlCatalog):
    """PyIceberg's SQL catalog, whose tables have metadata that may be held."""

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        namespace, name = orm_table.table_namespace, orm_table.table_name
        if not (location and namespace and name):
            return super()._convert_orm_to_iceberg(orm_table)  # which says what is missing
        io, length = load_file_io(self.properties, location), None
        if not has_unique_name(location):  # in a store that is a request
            # Before the file is read: what is held under this length is not older than it.
            length = len(io.new_input(location))
        key = location, length or 0, 0
        held = files.get(key)
        if held is None:
            table = self._read(orm_table, location, io)
            length = length or len(table.metadata.model_dump_json())
            files.put(key, _Held(length, table.metadata), MOST_BYTES)
            return table
        return Table(
            identifier=(*Catalog.identifier_to_tuple(namespace), name),
            metadata=held.metadata,
            metadata_location=location,
            io=self._load_file_io(held.metadata.properties, location),
            catalog=self,
        )

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        if current_table is None:
            return super()._update_and_stage_table(None, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        metadata = _updated(current_table, updates)
        version = self._parse_metadata_version(current_table.metadata_location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        location = provider.new_table_metadata_file_location(version)
        io = self._load_file_io(metadata.properties, location)
        return StagedTable(table_identifier, metadata, location, io, self)

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        SqlCatalog._write_metadata(metadata, io, metadata_path)
        if has_unique_name(metadata_path):
            return  # what was written to a store is held as bytes
        with suppress(OSError):  # it is only not held
            length = len(io.new_input(metadata_path))
            files.put((metadata_path, length, 0), _Held(length, metadata), MOST_BYTES)

    def _read(self, orm_table: IcebergTables, location: str, io: FileIO) -> Table:
        try:
            return super()._convert_orm_to_iceberg(orm_table)
        except StoreError as failed:  # which does not name the object
            advice = with_advice(str(failed))
            raise StorageError(f"Cannot read {location}: {advice}") from failed
        except ValidationError as wrong:
            if isinstance(io, StoreFileIO):
                io.forget(location)  # it may be restored
            reason = str(wrong).splitlines()[1:2] or [""]
            raise StorageError(
                f"The metadata file {location} of {orm_table.table_name} is damaged: "
                f"{reason[0].strip()[:80]}. Restore it, or register an older one of its folder."
            ) from None


def _updated(table: Table, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    """PyIceberg's `update_table_metadata` without its copy: no update changes what it is given."""
    metadata, context = table.metadata, _TableMetadataUpdateContext()
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    before = table.metadata.last_updated_ms
    if context.has_changes():
        metadata = _update_table_metadata_log(metadata, table.metadata_location, before)
        if metadata.last_updated_ms == before:
            now = datetime_to_millis(datetime.now(UTC))
            metadata = metadata.model_copy(update={"last_updated_ms": now})
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata


def reading_once(catalog: Catalog) -> Catalog:
    """The same catalog, which reads each metadata file once if it is a SQL catalog."""
    if type(catalog) is not SqlCatalog:
        return catalog
    again = SqlCatalog.__new__(ReadOnceSqlCatalog)
    again.__dict__.update(catalog.__dict__)
    return again
