"""Old metadata files go when the table's properties say so."""

from __future__ import annotations

import re
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icefloe.metadata.state import metadata_folder

_METADATA_FILE = re.compile(r"[^?#]+\.metadata\.json(\.gz)?")


def remove_old_metadata(
    catalog: Catalog, io: FileIO, before: TableMetadata, after: TableMetadata
) -> None:
    """Do what `write.metadata.delete-after-commit.enabled` asks; PyIceberg does so in its own way.

    Only metadata files in the table's metadata folder: the log may name any path. The commit has
    landed: a file that cannot be deleted is no reason to fail.
    """
    folder = metadata_folder(after)
    own = [entry for entry in before.metadata_log if _is_in(folder, entry.metadata_file)]
    with suppress(Exception):
        catalog._delete_old_metadata(io, before.model_copy(update={"metadata_log": own}), after)


def _is_in(folder: str, location: str) -> bool:
    parent, _, name = location.rpartition("/")
    return parent == folder and _METADATA_FILE.fullmatch(name) is not None
