"""File systems of PyArrow: what kind they are, how files are opened, and new files in them.

Tasks use this module in Spark's workers, so it needs PyArrow only and is sent there by value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, LocalFileSystem, S3FileSystem
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

# Schemes of locations, and PyArrow's name for the file system. Folders need not be created there,
# and two keys of one bucket are always two objects.
OBJECT_STORES = {"s3": "s3", "gs": "gcs", "abfs": "abfs", "oss": "s3"}


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

    @property
    def client(self) -> Any | None:
        """The same store for boto3, which can do more with it; None if that is not installed."""
        if not hasattr(self, "_client"):
            self._client = _boto3_client(*self.made_of)
        return self._client


def _boto3_client(attempts: int, options: Mapping[str, Any]) -> Any | None:
    try:
        import boto3  # noqa: PLC0415 - an extra
        from botocore import UNSIGNED  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415
    except ImportError:
        return None
    endpoint, proxy = options.get("endpoint_override"), options.get("proxy_options")
    path_style = endpoint is not None and not options.get("force_virtual_addressing")
    config = Config(
        region_name=options["region"],
        connect_timeout=options["connect_timeout"],
        read_timeout=options["request_timeout"],
        retries={"mode": "standard", "total_max_attempts": attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        proxies={"http": proxy, "https": proxy} if proxy else None,
        signature_version=UNSIGNED if options.get("anonymous") else None,
        max_pool_connections=32,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    keys = {
        "aws_access_key_id": options.get("access_key"),
        "aws_secret_access_key": options.get("secret_key"),
        "aws_session_token": options.get("session_token"),
    }
    session = boto3.session.Session()
    if options.get("role_arn"):
        role = session.client("sts", config=config, **keys).assume_role(
            RoleArn=options["role_arn"], RoleSessionName=options.get("session_name") or "icefloe"
        )["Credentials"]
        keys = {
            "aws_access_key_id": role["AccessKeyId"],
            "aws_secret_access_key": role["SecretAccessKey"],
            "aws_session_token": role["SessionToken"],
        }
    return session.client("s3", endpoint_url=endpoint, config=config, **keys)


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


@contextmanager
def new_file(filesystem: FileSystem, path: str) -> Iterator[pa.NativeFile]:
    """Write a file; an error of the block is raised, whatever becomes of the file."""
    sink = open_output(filesystem, path)
    try:
        yield sink
    except BaseException:
        close_quietly(sink)
        raise
    sink.close()


def close_quietly(sink: pa.NativeFile) -> None:
    """Close a file that is not wanted; the error that led to it matters."""
    with suppress(Exception):
        sink.close()


def delete_quietly(filesystem: FileSystem, path: str) -> None:
    """Delete a file of a failed task; the error of the task matters, not that of the clean-up."""
    with suppress(Exception):
        delete_one(filesystem, path)


def delete_one(filesystem: FileSystem, path: str) -> None:
    """Delete a file.

    PyArrow leaves an empty object in place of the last one of a folder, and takes three requests.
    """
    client = filesystem.client if isinstance(filesystem, BoundedS3FileSystem) else None
    if client is None:
        filesystem.delete_file(path)
    else:
        bucket, _, key = path.partition("/")
        client.delete_object(Bucket=bucket, Key=key)
