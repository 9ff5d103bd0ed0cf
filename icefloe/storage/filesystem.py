"""File systems of PyArrow: what kind they are, and new files in them.

Tasks use this module in Spark's workers, so it needs PyArrow only and is sent there by value.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

# Schemes of locations, and PyArrow's name for the file system. Folders need not be created there,
# and two keys of one bucket are always two objects.
OBJECT_STORES = {"s3": "s3", "gs": "gcs", "abfs": "abfs", "oss": "s3"}


def is_object_store(filesystem: FileSystem) -> bool:
    """Whether files are objects under a key, without folders."""
    return filesystem.type_name in OBJECT_STORES.values()


def is_local_disk(filesystem: FileSystem) -> bool:
    """Whether files are on a disk of this machine."""
    return isinstance(filesystem, LocalFileSystem)


def open_output(filesystem: FileSystem, path: str) -> pa.NativeFile:
    """Open a file for writing, in a folder that may not exist yet."""
    if not is_object_store(filesystem):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    return filesystem.open_output_stream(path)


def delete_quietly(filesystem: FileSystem, path: str) -> None:
    """Delete a file of a failed task; the error of the task matters, not that of the clean-up."""
    with suppress(OSError):
        filesystem.delete_file(path)
