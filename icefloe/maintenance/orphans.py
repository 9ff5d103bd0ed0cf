"""Files in a table's folders that nothing refers to: found by listing, judged by name.

The folders are listed before the metadata is read, so that what is published in between is known.
In any doubt about whether two names mean one file, nothing is deleted.
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
    Neighbours,
    files_of,
    files_of_others,
    folders_of,
    neighbours,
)
from icefloe.maintenance.reachable_files import refuse_to_collect
from icefloe.metadata.table_state import TableState, state_of
from icefloe.results import OrphansResult
from icefloe.storage.files import locate, naming_unreadable_file
from icefloe.storage.locations import KnownFiles, Name, name_of

# -------------------------------------------------------------------------------------------------
# File names that writers of Iceberg tables give, so that other files are left alone.

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEX = r"[0-9a-f]{32}"
_QUERY = r"\d{8}_\d{6}_\d{5}_[a-z0-9]{5}"  # Trino's ids of queries
_DATA = r"(?:\.[a-z0-9]+)?\.(?:parquet|orc|avro|puffin)"
_PATTERNS = (
    # icefloe: statement, then task or number
    rf"{_HEX}-[0-9a-f]{{1,12}}(?:-deletes)?\.parquet",
    # Java (Spark, Flink) and PyIceberg: partition, task, operation, number of the file
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
_WRITTEN = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS))


def is_of_a_writer(name: str) -> bool:
    """Whether a file, by its name without folders, was written as part of an Iceberg table."""
    return _WRITTEN.fullmatch(name) is not None


_AGE = timedelta(days=3)
_LEAST_AGE = timedelta(days=1)
_DELETE_THREADS = 16


@dataclass(frozen=True)
class _Listed:
    """A file that is there."""

    folder: Name
    name: Name
    relative: str  # below its folder
    location: str
    path: str  # as the file system spells it
    filesystem: FileSystem
    bytes: int
    changed: datetime | None


@dataclass(frozen=True, slots=True)
class OrphanSearch:
    """What a call asks for."""

    older_than: datetime | None = None
    dry_run: bool = True
    allow_recent: bool = False
    folders: tuple[str, ...] = ()  # in which every file may be the table's, whatever its name

    def moment(self) -> datetime:
        """Files from before this are old; refuses to delete ones that may still be published."""
        if self.older_than is not None and not isinstance(self.older_than, datetime):
            raise StatementError(f"older_than is {self.older_than!r}: use a datetime.")
        now = datetime.now(UTC)
        moment = (self.older_than or now - _AGE).astimezone(UTC)
        if not self.dry_run and not self.allow_recent and moment > now - _LEAST_AGE:
            raise StatementError(
                f"older_than is {moment.isoformat()}, less than a day ago: a writer may be about "
                "to publish such files. Choose an earlier time, or give allow_recent=True "
                "(--allow-recent) if nobody writes to the table."
            )
        return moment


def remove_orphans(
    catalog: Catalog,
    read_table: Callable[[], IcebergTable],
    state: TableState,
    search: OrphanSearch,
) -> OrphansResult:
    """List, and unless it is a dry run delete, old files that no metadata of the table leads to."""
    started = time.monotonic()
    moment = search.moment()
    refuse_to_collect(catalog, state, "remove_orphans")
    folders = folders_of(state.metadata)
    named = _named(state, folders, search.folders)
    listed = [file for folder in folders for file in _listed(state, folder)]
    table = read_table()
    refuse_other_table(table.metadata, state.name, state.metadata.table_uuid)
    now = state_of(table, state.name)
    refuse_to_collect(catalog, now, "remove_orphans")
    if folders_of(now.metadata) != folders:
        raise StorageError(f"The folders of {state.name} have changed since. Run it again.")
    others = neighbours(catalog, table)
    known = KnownFiles.of(files_of(table) | others.files)
    unknown = _unknown(listed, known, others)
    home = name_of(state.metadata.location).real
    ours = [file for file in unknown if _may_be_ours(file, home, named)]
    old = [file for file in ours if file.changed is not None and file.changed < moment]
    _refuse_lookalikes(old, known)
    old = _without_files_of_others(catalog, table, old)
    failed = [] if search.dry_run else _delete(old)
    gone = [] if search.dry_run else [file for file in old if file.location not in set(failed)]
    return OrphansResult(
        dry_run=search.dry_run,
        files=tuple(sorted(file.location for file in old)),
        bytes=sum(file.bytes for file in old),
        files_deleted=len(gone),
        bytes_deleted=sum(file.bytes for file in gone),
        files_failed=tuple(sorted(failed)),
        files_listed=len(listed),
        files_too_young=len(ours) - len(old),
        files_unrecognised=len(unknown) - len(ours),
        duration_s=time.monotonic() - started,
    )


def _named(state: TableState, folders: Sequence[str], given: Sequence[str]) -> set[Name]:
    """The folders that the caller named; refuses one that is not the table's."""
    own = {name_of(folder) for folder in folders}
    for folder in given:
        if not isinstance(folder, str) or _name_or_none(folder) not in own:
            raise StatementError(
                f"{folder!r} is not a folder of {state.name}. Its folders are: "
                f"{', '.join(folders)}."
            )
    return {name_of(folder) for folder in given}


def _name_or_none(folder: str) -> Name | None:
    try:
        return name_of(folder)
    except StorageError:
        return None


def _may_be_ours(file: _Listed, home: Name, named: set[Name]) -> bool:
    """Whether the table's writers may have left a file that is in one of its folders.

    A property may name any folder, somebody's home too; a table's location is its own.
    """
    return (
        home.holds(file.folder.real)
        or file.folder in named
        or is_of_a_writer(file.relative.rpartition("/")[2])
    )


def _listed(state: TableState, folder: str) -> list[_Listed]:
    place = locate(state.io, folder)
    base = place.path.rstrip("/")
    with naming_unreadable_file(folder):
        found: Sequence[FileInfo] = place.filesystem.get_file_info(
            FileSelector(place.path, recursive=True, allow_not_found=True)
        )
    files = []
    for info in found:
        if info.type != FileType.File:
            continue
        if not info.path.startswith(f"{base}/"):
            raise StorageError(
                f"Listing {folder} gave {info.path!r}, which is not in it. Nothing was deleted."
            )
        relative = info.path[len(base) + 1 :]
        files.append(
            _Listed(
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


def _unknown(listed: Iterable[_Listed], known: KnownFiles, others: Neighbours) -> list[_Listed]:
    """Files that are not among those known, each once, however many folders lead to it."""
    found = [
        file
        for file in listed
        if not known.has(file.name) and not _is_left_alone(file.relative) and not _is_linked(file)
    ]
    by_place = {file.name.real: file for file in reversed(found)}
    return [
        file
        for real, file in reversed(by_place.items())
        if not any(folder.holds(real) for folder in others.folders)
    ]


def _refuse_lookalikes(files: Iterable[_Listed], known: KnownFiles) -> None:
    """Raise where a file may be a known one, under a name that cannot be compared."""
    for file in files:
        if (name := known.lookalike(file.name, file.folder)) is not None:
            raise StorageError(
                f"{file.location} may be what a table knows as {name}: they are called the same, "
                "in places that cannot be compared. Nothing was deleted."
            )


def _without_files_of_others(
    catalog: Catalog, table: IcebergTable, files: list[_Listed]
) -> list[_Listed]:
    """Leave out what any other table of the catalog leads to: it may have had its files here."""
    others = files_of_others(catalog, table) if files else ()
    for theirs in others:
        files = [file for file in files if not theirs.has(file.name)]
        _refuse_lookalikes(files, theirs)
    return files


def _is_left_alone(relative: str) -> bool:
    """Hidden files and folders, as Hadoop has them, and the pointer of catalogs without a server.

    A partition folder may begin with an underscore, as its column does.
    """
    *above, last = relative.split("/")
    hidden = any(part.startswith((".", "_")) and "=" not in part for part in above)
    return hidden or last.startswith((".", "_")) or last == VERSION_HINT


def _is_linked(file: _Listed) -> bool:
    """Whether a symbolic link leads there: what is behind it is not in the table's folder."""
    if not isinstance(file.filesystem, LocalFileSystem):
        return False
    base = os.path.realpath(file.path.removesuffix(f"/{file.relative}"))
    return os.path.realpath(file.path) != f"{base}/{file.relative}"


def _delete(files: Sequence[_Listed]) -> list[str]:
    """Delete each by the name its own listing gave; the ones that are still there."""

    def failed(file: _Listed) -> bool:
        try:
            file.filesystem.delete_file(file.path)
        except FileNotFoundError:
            return False
        except Exception:  # noqa: BLE001 - told for each file
            return True
        return False

    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        outcomes = list(pool.map(failed, files))
    return [file.location for file, left in zip(files, outcomes, strict=True) if left]
