"""File systems of PyArrow: what kind they are, how files are opened, and new files in them.

Tasks use this module in Spark's workers, so it needs PyArrow only and is sent there by value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, LocalFileSystem, S3FileSystem
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

# Schemes of locations, and PyArrow's name for the file system. Folders need not be created there,
# and two keys of one bucket are always two objects.
OBJECT_STORES = {"s3": "s3", "gs": "gcs", "abfs": "abfs", "oss": "s3"}
_WHOLE_BYTES = 1 << 20  # objects up to this size are read with one request
_TAIL_BYTES = 1 << 16  # what is read first of larger ones: footers are at the end


class BoundedS3FileSystem(S3FileSystem):  # type: ignore[misc]
    """S3 with a number of attempts, which PyArrow forgets when it pickles a file system.

    A small file is one request: nothing is sent before it is closed.
    """

    def __init__(self, attempts: int, options: Mapping[str, Any]) -> None:
        self.made_of = attempts, dict(options)
        strategy = AwsStandardS3RetryStrategy(max_attempts=attempts)
        super().__init__(retry_strategy=strategy, allow_delayed_open=True, **options)

    def __reduce__(self) -> Any:
        return BoundedS3FileSystem, self.made_of


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
