"""The folders of a table, and which other tables of the catalog have theirs near."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from icefloe.errors import StorageError, UnsupportedTableError
from icefloe.maintenance.names import Name, name_of
from icefloe.maintenance.reach import everything

# Where writers put files when told so; the last two are old names of the first.
_PATHS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What of other tables lies in the folders of one: folders to leave alone, files to keep."""

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
    own = [name_of(folder) for folder in folders_of(table.metadata)]
    name = ".".join(table.name())
    _refuse_warehouse(catalog, name, own)
    inside: set[Name] = set()
    files: set[Name] = set()
    for other in _others(catalog, table.name()):
        theirs = {name_of(folder) for folder in folders_of(other.metadata)}
        home = name_of(other.metadata.location)
        if home == name_of(table.metadata.location) or theirs & set(own):
            raise UnsupportedTableError(
                f"{name} and {'.'.join(other.name())} have a folder in common "
                f"({other.metadata.location}): nobody can tell whose the files in it are. Nothing "
                "was deleted."
            )
        inside |= {place for place in (*theirs, home) if any(f.holds(place) for f in own)}
        if any(place.holds(folder) for place in theirs for folder in own):
            files |= everything(other.metadata, other.io)
            files.add(name_of(other.metadata_location))
    return Neighbours(tuple(inside), frozenset(files))


def files_of_others(catalog: Catalog, table: IcebergTable) -> Iterator[set[Name]]:
    """What each other table of the catalog leads to, wherever it lies."""
    for other in _others(catalog, table.name()):
        found = everything(other.metadata, other.io) | {name_of(other.metadata_location)}
        yield found | {name.decoded for name in found}


def _refuse_warehouse(catalog: Catalog, name: str, own: list[Name]) -> None:
    """A folder that holds the whole warehouse holds more than tables: the catalog's own files."""
    location = catalog.properties.get("warehouse")
    try:
        warehouse = name_of(location) if location else None
    except StorageError:  # a name, as REST catalogs have it
        return
    for folder in own:
        if warehouse is not None and folder.holds(warehouse):
            raise UnsupportedTableError(
                f"{name} writes to {folder}, which holds the whole warehouse: files in it need not "
                "be the table's. Nothing was deleted."
            )


def _others(catalog: Catalog, own: Identifier) -> Iterator[IcebergTable]:
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
                f"files lie among those of {name}. Nothing was deleted. Mend or drop that table."
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
