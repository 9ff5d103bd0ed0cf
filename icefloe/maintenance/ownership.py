"""Which files that a table's metadata names may be deleted with it.

A manifest may name any path. Deleted are only files in the table's own folders that neither the
table itself nor another table of the catalog needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from icefloe.maintenance.folders import (
    VERSION_HINT,
    files_of,
    folders_of,
    holds_warehouse,
    metadata_files,
    nested_folders,
    other_tables,
)
from icefloe.maintenance.reach import Files
from icefloe.storage.locations import KnownFiles, Name, name_of


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
