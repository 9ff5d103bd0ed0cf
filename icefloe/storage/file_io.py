"""PyIceberg's files with object stores reached as icefloe needs it.

Waits are bounded, a small file is read or written with one request, and credentials that a catalog
vends are renewed while a statement runs.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table as IcebergTable
from pyiceberg.typedef import EMPTY_DICT, Properties

from icefloe.errors import StatementError
from icefloe.redaction import register
from icefloe.storage.filesystem import WHOLE_BYTES, ObjectReader, delete_one
from icefloe.storage.s3 import S3Options, filesystem_of

log = logging.getLogger("icefloe")

FILE_IO = f"{__name__}.StoreFileIO"
S3_SCHEMES = ("s3", "s3a", "s3n")
_UNIQUE = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEPT_S = 300  # how long credentials are used whose end is not known
# Read by every statement: manifest lists and delete files. Manifests are held decoded.
_HELD = re.compile(r"^snap-.*\.avro$|-deletes\.parquet$")
_HOLDS = "io.manifest.cache-enabled"
_HELD_BYTES = 32 << 20
_LARGE = (".parquet", ".orc", ".puffin", ".stats")  # of which a part may be read


def is_s3(location: str) -> bool:
    """Whether a location is in a store that is reached as S3."""
    return location.partition("://")[0].lower() in S3_SCHEMES


def has_unique_name(location: str) -> bool:
    """Whether a location is in S3 and has a random name, so that its file never changes."""
    return is_s3(location) and _UNIQUE.search(location.rpartition("/")[2]) is not None


class StoreFileIO(PyArrowFileIO):
    """PyIceberg's files; those of other stores than S3 are as PyIceberg has them."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._lock = Lock()
        self._reload: Callable[[], Properties] | None = None
        self._renew_at = 0.0
        self._others = self.fs_by_scheme
        self.fs_by_scheme = self._filesystem

    def __reduce__(self) -> Any:
        return StoreFileIO, (self.properties,)

    def _filesystem(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme not in S3_SCHEMES:
            return self._others(scheme, netloc)
        return filesystem_of(self.options, netloc or "")

    @property
    def options(self) -> S3Options:
        """How S3 is reached; credentials that end soon are renewed."""
        reload = self._reload
        if reload is not None and time.time() >= self._renew_at:
            with self._lock:
                if time.time() >= self._renew_at:
                    self._renew(reload)
        return S3Options.of(self.properties)

    def renew_with(self, reload: Callable[[], Properties]) -> None:
        """Ask `reload` for new properties when half of the life of the credentials is over."""
        self._reload = reload
        self._renew_at = _half_life(S3Options.of(self.properties))

    def _renew(self, reload: Callable[[], Properties]) -> None:
        try:
            self.properties = dict(reload())
        except Exception as error:  # noqa: BLE001 - the present ones may be valid for a while
            log.warning("New credentials were not received: %s", error)
            self._renew_at = time.time() + 10
            return
        register(self.properties)
        self._renew_at = _half_life(S3Options.of(self.properties))

    def new_input(self, location: str) -> PyArrowFile:
        """A file to read."""
        return self._file(location)

    def new_output(self, location: str) -> PyArrowFile:
        """A file to write."""
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        text = location if isinstance(location, str) else location.location
        scheme, netloc, path = self.parse_location(text, self.properties)
        if scheme not in S3_SCHEMES:
            super().delete(text)
        else:
            delete_one(filesystem_of(self.options, netloc), path)

    def _file(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme not in S3_SCHEMES:
            return super().new_input(location)
        return StoreFile(location, path, filesystem_of(self.options, netloc), self)

    def open_object(self, location: str, size: int | None = None) -> ObjectReader | None:
        """Open an object for random access; None where PyArrow has to do it."""
        scheme, bucket, path = self.parse_location(location, self.properties)
        if scheme not in S3_SCHEMES:
            return None
        options = self.options
        if (client := filesystem_of(options, bucket).client) is None:
            return None
        holds = self._holds(location)
        held = objects.get((options, path), size or None) if holds else None
        reader = ObjectReader(client, bucket, path.removeprefix(f"{bucket}/"), size, held)
        if holds and reader.is_whole:
            objects.put((options, path), reader.read_whole())
        return reader

    def forget(self, location: str) -> None:
        """Let go of the content of a file, which cannot be decoded: it may be restored."""
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme in S3_SCHEMES:
            objects.drop((self.options, path))

    def _holds(self, location: str) -> bool:
        """Whether the content of a file is held in memory: of one that never changes."""
        name = location.rpartition("/")[2]
        enabled = str(self.properties.get(_HOLDS, "true")).strip().lower() != "false"
        return enabled and _HELD.search(name) is not None and _UNIQUE.search(name) is not None

    def read_object(self, location: str) -> bytes | None:
        """All bytes of an object, with one request; None where PyArrow has to read it."""
        source = self.open_object(location, 0)
        return None if source is None else source.read_whole()


def refuse_bare_store(warehouse: str | Path) -> None:
    """Refuse a location in a store as an embedded lake, whose catalog is a file."""
    scheme = str(warehouse).partition(":/")[0]
    if ":/" in str(warehouse) and len(scheme) > 1 and scheme.lower() != "file":
        raise StatementError(
            f"{str(warehouse)!r} cannot hold a catalog, which is a database or a server. Name one "
            f"too: connect({str(warehouse)!r}, uri='sqlite:////path/catalog.db') for one process, "
            "uri='postgresql+psycopg://…' for several, or type='rest' and its uri."
        )


def _half_life(options: S3Options) -> float:
    now = time.time()
    if options.expires_at_ms is None:
        return now + _KEPT_S
    return now + max(0.0, (options.expires_at_ms / 1000 - now) / 2)


_vended: WeakKeyDictionary[Catalog, dict[object, StoreFileIO]] = WeakKeyDictionary()


def io_of(table: IcebergTable) -> FileIO:
    """The files of a table.

    Where the catalog vends credentials, those that it vended before are used for half of their
    life: each new one is another connection of Spark's.
    """
    given = table.io
    if type(given) is PyArrowFileIO:
        given = StoreFileIO(given.properties)
    if not isinstance(given, StoreFileIO) or not given.properties.get("s3.session-token"):
        return given
    catalog, name, location = table.catalog, table.name(), table.metadata.location
    options = S3Options.of(given.properties)
    if S3Options.of(catalog.properties).session_token == options.session_token:
        return given

    def reload() -> Properties:
        return catalog.load_table(name).io.properties

    kept = _vended.setdefault(catalog, {})
    key = table.metadata.table_uuid, location, options.without_credentials
    earlier = kept.get(key)
    if earlier is not None and time.time() < earlier._renew_at:
        earlier._reload = reload  # under the name that it has now
        return earlier
    given.renew_with(reload)
    kept[key] = given
    return given


class HeldObjects:
    """Contents of small objects of this process, by what they are reached with and their path.

    The least recently used go first.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, Lock()
        self._held: OrderedDict[tuple[S3Options, str], bytes] = OrderedDict()

    def get(self, key: tuple[S3Options, str], size: int | None = None) -> bytes | None:
        """The content of an object, if it is held, and of that size where the size is known."""
        with self._lock:
            content = self._held.get(key)
            if content is None or (size is not None and len(content) != size):
                return None
            self._held.move_to_end(key)
            return content

    def put(self, key: tuple[S3Options, str], content: bytes) -> None:
        """Hold the content of an object that is small."""
        if len(content) > WHOLE_BYTES:
            return
        with self._lock:
            self._bytes += len(content) - len(self._held.pop(key, b""))
            self._held[key] = content
            while self._bytes > self._limit:
                self._bytes -= len(self._held.popitem(last=False)[1])

    def drop(self, key: tuple[S3Options, str]) -> None:
        """Let go of the content of an object."""
        with self._lock:
            self._bytes -= len(self._held.pop(key, b""))


objects = HeldObjects(_HELD_BYTES)


class StoreFile(PyArrowFile):
    """An object, read as a whole where it is read from its start, and written with few requests."""

    def __init__(self, location: str, path: str, fs: FileSystem, files: StoreFileIO) -> None:
        super().__init__(location, path, fs)
        self.files = files

    def open(self, seekable: bool = True) -> InputStream:
        """Open it for reading."""
        if seekable and self.location.endswith(_LARGE):
            return super().open()
        if (data := self.files.read_object(self.location)) is None:
            with super().open() as file:
                data = file.read()
        return io.BytesIO(data)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Open it for writing; a name with a random id is not looked for first."""
        is_unique = _UNIQUE.search(self.location.rpartition("/")[2]) is not None
        return super().create(overwrite=overwrite or is_unique)
