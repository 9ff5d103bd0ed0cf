"""The folders of a table, and which other tables of the catalog have theirs near."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from icefloe.commit.catalog import load_table
from icefloe.errors import IcefloeError, StorageError, UnsupportedTableError
from icefloe.maintenance.reachable_files import (
    Files,
    Kind,
    ReachableFiles,
    Stored,
    everything,
    readable_files,
    refuse_without_gc,
    statistics_files,
)
from icefloe.metadata.table_state import state_of
from icefloe.storage.files import delete_each
from icefloe.storage.locations import KnownFiles, Name, name_of

VERSION_HINT = "version-hint.text"  # the pointer of catalogs without a server
# Where writers put files where set; the last two are old names of the first.
_PATHS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What of other tables is in the folders of one: folders to leave alone, files to keep.

    Folders have symbolic links followed.
    """

    folders: tuple[Name, ...] = ()
    files: frozenset[Name] = frozenset()


def folders_of(metadata: TableMetadata) -> list[str]:
    """Locations a table's writers put files in, none of them inside another."""
    location = metadata.location.rstrip("/")
    told = [metadata.properties[key].rstrip("/") for key in _PATHS if metadata.properties.get(key)]
    found = {name_of(place): place for place in (f"{location}/data", f"{location}/metadata", *told)}
    return [
        place
        for name, place in found.items()
        if not any(other != name and other.holds(name) for other in found)
    ]


def neighbours(catalog: Catalog, table: IcebergTable) -> Neighbours:
    """Other tables in or around the folders of a table; refuses a folder that two tables share."""
    own = [name_of(folder).real for folder in folders_of(table.metadata)]
    name = ".".join(table.name())
    _refuse_warehouse(catalog, name, own)
    inside: set[Name] = set()
    files: set[Name] = set()
    for other in other_tables(catalog, table.name()):
        theirs = {name_of(folder).real for folder in folders_of(other.metadata)}
        home = name_of(other.metadata.location).real
        if home == name_of(table.metadata.location).real or theirs & set(own):
            raise UnsupportedTableError(
                f"{name} and {'.'.join(other.name())} have a folder in common "
                f"({other.metadata.location}): nobody can tell whose the files in it are. Nothing "
                "was deleted."
            )
        inside |= {place for place in (*theirs, home) if any(f.holds(place) for f in own)}
        if any(place.holds(folder) for place in theirs for folder in own):
            files |= files_of(other)
    return Neighbours(tuple(inside), frozenset(files))


def nested_folders(table: IcebergTable, folders: Sequence[Name]) -> list[Name]:
    """Folders of a table that are inside `folders`, and not one of them."""
    places = {name_of(place).real for place in (table.location(), *folders_of(table.metadata))}
    return [
        place
        for place in places
        if place not in folders and any(folder.holds(place) for folder in folders)
    ]


def files_of(table: IcebergTable) -> set[Name]:
    """Every file that a table leads to, its metadata files included."""
    return everything(table.metadata, ReachableFiles(table.io)) | set(
        map(name_of, metadata_files(table))
    )


def metadata_files(table: IcebergTable) -> list[str]:
    """The table's metadata files, from the current one and its log."""
    return [table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)]


def files_of_others(catalog: Catalog, table: IcebergTable) -> Iterator[KnownFiles]:
    """What each other table of the catalog leads to, in any folder."""
    for other in other_tables(catalog, table.name()):
        yield KnownFiles.of(files_of(other))


def holds_warehouse(catalog: Catalog, folder: Name) -> bool:
    """Whether a folder holds the whole warehouse, and so the catalog's own files."""
    location = catalog.properties.get("warehouse")
    try:
        return location is not None and folder.real.holds(name_of(location).real)
    except StorageError:  # a name, as REST catalogs have it
        return False


def _refuse_warehouse(catalog: Catalog, name: str, own: list[Name]) -> None:
    for folder in own:
        if holds_warehouse(catalog, folder):
            raise UnsupportedTableError(
                f"{name} writes to {folder}, which holds the whole warehouse: files in it need not "
                "be the table's. Nothing was deleted."
            )


def other_tables(catalog: Catalog, own: Identifier) -> Iterator[IcebergTable]:
    """Every table of the catalog but one; raises StorageError where one cannot be read."""
    name = ".".join(own)
    try:
        known = list(_tables(catalog))
    except Exception as error:
        raise StorageError(
            f"The tables of the catalog {catalog.name!r} cannot be listed ({error}), so nobody can "
            f"tell whose files lie among those of {name}. Nothing was deleted."
        ) from error
    for identifier in known:
        if identifier == own:
            continue
        try:
            yield catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchIcebergTableError):
            continue  # dropped meanwhile, or not of Iceberg's
        except Exception as error:
            raise StorageError(
                f"{'.'.join(identifier)} cannot be read ({error}), so nobody can tell whether its "
                f"files lie among those of {name}. Nothing was deleted. Repair or drop that table."
            ) from error


def _tables(catalog: Catalog, within: Identifier = ()) -> Iterator[Identifier]:
    try:
        namespaces = catalog.list_namespaces(within)
    except NoSuchNamespaceError:
        return  # dropped meanwhile, or the catalog knows no namespaces inside others
    for namespace in namespaces:
        yield from catalog.list_tables(namespace)
        if len(namespace) > len(within):
            yield from _tables(catalog, namespace)


# -------------------------------------------------------------------------------------------------
# Which files that a table's metadata names may be deleted with it.


@dataclass(frozen=True, slots=True)
class Judged:
    """Files that nothing of the table needs any more: those to delete, and those to leave."""

    deletable: Files
    kept: tuple[str, ...] = ()


def judge(
    catalog: Catalog, table: IcebergTable, files: Files, needed: Iterable[Name] = ()
) -> Judged:
    """Which of `files` may be deleted, where the table still needs those in `needed`.

    Raises StorageError when another table of the catalog cannot be read.
    """
    folders = _own_folders(catalog, table)
    left = {name: file for name, file in files.items() if _folder(file.location, folders)}
    left = _without(left, folders, KnownFiles.of(needed))
    if left:
        for other in other_tables(catalog, table.name()):
            nested = nested_folders(other, folders)
            left = {n: f for n, f in left.items() if not any(o.holds(n.real) for o in nested)}
            left = _without(left, folders, KnownFiles.of(files_of(other)))
    kept = (file.location for name, file in files.items() if name not in left)
    return Judged(left, tuple(sorted(kept)))


def pointers_of(table: IcebergTable) -> set[Name]:
    """The files that lead to a table: its metadata files, and the hint to the newest of them."""
    hint = f"{table.location().rstrip('/')}/metadata/{VERSION_HINT}"
    return {name_of(location) for location in (*metadata_files(table), hint)}


def _own_folders(catalog: Catalog, table: IcebergTable) -> list[Name]:
    places = {name_of(place) for place in (table.location(), *folders_of(table.metadata))}
    return [place.real for place in places if not holds_warehouse(catalog, place)]


def _without(files: Files, folders: list[Name], known: KnownFiles) -> Files:
    """Leave out what provably or possibly is one of the known files."""
    return {
        name: file
        for name, file in files.items()
        if not known.has(name)
        and (folder := _folder(file.location, folders)) is not None
        and known.lookalike(name, folder) is None
    }


def _folder(location: str, folders: list[Name]) -> Name | None:
    """The table's own folder that a file is in under every reading of its name; None for others."""
    name = name_of(location)
    if name.is_ambiguous or _is_crooked(location, name):
        return None
    real = name.real
    for folder in folders:
        if folder.holds(real):
            relative = unquote(real.path.removeprefix(folder.path))
            return None if ".." in relative.split("/") else folder
    return None


def _is_crooked(location: str, name: Name) -> bool:
    """Whether `..` in a location makes it another file for those who take it literally."""
    if ".." not in location.split("/"):
        return False
    return not name.is_local or os.path.realpath(urlparse(location).path) != name.real.path


log = logging.getLogger("icefloe")


# -------------------------------------------------------------------------------------------------
# Drop a table with its files.


def purge_table(catalog: Catalog, name: str) -> None:
    """Drop a table and delete its files; refuses one with `gc.enabled` = `false`.

    Raises before anything is changed when another table of the catalog cannot be read. Files that
    are left, since they are not the table's own or cannot be deleted, are logged.
    """
    table = catalog.load_table(name)
    refuse_without_gc(state_of(table, name), "DROP TABLE ... PURGE")
    if not isinstance(catalog, MetastoreCatalog):
        catalog.purge_table(name)
        return
    judged = judge(catalog, table, _files(table, name))
    load_table(catalog, name, table.metadata.table_uuid)
    catalog.drop_table(name)
    _delete(table, name, judged)


def _files(table: IcebergTable, name: str) -> Files:
    """Every file that the table leads to; what damaged manifests name is not among them."""
    reach, metadata = ReachableFiles(table.io), table.metadata
    try:
        reach.contents(reach.manifests(metadata.snapshots))
    except IcefloeError as error:
        log.warning("Not every file of %s can be found, so some will be left: %s", name, error)
    files = readable_files(reach, metadata.snapshots) | statistics_files(metadata)
    return files | {
        name_of(location): Stored(location, Kind.METADATA) for location in metadata_files(table)
    }


def _delete(table: IcebergTable, name: str, judged: Judged) -> None:
    for location in judged.kept:
        log.warning("%s was left when %s was purged: it may not be the table's", location, name)
    delete_each(table.io, [file.location for file in judged.deletable.values()])
