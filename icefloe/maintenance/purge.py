"""Drop a table with its files.

Where the catalog runs in this process, the files are found before the table is dropped and only
those that are the table's own are deleted. A REST server purges by itself.
"""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.table import Table as IcebergTable

from icefloe.commit.catalog import load_table
from icefloe.errors import IcefloeError
from icefloe.maintenance.folders import metadata_files
from icefloe.maintenance.garbage import refuse_without_gc
from icefloe.maintenance.ownership import Judged, judge
from icefloe.maintenance.reach import Files, Kind, Reach, Stored, readable_files, statistics_files
from icefloe.metadata.table_state import state_of
from icefloe.storage.files import delete_each
from icefloe.storage.locations import name_of

log = logging.getLogger("icefloe")


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
    reach, metadata = Reach(table.io), table.metadata
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
