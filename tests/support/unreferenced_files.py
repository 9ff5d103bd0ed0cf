"""Files of a table that nothing refers to: what a failed statement must not leave behind."""

from __future__ import annotations

from urllib.parse import urlparse

from pyiceberg.table import Table as IcebergTable

from icefloe import Table
from icefloe.storage.file_io import StoreFileIO
from icefloe.storage.files import list_files, uploads_below
from icefloe.storage.s3 import Upload


def leftovers(table: Table) -> set[str]:
    """Data, delete and manifest files in storage that no snapshot of the table refers to.

    `*.metadata.json` is the catalog's own: the SQL catalog leaves the losing one behind.
    """
    iceberg = table.iceberg
    stored = {file.location for file in list_files(iceberg.io, iceberg.location())}
    unreferenced = {_path(location) for location in stored} - _referenced(iceberg)
    return {path for path in unreferenced if not path.endswith(".metadata.json")}


def uploads_of(table: Table) -> list[Upload]:
    """Uploads to an object store that were begun and never completed."""
    iceberg = table.iceberg
    found = uploads_below(StoreFileIO(iceberg.io.properties), iceberg.location())
    assert found is not None
    return found


def _referenced(iceberg: IcebergTable) -> set[str]:
    found: set[str] = set()
    for snapshot in iceberg.metadata.snapshots:
        found.add(_path(snapshot.manifest_list))
        for manifest in snapshot.manifests(iceberg.io):
            if (path := _path(manifest.manifest_path)) not in found:
                entries = manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
                found |= {path, *(_path(entry.data_file.file_path) for entry in entries)}
    return found


def _path(location: str) -> str:
    parts = urlparse(location)
    return parts.path if parts.scheme in ("", "file") else location
