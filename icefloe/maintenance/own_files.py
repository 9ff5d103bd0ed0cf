"""Which files belong to a table, so that maintenance deletes those and no others.

Metadata and table properties may name any path. A file is deleted only when it is in a folder of
the table and no other table of the catalog reaches it.
"""

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

from icefloe.commit.catalog import drop_from_catalog, load_table, reading_catalog
from icefloe.errors import IcefloeError, StorageError, UnsupportedTableError
from icefloe.maintenance.reachable_files import (
    FileKind,
    FilesByName,
    ReachableFiles,
    TableFile,
    reachable_names,
    readable_files,
    refuse_without_gc,
    statistics_files,
)
from icefloe.maintenance.sidecars import purge_sidecars
from icefloe.metadata.table_state import state_of
from icefloe.storage.files import delete_files
from icefloe.storage.locations import KnownFiles, Name, name_of

log = logging.getLogger("icefloe")

VERSION_HINT = "version-hint.text"  # points to the current metadata in catalogs without a server
# Properties that set where writers put files; the last two are old names of the first.
_PATH_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


# -------------------------------------------------------------------------------------------------
# Drop a table with its files


def purge_table(catalog: Catalog, name: str) -> None:
    """Drop a table and delete its files; refuses a table with `gc.enabled` = `false`.

    Raises before anything is changed when another table of the catalog cannot be read. Files that
    may not belong to the table, or cannot be deleted, are kept and logged.
    """
    with reading_catalog(f"read {name}"):
        table = catalog.load_table(name)
    state = state_of(table, name)
    refuse_without_gc(state, "DROP TABLE ... PURGE")
    if not isinstance(catalog, MetastoreCatalog):
        catalog.purge_table(name)
        purge_sidecars(state, ())
        return
    selection = select_deletable(catalog, table, _files_to_purge(table, name))
    load_table(catalog, name, table.metadata.table_uuid)
    drop_from_catalog(catalog, name, table.metadata.table_uuid)
    for location in selection.kept:
        log.warning("Purge of %s kept %s: it may not belong to the table", name, location)
    delete_files(table.io, [file.location for file in selection.deletable.values()])
    purge_sidecars(state, selection.kept)


def _files_to_purge(table: IcebergTable, name: str) -> FilesByName:
    """Every file that the table reaches, except through unreadable manifests."""
    reachable, metadata = ReachableFiles(table.io), table.metadata
    try:
        reachable.contents(reachable.manifests(metadata.snapshots))
    except IcefloeError as error:
        log.warning("Purge of %s keeps files that unreadable metadata refers to: %s", name, error)
    files = readable_files(reachable, metadata.snapshots) | statistics_files(metadata)
    return files | {
        name_of(location): TableFile(location, FileKind.METADATA)
        for location in metadata_files(table)
    }


# -------------------------------------------------------------------------------------------------
# Files that may be deleted


@dataclass(frozen=True, slots=True)
class DeletableFiles:
    """Unreachable files of a table: those to delete, and those to keep because of doubt."""

    deletable: FilesByName
    kept: tuple[str, ...] = ()


def select_deletable(
    catalog: Catalog, table: IcebergTable, files: FilesByName, needed: Iterable[Name] = ()
) -> DeletableFiles:
    """Select the files that belong to the table alone and are not in `needed`.

    Raises StorageError when another table of the catalog cannot be read.
    """
    folders = _own_folders(catalog, table)
    deletable = {
        name: file for name, file in files.items() if _own_folder_of(file.location, folders)
    }
    deletable = _exclude(deletable, folders, KnownFiles.of(needed))
    if deletable:
        for other in other_tables(catalog, table.name()):
            nested = _nested_folders(other, folders)
            deletable = {
                name: file
                for name, file in deletable.items()
                if not any(folder.holds(name.real) for folder in nested)
            }
            deletable = _exclude(deletable, folders, KnownFiles.of(files_of(other)))
    kept = (file.location for name, file in files.items() if name not in deletable)
    return DeletableFiles(deletable, tuple(sorted(kept)))


def _own_folders(catalog: Catalog, table: IcebergTable) -> list[Name]:
    folders = {name_of(folder) for folder in (table.location(), *folders_of(table.metadata))}
    return [folder.real for folder in folders if not holds_warehouse(catalog, folder)]


def _nested_folders(table: IcebergTable, folders: Sequence[Name]) -> list[Name]:
    """Folders of `table` that are inside `folders` and not one of them."""
    own = {name_of(folder).real for folder in (table.location(), *folders_of(table.metadata))}
    return [
        nested
        for nested in own
        if nested not in folders and any(folder.holds(nested) for folder in folders)
    ]


def _exclude(files: FilesByName, folders: list[Name], needed: KnownFiles) -> FilesByName:
    """Remove the files that are, or may be, among `needed`."""
    return {
        name: file
        for name, file in files.items()
        if not needed.has(name)
        and (folder := _own_folder_of(file.location, folders)) is not None
        and needed.lookalike(name, folder) is None
    }


def _own_folder_of(location: str, folders: list[Name]) -> Name | None:
    """Return the folder that contains a file however its location is read; None if there is none.

    Engines differ in how they read `?`, `#`, `..` and percent-encoded characters.
    """
    name = name_of(location)
    if name.is_ambiguous or _has_misleading_parent(location, name):
        return None
    real = name.real
    for folder in folders:
        if folder.holds(real):
            relative = unquote(real.path.removeprefix(folder.path))
            return None if ".." in relative.split("/") else folder
    return None


def _has_misleading_parent(location: str, name: Name) -> bool:
    """Whether `..` makes a location another file for storage that takes it literally."""
    if ".." not in location.split("/"):
        return False
    return not name.is_local or os.path.realpath(urlparse(location).path) != name.real.path


# -------------------------------------------------------------------------------------------------
# Folders and files of a table


def folders_of(metadata: TableMetadata) -> list[str]:
    """Locations that a table's writers use, without those inside another."""
    home, properties = metadata.location.rstrip("/"), metadata.properties
    configured = [properties[key].rstrip("/") for key in _PATH_PROPERTIES if properties.get(key)]
    folders = {name_of(place): place for place in (f"{home}/data", f"{home}/metadata", *configured)}
    return [
        place
        for name, place in folders.items()
        if not any(other != name and other.holds(name) for other in folders)
    ]


def files_of(table: IcebergTable) -> set[Name]:
    """Every file that a table reaches, its metadata files included."""
    reachable = reachable_names(table.metadata, ReachableFiles(table.io))
    return reachable | set(map(name_of, metadata_files(table)))


def metadata_files(table: IcebergTable) -> list[str]:
    """The current metadata file and those of the metadata log."""
    return [table.metadata_location, *(e.metadata_file for e in table.metadata.metadata_log)]


def metadata_pointers(table: IcebergTable) -> set[Name]:
    """The table's metadata files and the version hint that points to the newest one."""
    hint = f"{table.location().rstrip('/')}/metadata/{VERSION_HINT}"
    return {name_of(location) for location in (*metadata_files(table), hint)}


# -------------------------------------------------------------------------------------------------
# Other tables of the catalog


@dataclass(frozen=True, slots=True)
class NearbyTables:
    """What other tables have in the folders of one: folders to skip and files to keep.

    Symbolic links in folder names are resolved.
    """

    folders: tuple[Name, ...] = ()
    files: frozenset[Name] = frozenset()


def nearby_tables(catalog: Catalog, table: IcebergTable) -> NearbyTables:
    """Find tables inside or around the folders of a table; refuses a folder shared by two."""
    own = [name_of(folder).real for folder in folders_of(table.metadata)]
    name = ".".join(table.name())
    _refuse_warehouse(catalog, name, own)
    nested: set[Name] = set()
    files: set[Name] = set()
    for other in other_tables(catalog, table.name()):
        theirs = {name_of(folder).real for folder in folders_of(other.metadata)}
        home = name_of(other.metadata.location).real
        if home == name_of(table.metadata.location).real or theirs & set(own):
            raise UnsupportedTableError(
                f"{name} and {'.'.join(other.name())} share a folder "
                f"({other.metadata.location}), so it is unknown which files belong to which table. "
                "Nothing was deleted."
            )
        nested |= {place for place in (*theirs, home) if any(f.holds(place) for f in own)}
        if any(place.holds(folder) for place in theirs for folder in own):
            files |= files_of(other)
    return NearbyTables(tuple(nested), frozenset(files))


def files_of_others(catalog: Catalog, table: IcebergTable) -> Iterator[KnownFiles]:
    """The files that each other table of the catalog reaches, in any folder."""
    for other in other_tables(catalog, table.name()):
        yield KnownFiles.of(files_of(other))


def other_tables(catalog: Catalog, own: Identifier) -> Iterator[IcebergTable]:
    """Every table of the catalog except `own`; raises StorageError when one cannot be read."""
    name = ".".join(own)
    try:
        identifiers = list(_list_tables(catalog))
    except Exception as error:
        raise StorageError(
            f"Cannot list the tables of the catalog {catalog.name!r} ({error}), so it is unknown "
            f"whether other tables have files in the folders of {name}. Nothing was deleted."
        ) from error
    for identifier in identifiers:
        if identifier == own:
            continue
        try:
            yield catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchIcebergTableError):
            continue  # dropped since the listing, or not an Iceberg table
        except Exception as error:
            raise StorageError(
                f"{'.'.join(identifier)} cannot be read ({error}), so it is unknown whether it has "
                f"files in the folders of {name}. Nothing was deleted. Repair or drop that table."
            ) from error


def _list_tables(catalog: Catalog, parent: Identifier = ()) -> Iterator[Identifier]:
    try:
        namespaces = catalog.list_namespaces(parent)
    except NoSuchNamespaceError:
        return  # dropped concurrently, or the catalog has no nested namespaces
    for namespace in namespaces:
        yield from catalog.list_tables(namespace)
        if len(namespace) > len(parent):
            yield from _list_tables(catalog, namespace)


def holds_warehouse(catalog: Catalog, folder: Name) -> bool:
    """Whether a folder contains the whole warehouse, and so the catalog's own files."""
    location = catalog.properties.get("warehouse")
    try:
        return location is not None and folder.real.holds(name_of(location).real)
    except StorageError:  # REST catalogs may have a warehouse name instead of a location
        return False


def _refuse_warehouse(catalog: Catalog, name: str, folders: list[Name]) -> None:
    for folder in folders:
        if holds_warehouse(catalog, folder):
            raise UnsupportedTableError(
                f"{name} writes to {folder}, which contains the whole warehouse, so files in it "
                "may belong to other tables. Nothing was deleted."
            )
