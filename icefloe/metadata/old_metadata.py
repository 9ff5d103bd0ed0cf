"""Metadata files of a commit: whether they failed to be written, and which old ones are deleted."""

from __future__ import annotations

import re
from contextlib import suppress

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icefloe.metadata.state import metadata_folder

_METADATA_FILES = "pyiceberg.serializers"  # reads and writes metadata files, and nothing else
_WRITE = "_write_metadata"  # of catalogs that write them in this process
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
