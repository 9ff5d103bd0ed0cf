"""Old metadata files go when the table's properties say so."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata


def remove_old_metadata(
    catalog: Catalog, io: FileIO, before: TableMetadata, after: TableMetadata
) -> None:
    """Do what `write.metadata.delete-after-commit.enabled` asks; PyIceberg does so in its own way.

    The commit has landed: a file that cannot be deleted is no reason to fail.
    """
    with suppress(Exception):
        catalog._delete_old_metadata(io, before, after)
