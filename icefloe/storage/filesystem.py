"""File systems of PyArrow: what kind they are, how files are opened, and new files in them.

Tasks use this module in Spark's workers, so it needs PyArrow only and is sent there by value.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import pyarrow as pa
from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, LocalFileSystem, S3FileSystem
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

# A store is asked once whether it answers, and not again for a while if it does not.
_PROBE_S, _SILENT_S = 5.0, 30.0
_LIMITS = ("connect_timeout", "request_timeout")
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
        close_quietly(sink, filesystem, path)
        raise
    sink.close()


def close_quietly(
    sink: pa.NativeFile, filesystem: FileSystem, path: str, writer: object = None
) -> None:
    """Close a file that is not wanted; the error that led to it matters.

    PyArrow has no way to give a file up: closing it begins its upload again, with all attempts, and
    so does a writer that is collected. Where the store does not answer, nobody waits for that.
    """
    if answers(filesystem, path):
        _close(sink, writer)
    else:
        Thread(target=_close, args=(sink, writer), daemon=True).start()


def _close(sink: pa.NativeFile, writer: object) -> None:
    with suppress(Exception):
        sink.close()
    del writer  # not before


def delete_quietly(filesystem: FileSystem, path: str) -> None:
    """Delete a file of a failed task; the error of the task matters, not that of the clean-up."""
    with suppress(Exception):
        if answers(filesystem, path):
            delete_one(filesystem, path)


def answers(filesystem: FileSystem, path: str) -> bool:
    """Whether a store answers at all: a clean-up does not wait for one that is down.

    It was asked with all attempts before. Who is refused or asked to come later has an answer.
    """
    if not isinstance(filesystem, BoundedS3FileSystem):
        return True
    if time.monotonic() < getattr(filesystem, "silent_until", 0.0):
        return False
    _, options = filesystem.made_of
    limits = {name: min(_PROBE_S, options.get(name, _PROBE_S)) for name in _LIMITS}
    try:
        BoundedS3FileSystem(1, {**options, **limits}).get_file_info(path)
    except OSError as error:
        if "NETWORK_CONNECTION" not in str(error):
            return True
        filesystem.silent_until = time.monotonic() + _SILENT_S
        return False
    return True


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


# -------------------------------------------------------------------------------------------------
# Reading with few requests

_TAIL_BYTES = 1 << 16  # read first: the footer of a file is at its end, and may be all that is read
WHOLE_BYTES = 1 << 20  # files up to this size are read with one request


@contextmanager
def open_end(filesystem: FileSystem, path: str) -> Iterator[pa.NativeFile]:
    """Open a file whose footer is read: from an object store with one request, where boto3 is."""
    client = filesystem.client if isinstance(filesystem, BoundedS3FileSystem) else None
    if client is None:
        with filesystem.open_input_file(path) as source:
            yield source
        return
    bucket, _, key = path.partition("/")
    with pa.PythonFile(ObjectReader(client, bucket, key, None), "r") as source:
        yield source


class ObjectReader(io.RawIOBase):
    """An object for random access: its end is read first, and as a whole if it is small."""

    def __init__(
        self, client: Any, bucket: str, key: str, size: int | None, content: bytes | None = None
    ) -> None:
        self._client, self._bucket, self._key = client, bucket, key
        self._at = 0
        if content is not None:
            self._tail, self._size = content, len(content)
        elif size is not None and size <= WHOLE_BYTES:
            self._tail, self._size = self._get(None)
        else:
            self._tail, self._size = self._get(f"bytes=-{_TAIL_BYTES}")

    def _get(self, span: str | None) -> tuple[bytes, int]:
        """Bytes of the object, and its size; boto3 does not repeat an answer that breaks off."""
        from botocore.exceptions import IncompleteReadError, ResponseStreamingError  # noqa: PLC0415

        arguments = {} if span is None else {"Range": span}
        attempts = int(self._client.meta.config.retries["total_max_attempts"])
        with reading_object(self._bucket, self._key):
            for attempt in range(1, attempts + 1):
                reply = self._client.get_object(Bucket=self._bucket, Key=self._key, **arguments)
                try:
                    data = reply["Body"].read()
                    break
                except (IncompleteReadError, ResponseStreamingError):
                    if attempt == attempts:
                        raise
        total = str(reply.get("ContentRange", "")).rpartition("/")[2]
        return data, int(total) if total.isdigit() else len(data)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are in memory."""
        return len(self._tail) == self._size

    def read_whole(self) -> bytes:
        """All bytes."""
        return self._tail if self.is_whole else self._get(None)[0]

    def read(self, size: int = -1) -> bytes:
        """Bytes from the position."""
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        start_of_tail = self._size - len(self._tail)
        if self._at >= start_of_tail:
            data = self._tail[self._at - start_of_tail : end - start_of_tail]
        else:
            data, _ = self._get(f"bytes={self._at}-{end - 1}")
        self._at += len(data)
        return data

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether the position can be set."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at


class StoreError(OSError):
    """An object store refused a request, or did not answer it."""


@contextmanager
def reading_object(bucket: str, key: str) -> Iterator[None]:
    """Raise errors of boto3 as those that PyArrow raises."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as failed:
        code = str(failed.response.get("Error", {}).get("Code", ""))
        if code in ("NoSuchKey", "NoSuchBucket", "404"):
            raise FileNotFoundError(f"{bucket}/{key}") from failed
        raise StoreError(str(failed)) from failed
    except BotoCoreError as failed:
        raise StoreError(str(failed)) from failed
