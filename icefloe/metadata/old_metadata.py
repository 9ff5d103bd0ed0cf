"""Metadata files of a commit: whether they failed to be written, and which old ones are deleted."""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

_METADATA_FILES = "pyiceberg.serializers"  # reads and writes metadata files, and nothing else
_WRITE = "_write_metadata"  # of catalogs that write them in this process


def remove_old_metadata(
    catalog: Catalog, io: FileIO, before: TableMetadata, after: TableMetadata
) -> None:
    """Do what `write.metadata.delete-after-commit.enabled` asks; PyIceberg does so in its own way.

    The commit has landed: a file that cannot be deleted is no reason to fail.
    """
    with suppress(Exception):
        catalog._delete_old_metadata(io, before, after)


def is_of_metadata_file(error: OSError) -> bool:
    """Whether an error came while a metadata file was written or read, before the pointer moves.

    Its class does not say: a connection to the catalog may break with any kind of OSError.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__"))
        if module == _METADATA_FILES or (
            module.startswith("pyiceberg.") and frame.f_code.co_name == _WRITE
        ):
            return True
        trace = trace.tb_next
    return False
