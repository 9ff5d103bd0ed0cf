"""Remove orphans: files in a table's folders that nothing refers to.

The folders are listed before the metadata is read, so that files published in between are known.
When two names may mean the same file, nothing is deleted.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as IcebergTable

from icefloe.commit.catalog import reading_catalog, refuse_other_table
from icefloe.errors import StatementError, StorageError
from icefloe.inline.tables import drop_table, pointers, tables_of
from icefloe.inline.tier import InlineTier
from icefloe.maintenance.own_files import (
    VERSION_HINT,
    NearbyTables,
    files_of,
    files_of_others,
    folders_of,
    nearby_tables,
)
from icefloe.maintenance.reachable_files import (
    ReachableFiles,
    check_older_than,
    refuse_unsafe_gc,
)
from icefloe.maintenance.sidecars import list_sidecars, unreachable_sidecars
from icefloe.metadata.table_state import TableState, state_of
from icefloe.results import OrphansResult
from icefloe.storage.files import (
    ListedFile,
    abort_uploads,
    can_list_uploads,
    delete_listed,
    list_files,
    uploads_below,
)
from icefloe.storage.filesystem import is_local_disk
from icefloe.storage.locations import KnownFiles, Name, name_of
from icefloe.storage.s3 import BOTO3_MISSING, Upload

log = logging.getLogger("icefloe")

_DEFAULT_AGE = timedelta(days=3)
_MIN_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class OrphanSearch:
    """The arguments of a call."""

    older_than: datetime | None = None
    dry_run: bool = True
    allow_recent: bool = False
    folders: tuple[str, ...] = ()  # every file in them counts as the table's, whatever its name

    def cutoff(self) -> datetime:
        """The time before which files are old; refuses one that includes files being written."""
        check_older_than(self.older_than)
        now = datetime.now(UTC)
        cutoff = (self.older_than or now - _DEFAULT_AGE).astimezone(UTC)
        if not self.dry_run and not self.allow_recent and cutoff > now - _MIN_AGE:
            raise StatementError(
                f"older_than is {cutoff.isoformat()}, less than a day ago: a writer may still "
                "commit such files. Use an earlier time, or set allow_recent=True "
                "(--allow-recent) if nothing else writes to the table."
            )
        return cutoff


@dataclass(frozen=True)
class _FolderFile:
    """A file in one of the table's folders."""

    folder: Name
    name: Name
    stored: ListedFile


def remove_orphans(
    catalog: Catalog,
    read_table: Callable[[], IcebergTable],
    state: TableState,
    search: OrphanSearch,
) -> OrphansResult:
    """List old files that no metadata of the table refers to; delete them unless `dry_run`."""
    started = time.monotonic()
    cutoff = search.cutoff()
    refuse_unsafe_gc(catalog, state, "remove_orphans")
    folders = folders_of(state.metadata)
    claimed = _claimed_folders(state, folders, search.folders)
    listed = [file for folder in folders for file in _list_folder(state, folder)]
    sidecars = list_sidecars(state)
    table = read_table()
    refuse_other_table(table.metadata, state.name, state.metadata.table_uuid)
    current = state_of(table, state.name)
    refuse_unsafe_gc(catalog, current, "remove_orphans")
    if folders_of(current.metadata) != folders:
        raise StorageError(
            f"The folders of {state.name} changed while they were listed. Nothing was deleted. "
            "Run remove_orphans again."
        )
    nearby = nearby_tables(catalog, table)
    referenced = KnownFiles.of(files_of(table) | nearby.files)
    unreferenced = _unreferenced(listed, referenced, nearby)
    home = name_of(state.metadata.location).real
    own = [file for file in unreferenced if _may_be_own(file, home, claimed)]
    old = [
        file for file in own if file.stored.modified is not None and file.stored.modified < cutoff
    ]
    _refuse_lookalikes(old, referenced)
    orphans = [file.stored for file in _without_files_of_others(catalog, table, old)]
    too_young = len(own) - len(orphans)
    if sidecars:
        reachable = ReachableFiles(table.io)
        data = reachable.contents(reachable.manifests(current.metadata.snapshots))
        unreachable = unreachable_sidecars(current, sidecars, data.values())
        orphans += [s for s in unreachable if s.modified is not None and s.modified < cutoff]
    uploads = _own_uploads(current, folders, claimed, nearby)
    uploads = uploads and [one for one in uploads if one.started < cutoff]
    aborted = [] if search.dry_run else abort_uploads(current.io, uploads or ())
    failed = [] if search.dry_run else delete_listed(orphans)
    deleted = [] if search.dry_run else [f for f in orphans if f.location not in set(failed)]
    return OrphansResult(
        dry_run=search.dry_run,
        files=tuple(sorted(file.location for file in orphans)),
        bytes=sum(file.bytes for file in orphans),
        files_deleted=len(deleted),
        bytes_deleted=sum(file.bytes for file in deleted),
        files_failed=tuple(sorted(failed)),
        files_listed=len(listed) + len(sidecars),
        files_too_young=too_young,
        files_unrecognised=len(unreferenced) - len(own),
        uploads=None if uploads is None else tuple(sorted(one.location for one in uploads)),
        uploads_aborted=len(aborted),
        duration_s=time.monotonic() - started,
    )


def _claimed_folders(
    state: TableState, folders: Sequence[str], claimed: Sequence[str]
) -> set[Name]:
    """The folders that the caller names; refuses one that is not a folder of the table."""
    own = {name_of(folder) for folder in folders}
    for folder in claimed:
        if not isinstance(folder, str) or _name_or_none(folder) not in own:
            raise StatementError(
                f"{folder!r} is not a folder of {state.name}. Its folders are: "
                f"{', '.join(folders)}."
            )
    return {name_of(folder) for folder in claimed}


def _name_or_none(folder: str) -> Name | None:
    try:
        return name_of(folder)
    except StorageError:
        return None


def _own_uploads(
    state: TableState, folders: Sequence[str], claimed: set[Name], nearby: NearbyTables
) -> list[Upload] | None:
    """Uploads of the table's files, and of no other table's; None if they cannot be listed."""
    home, own = name_of(state.metadata.location), {}
    for folder in folders:
        if (uploads := uploads_below(state.io, folder)) is None:
            if not can_list_uploads(state.io, folder):
                log.warning(
                    "Incomplete uploads in %s were not looked for: %s.", folder, BOTO3_MISSING
                )
            return None
        name = name_of(folder)
        for one in uploads:
            is_own = home.holds(name) or name in claimed
            is_own = is_own or is_writer_file_name(one.key.rpartition("/")[2])
            location = name_of(one.location)
            if is_own and not any(other.holds(location) for other in nearby.folders):
                own[one.upload_id] = one
    return list(own.values())


def _list_folder(state: TableState, folder: str) -> list[_FolderFile]:
    name = name_of(folder)
    return [
        _FolderFile(name, name.below(stored.relative), stored)
        for stored in list_files(state.io, folder)
    ]


def _unreferenced(
    listed: Iterable[_FolderFile], referenced: KnownFiles, nearby: NearbyTables
) -> list[_FolderFile]:
    """Files that nothing refers to, each once even if several folders contain it."""
    files = [
        file
        for file in listed
        if not referenced.has(file.name)
        and not _is_hidden(file.stored.relative)
        and not _is_behind_link(file)
    ]
    by_real_name = {file.name.real: file for file in reversed(files)}
    return [
        file
        for real, file in reversed(by_real_name.items())
        if not any(folder.holds(real) for folder in nearby.folders)
    ]


def _is_hidden(relative: str) -> bool:
    """Hidden files and folders by Hadoop's convention, and the version hint.

    A partition folder may begin with an underscore because its column does.
    """
    *folders, name = relative.split("/")
    in_hidden = any(part.startswith((".", "_")) and "=" not in part for part in folders)
    return in_hidden or name.startswith((".", "_")) or name == VERSION_HINT


def _is_behind_link(file: _FolderFile) -> bool:
    """Whether a symbolic link leads to the file, which is then outside the table's folder."""
    stored, path = file.stored, file.stored.file.path
    if not is_local_disk(stored.file.filesystem):
        return False
    base = os.path.realpath(path.removesuffix(f"/{stored.relative}"))
    return os.path.realpath(path) != f"{base}/{stored.relative}"


def _may_be_own(file: _FolderFile, home: Name, claimed: set[Name]) -> bool:
    """Whether the table's writers may have written a file that is in one of its folders.

    The table's location is its own. A property may name any folder, even a home directory: there,
    the file name decides.
    """
    return (
        home.holds(file.folder.real)
        or file.folder in claimed
        or is_writer_file_name(file.stored.relative.rpartition("/")[2])
    )


def _refuse_lookalikes(files: Iterable[_FolderFile], referenced: KnownFiles) -> None:
    """Raise when a file may be a referenced one under a name that cannot be compared."""
    for file in files:
        if (name := referenced.lookalike(file.name, file.folder)) is not None:
            raise StorageError(
                f"{file.stored.location} may be the file that a table refers to as {name}: the "
                "file names are equal, and the two locations cannot be compared. Nothing was "
                "deleted."
            )


def _without_files_of_others(
    catalog: Catalog, table: IcebergTable, files: list[_FolderFile]
) -> list[_FolderFile]:
    """Exclude what any other table of the catalog reaches: its files may once have been here."""
    others = files_of_others(catalog, table) if files else ()
    for referenced in others:
        files = [file for file in files if not referenced.has(file.name)]
        _refuse_lookalikes(files, referenced)
    return files


# -------------------------------------------------------------------------------------------------
# Inline rows of tables that are gone


def remove_dropped_tables(tier: InlineTier, state: TableState, *, dry_run: bool) -> tuple[str, ...]:
    """Find the inline rows of tables that were dropped by a process that died, or another engine.

    Only where the catalog is in the same database: another one may have the rows of several
    catalogs. The tables of the catalog and of the store are read as of one moment, so that one that
    is renamed concurrently is not taken for dropped.

    Returns:
        The last known names of those tables.
    """
    if not tier.shares_database or not state.has_inline_tier:
        return ()
    catalog_name = tier.name_of(state).catalog
    with tier.store.reading() as connection:
        known = tables_of(connection, catalog_name)
        locations = pointers(connection, catalog_name)
    if len(known) <= 1:
        return ()
    with reading_catalog("read all its tables"):
        there = {_uuid_at(state.io, location) for location in locations}
    dropped = [table for table in known if table.table_uuid not in there]
    for table in [] if dry_run else dropped:
        with tier.store.writing(table) as connection:
            drop_table(connection, table)
    return tuple(table.full_name for table in dropped)


def _uuid_at(io: FileIO, location: str) -> str:
    return str(FromInputFile.table_metadata(io.new_input(location)).table_uuid)


# -------------------------------------------------------------------------------------------------
# File names that Iceberg writers use, so that other files are kept

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEX = r"[0-9a-f]{32}"
_QUERY = r"\d{8}_\d{6}_\d{5}_[a-z0-9]{5}"  # Trino's query ids
_DATA = r"(?:\.[a-z0-9]+)?\.(?:parquet|orc|avro|puffin)"
_PATTERNS = (
    # icefloe: statement, then task or file number
    rf"{_HEX}-[0-9a-f]{{1,12}}(?:-deletes)?\.parquet",
    # Java (Spark, Flink) and PyIceberg: partition, task, operation, file number
    rf"\d{{5,}}-\d+-{_UUID}(?:-\d+)*(?:-deletes)?{_DATA}",
    # Trino
    rf"{_QUERY}-{_UUID}(?:{_DATA}|\.stats)",
    # manifests, manifest lists
    rf"(?:{_UUID}|{_HEX})-m\d+\.avro",
    rf"(?:optimized-m-|rewritten-m-)(?:{_UUID}|\d+)\.avro",
    rf"snap-\d+-(?:\d+-)?(?:{_UUID}|{_HEX})\.avro",
    # table metadata
    rf"(?:\d{{5,}}-{_UUID}|v\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?",
    # statistics
    rf"\d+-{_UUID}\.stats",
    rf"partition-stats-\d+-{_UUID}{_DATA}",
)
_WRITER_NAME = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS))


def is_writer_file_name(name: str) -> bool:
    """Whether a name without folders is one that a writer of Iceberg tables uses."""
    return _WRITER_NAME.fullmatch(name) is not None
