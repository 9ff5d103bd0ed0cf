"""Files of a table that nothing refers to: what a failed statement must not leave behind."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

from icefloe import Table


def leftovers(table: Table) -> set[str]:
    """Data, delete and manifest files on disk that no snapshot of the table refers to.

    `*.metadata.json` is the catalog's own: the SQL catalog leaves the losing one behind.
    """
    folder = Path(urlparse(table.location).path)
    stored = {str(path) for path in folder.rglob("*") if path.is_file()}
    return {path for path in stored - _referenced(table) if not path.endswith(".metadata.json")}


def _referenced(table: Table) -> set[str]:
    iceberg = table.iceberg
    found: set[str] = set()
    for snapshot in iceberg.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(iceberg.io):
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
            found |= {entry.data_file.file_path for entry in entries}
    return {urlparse(location).path for location in found}
