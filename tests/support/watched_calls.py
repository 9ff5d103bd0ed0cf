"""Every call that this process makes to databases and files, to count them and to fail at each."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

import psycopg
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, PyFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine.default import DefaultDialect


@dataclass(frozen=True)
class Call:
    """One call; `fail` raises what a broken disk or a lost connection raises there."""

    number: int  # from 1
    name: str
    fail: Callable[[], None]


@dataclass
class Watch:
    """What happens at calls, and which there were."""

    before: Callable[[Call], None] = lambda call: None
    after: Callable[[Call], None] = lambda call: None
    calls: list[str] = field(default_factory=list)

    def around(self, name: str, fail: Callable[[], None], function: Callable[[], Any]) -> Any:
        self.calls.append(name)
        call = Call(len(self.calls), name, fail)
        self.before(call)
        result = function()
        self.after(call)
        return result


@contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """Let calls go through a watch: of SQLAlchemy, PyIceberg's FileIO and `icefloe.storage`."""
    with _watched_databases(watch), _watched_files(watch):
        yield watch


# -------------------------------------------------------------------------------------------------
# Databases


@contextmanager
def _watched_databases(watch: Watch) -> Iterator[None]:
    def watched(owner: type, name: str) -> Any:
        function = getattr(owner, name)

        @wraps(function)
        def call(dialect: Any, *arguments: Any, **named: Any) -> Any:
            shown = _shown(name, arguments)
            return watch.around(
                shown,
                lambda: _fail_in_database(dialect, arguments),
                lambda: function(dialect, *arguments, **named),
            )

        return patch.object(owner, name, call)

    executing = ("do_execute", "do_executemany", "do_execute_no_params")
    with (
        watched(DefaultDialect, executing[0]),
        watched(DefaultDialect, executing[1]),
        watched(DefaultDialect, executing[2]),
        watched(DefaultDialect, "do_commit"),
        watched(DefaultDialect, "do_rollback"),
        watched(DefaultDialect, "connect"),
        watched(PGDialect_psycopg, "connect"),
    ):
        yield


def _shown(name: str, arguments: tuple[Any, ...]) -> str:
    if name.startswith("do_execute"):
        return " ".join(str(arguments[1]).split())
    return {"do_commit": "COMMIT", "do_rollback": "ROLLBACK"}.get(name, name)


def _fail_in_database(dialect: Any, arguments: tuple[Any, ...]) -> None:
    """The connection is lost, or the disk fails."""
    if dialect.name == "sqlite":
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error
    for argument in arguments[:1]:
        connection = getattr(argument, "connection", argument)  # of a cursor
        connection = getattr(connection, "dbapi_connection", connection)
        if isinstance(connection, psycopg.Connection):
            connection.close()
    raise psycopg.OperationalError("the connection is lost")


# -------------------------------------------------------------------------------------------------
# Files


@contextmanager
def _watched_files(watch: Watch) -> Iterator[None]:
    initialize = PyArrowFileIO._initialize_fs

    def watched(io: PyArrowFileIO, scheme: str, netloc: str | None = None) -> FileSystem:
        return _Watched(_WatchedFiles(initialize(io, scheme, netloc), watch))

    with patch.object(PyArrowFileIO, "_initialize_fs", watched):
        yield


def _fail_in_storage() -> None:
    raise OSError(errno.EIO, "the disk is broken")


class _WatchedFiles(FileSystemHandler):
    """A file system whose calls go through a watch."""

    def __init__(self, files: FileSystem, watch: Watch) -> None:
        self._files, self._watch = files, watch

    def _around(self, name: str, path: str, function: Callable[[], Any]) -> Any:
        return self._watch.around(f"{name} {path}", _fail_in_storage, function)

    def get_type_name(self) -> str:
        return str(self._files.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self._files.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return self._around("info", str(paths), lambda: self._files.get_file_info(paths))

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        return self._around("list", selector.base_dir, lambda: self._files.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._around(
            "create folder", path, lambda: self._files.create_dir(path, recursive=recursive)
        )

    def delete_file(self, path: str) -> None:
        self._around("delete", path, lambda: self._files.delete_file(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._around("read", path, lambda: self._files.open_input_file(path))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._around("read", path, lambda: self._files.open_input_stream(path))

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        stream = self._around("create", path, lambda: self._files.open_output_stream(path))
        return pa.PythonFile(_WatchedStream(stream, path, self), mode="w")

    def _refused(self, *arguments: Any) -> Any:
        raise NotImplementedError(arguments)

    delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
    move = copy_file = open_append_stream = _refused


class _Watched(PyFileSystem):
    """Watched in this process; Spark's tasks get the file system itself."""

    def __reduce__(self) -> Any:
        return self.handler._files.__reduce__()


class _WatchedStream:
    """A new file, whose content may be lost when it is closed."""

    def __init__(self, stream: pa.NativeFile, path: str, files: _WatchedFiles) -> None:
        self._stream, self._path, self._files = stream, path, files

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        return int(self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            try:
                self._files._around("close", self._path, self._stream.close)
            finally:
                self._stream.close()
