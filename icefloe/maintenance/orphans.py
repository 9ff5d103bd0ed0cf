"""Remove orphans: files in a table's folders that nothing refers to.

The folders are listed before the metadata is read, so that files published in between are known.
When two names may mean the same file, nothing is deleted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from icefloe.commit.catalog import refuse_other_table
from icefloe.errors import StatementError, StorageError
from icefloe.maintenance.own_files import (
    VERSION_HINT,
    NearbyTables,
    files_of,
    files_of_others,
    folders_of,
    nearby_tables,
)
from icefloe.maintenance.reachable_files import check_older_than, refuse_unsafe_gc
from icefloe.metadata.table_state import TableState, state_of
from icefloe.results import OrphansResult
from icefloe.storage.files import locate, naming_unreadable_file
from icefloe.storage.locations import KnownFiles, Name, name_of

_DEFAULT_AGE = timedelta(days=3)
_MIN_AGE = timedelta(days=1)
_DELETE_THREADS = 16


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
class _ListedFile:
    """A file in one of the table's folders."""

    folder: Name
    name: Name
    relative: str  # path below the folder
    location: str
    path: str  # as the file system spells it
    filesystem: FileSystem
    bytes: int
    modified: datetime | None


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
    listed = [file for folder in folders for file in _list_files(state, folder)]
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
    old = [file for file in own if file.modified is not None and file.modified < cutoff]
    _refuse_lookalikes(old, referenced)
    orphans = _without_files_of_others(catalog, table, old)
    failed = [] if search.dry_run else _delete(orphans)
    deleted = [] if search.dry_run else [f for f in orphans if f.location not in set(failed)]
    return OrphansResult(
        dry_run=search.dry_run,
        files=tuple(sorted(file.location for file in orphans)),
        bytes=sum(file.bytes for file in orphans),
        files_deleted=len(deleted),
        bytes_deleted=sum(file.bytes for file in deleted),
        files_failed=tuple(sorted(failed)),
        files_listed=len(listed),
        files_too_young=len(own) - len(orphans),
        files_unrecognised=len(unreferenced) - len(own),
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


def _list_files(state: TableState, folder: str) -> list[_ListedFile]:
    place = locate(state.io, folder)
    base = place.path.rstrip("/")
    with naming_unreadable_file(folder):
        infos: Sequence[FileInfo] = place.filesystem.get_file_info(
            FileSelector(place.path, recursive=True, allow_not_found=True)
        )
    files = []
    for info in infos:
        if info.type != FileType.File:
            continue
        if not info.path.startswith(f"{base}/"):
            raise StorageError(
                f"The listing of {folder} contains {info.path!r}, which is outside that folder. "
                "Nothing was deleted."
            )
        relative = info.path[len(base) + 1 :]
        files.append(
            _ListedFile(
                name_of(folder),
                name_of(folder).below(relative),
                relative,
                f"{folder}/{relative}",
                info.path,
                place.filesystem,
                info.size or 0,
                info.mtime,
            )
        )
    return files


def _unreferenced(
    listed: Iterable[_ListedFile], referenced: KnownFiles, nearby: NearbyTables
) -> list[_ListedFile]:
    """Files that nothing refers to, each once even if several folders contain it."""
    files = [
        file
        for file in listed
        if not referenced.has(file.name)
        and not _is_hidden(file.relative)
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


def _is_behind_link(file: _ListedFile) -> bool:
    """Whether a symbolic link leads to the file, which is then outside the table's folder."""
    if not isinstance(file.filesystem, LocalFileSystem):
        return False
    base = os.path.realpath(file.path.removesuffix(f"/{file.relative}"))
    return os.path.realpath(file.path) != f"{base}/{file.relative}"


def _may_be_own(file: _ListedFile, home: Name, claimed: set[Name]) -> bool:
    """Whether the table's writers may have written a file that is in one of its folders.

    The table's location is its own. A property may name any folder, even a home directory: there,
    the file name decides.
    """
    return (
        home.holds(file.folder.real)
        or file.folder in claimed
        or is_writer_file_name(file.relative.rpartition("/")[2])
    )


def _refuse_lookalikes(files: Iterable[_ListedFile], referenced: KnownFiles) -> None:
    """Raise when a file may be a referenced one under a name that cannot be compared."""
    for file in files:
        if (name := referenced.lookalike(file.name, file.folder)) is not None:
            raise StorageError(
                f"{file.location} may be the file that a table refers to as {name}: the file names "
                "are equal, and the two locations cannot be compared. Nothing was deleted."
            )


def _without_files_of_others(
    catalog: Catalog, table: IcebergTable, files: list[_ListedFile]
) -> list[_ListedFile]:
    """Exclude what any other table of the catalog reaches: its files may once have been here."""
    others = files_of_others(catalog, table) if files else ()
    for referenced in others:
        files = [file for file in files if not referenced.has(file.name)]
        _refuse_lookalikes(files, referenced)
    return files


def _delete(files: Sequence[_ListedFile]) -> list[str]:
    """Delete each file by the path its listing returned; returns those that still exist."""

    def fails(file: _ListedFile) -> bool:
        try:
            file.filesystem.delete_file(file.path)
        except FileNotFoundError:
            return False
        except Exception:  # noqa: BLE001 - reported for each file
            return True
        return False

    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        failures = list(pool.map(fails, files))
    return [file.location for file, failed in zip(files, failures, strict=True) if failed]


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
