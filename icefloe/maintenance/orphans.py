"""Files in a table's folders that nothing refers to: found by listing, judged by name.

The folders are listed before the metadata is read, so that what is published meanwhile is known. In
any doubt about whether two names mean one file, nothing is deleted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from icefloe.commit.swap import refuse_other_table
from icefloe.errors import StatementError, StorageError
from icefloe.maintenance.folders import Neighbours, files_of_others, folders_of, neighbours
from icefloe.maintenance.garbage import refuse_to_collect
from icefloe.maintenance.names import Name, name_of
from icefloe.maintenance.reach import everything
from icefloe.metadata.state import TableState, state_of
from icefloe.metadata.storage import locate, naming_unreadable_file
from icefloe.results import OrphansResult

_AGE = timedelta(days=3)
_VERSION_HINT = "version-hint.text"
_DELETE_THREADS = 16


@dataclass(frozen=True)
class _Listed:
    """A file that is there."""

    name: Name
    relative: str  # below its folder
    location: str
    path: str  # as the file system spells it
    filesystem: FileSystem
    bytes: int
    changed: datetime | None


def remove_orphans(
    catalog: Catalog,
    read_table: Callable[[], IcebergTable],
    state: TableState,
    older_than: datetime | None,
    *,
    dry_run: bool,
) -> OrphansResult:
    """List, and unless `dry_run` delete, old files that no metadata of the table leads to."""
    started = time.monotonic()
    if older_than is not None and not isinstance(older_than, datetime):
        raise StatementError(f"older_than is {older_than!r}: use a datetime.")
    moment = (older_than or datetime.now(UTC) - _AGE).astimezone(UTC)
    refuse_to_collect(catalog, state, "remove_orphans")
    folders = folders_of(state.metadata)
    listed = [file for folder in folders for file in _listed(state, folder)]
    table = read_table()
    refuse_other_table(table.metadata, state.name, state.metadata.table_uuid)
    now = state_of(table, state.name)
    refuse_to_collect(catalog, now, "remove_orphans")
    if folders_of(now.metadata) != folders:
        raise StorageError(f"The folders of {state.name} were changed meanwhile. Run it again.")
    others = neighbours(catalog, table)
    unknown = _unknown(listed, _reached(table, others), [name_of(f) for f in folders], others)
    old = [file for file in unknown if file.changed is not None and file.changed < moment]
    old = _without_files_of_others(catalog, table, old)
    failed = [] if dry_run else _delete(old)
    gone = [] if dry_run else [file for file in old if file.location not in set(failed)]
    return OrphansResult(
        dry_run=dry_run,
        files=tuple(sorted(file.location for file in old)),
        bytes=sum(file.bytes for file in old),
        files_deleted=len(gone),
        bytes_deleted=sum(file.bytes for file in gone),
        files_failed=tuple(sorted(failed)),
        files_listed=len(listed),
        files_too_young=len(unknown) - len(old),
        duration_s=time.monotonic() - started,
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


def _reached(table: IcebergTable, others: Neighbours) -> set[Name]:
    """Everything the table's metadata leads to, and what of other tables lies near."""
    metadata = table.metadata
    logged = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    return everything(metadata, table.io) | set(map(name_of, logged)) | others.files


def _unknown(
    listed: Iterable[_Listed], reached: set[Name], folders: Sequence[Name], others: Neighbours
) -> list[_Listed]:
    """Files that are not among those reached; raises where one may be, under another name."""
    known = reached | {name.decoded for name in reached}
    found = [
        file
        for file in listed
        if file.name not in known
        and file.name.decoded not in known
        and not _is_left_alone(file.relative)
        and not _is_linked(file)
        and not any(folder.holds(file.name) for folder in others.folders)
    ]
    elsewhere = [n for n in reached if not any(folder.holds(n) for folder in folders)]
    by_last: dict[str, list[Name]] = {}
    for name in elsewhere:
        by_last.setdefault(name.path.rpartition("/")[2], []).append(name)
    for file in found:
        for name in by_last.get(file.relative.rpartition("/")[2], ()):
            if name.path.endswith(f"/{file.relative}"):
                raise StorageError(
                    f"{file.location} may be what the table knows as {name}: they are called the "
                    "same, in places that cannot be compared. Nothing was deleted."
                )
    return found


def _without_files_of_others(
    catalog: Catalog, table: IcebergTable, files: list[_Listed]
) -> list[_Listed]:
    """Leave out what any other table of the catalog leads to: it may have had its files here."""
    others = files_of_others(catalog, table) if files else ()
    for theirs in others:
        files = [file for file in files if not {file.name, file.name.decoded} & theirs]
    return files


def _is_left_alone(relative: str) -> bool:
    """Hidden files and folders, as Hadoop has them, and the pointer of catalogs without a server.

    A partition folder may begin with an underscore, as its column does.
    """
    *above, last = relative.split("/")
    hidden = any(part.startswith((".", "_")) and "=" not in part for part in above)
    return hidden or last.startswith((".", "_")) or last == _VERSION_HINT


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
