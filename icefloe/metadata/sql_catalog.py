"""A SQL catalog that reads each metadata file once in a process.

A metadata file lists every snapshot and is never changed; the catalog's pointer moves to another
one. A statement asks for it up to four times: for its state, for the newest one before each attempt
to commit, and in PyIceberg's own commit.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icefloe.errors import StorageError
from icefloe.storage.file_io import StoreFileIO, has_unique_name

MOST_BYTES = 8 * 2**20  # of the files; in memory they take some times as much


@dataclass(frozen=True, slots=True)
class _Held:
    length: int
    metadata: TableMetadata


class MetadataFiles:
    """Metadata by location, with the length of the file; the least recently used go first."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, location: str, length: int | None) -> TableMetadata | None:
        """The metadata of a file; None if it is not held, or was of another length, if known."""
        with self._lock:
            held = self._held.get(location)
            if held is None or length not in (None, held.length):
                return None
            self._held.move_to_end(location)
            return held.metadata

    def put(self, location: str, length: int, metadata: TableMetadata) -> None:
        """Hold the metadata of a file, unless the file is too large."""
        with self._lock:
            old = self._held.pop(location, None)
            self._bytes -= old.length if old else 0
            if length > MOST_BYTES:
                return
            self._held[location] = _Held(length, metadata)
            self._bytes += length
            while self._bytes > MOST_BYTES:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= oldest.length

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._held.clear()
            self._bytes = 0

    @property
    def bytes(self) -> int:
        """The bytes of the files that are held."""
        return self._bytes


files = MetadataFiles()


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
        metadata = files.get(location, length)
        if metadata is None:
            table = self._read(orm_table, location, io)
            files.put(location, length or len(table.metadata.model_dump_json()), table.metadata)
            return table
        return Table(
            identifier=(*Catalog.identifier_to_tuple(namespace), name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def _read(self, orm_table: IcebergTables, location: str, io: FileIO) -> Table:
        try:
            return super()._convert_orm_to_iceberg(orm_table)
        except ValidationError as wrong:
            if isinstance(io, StoreFileIO):
                io.forget(location)  # it may be restored
            reason = str(wrong).splitlines()[1:2] or [""]
            raise StorageError(
                f"The metadata file {location} of {orm_table.table_name} is damaged: "
                f"{reason[0].strip()[:80]}. Restore it, or register an older one of its folder."
            ) from None


def reading_once(catalog: Catalog) -> Catalog:
    """The same catalog, which reads each metadata file once if it is a SQL catalog."""
    if type(catalog) is not SqlCatalog:
        return catalog
    again = SqlCatalog.__new__(ReadOnceSqlCatalog)
    again.__dict__.update(catalog.__dict__)
    return again
