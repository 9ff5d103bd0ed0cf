"""What this process has read of files that never change, so that each is read once.

Contents are held by location and length: locations have random parts, and a file that was replaced
by another length is read again. On a local disk, where a file is easily damaged in its place, the
time of its last change is part of the key too.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Generic, TypeVar

from pyarrow.fs import FileType
from pyiceberg.io import FileIO

from icefloe.storage.files import locate
from icefloe.storage.filesystem import is_local_disk

V = TypeVar("V")
FileKey = tuple[str, int, int]  # location, length and time of the last change, 0 if not looked at

# Changes that follow each other sooner may have the same time.
_CLOCK_TICK_NS = 50_000_000


class FileCache(Generic[V]):
    """Contents of files within a limit of estimated bytes; the least recently used go first."""

    def __init__(self, bytes_of: Callable[[V], int]) -> None:
        self._bytes_of = bytes_of
        self._lock = Lock()
        self._held: OrderedDict[FileKey, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: FileKey) -> V | None:
        """The content of a file, if it is held."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._held.move_to_end(key)
            return held[0]

    def put(self, key: FileKey, content: V, limit: int) -> None:
        """Hold a content, and let go of others until all are within the limit."""
        size = self._bytes_of(content)
        if size > limit:
            return
        with self._lock:
            _, before = self._held.pop(key, (None, 0))
            self._held[key] = content, size
            self._bytes += size - before
            while self._bytes > limit:
                _, (_, released) = self._held.popitem(last=False)
                self._bytes -= released

    def __contains__(self, key: FileKey) -> bool:
        """Whether the content of a file is held."""
        return key in self._held

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._held.clear()
            self._bytes = 0

    @property
    def bytes(self) -> int:
        """Estimated bytes of what is held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._held)


def file_keys(io: FileIO, lengths: Mapping[str, int]) -> dict[str, FileKey | None]:
    """The keys of files, given their lengths by the metadata; None for what must be read again.

    On a local disk that is a file that is missing, has another length, or changed just now.
    """
    keys: dict[str, FileKey | None] = {}
    paths: dict[str, str] = {}
    disk = None
    for location, length in lengths.items():
        file = locate(io, location)
        if is_local_disk(file.filesystem):
            disk, paths[location] = file.filesystem, file.path
        else:
            keys[location] = location, length, 0
    if disk is None:
        return keys
    now = time.time_ns()
    for location, info in zip(paths, disk.get_file_info([*paths.values()]), strict=True):
        is_listed = info.type == FileType.File and info.size == lengths[location]
        is_settled = is_listed and now - info.mtime_ns > _CLOCK_TICK_NS
        keys[location] = (location, lengths[location], info.mtime_ns) if is_settled else None
    return keys


def file_key(io: FileIO, location: str) -> FileKey | None:
    """The key of a file whose length nobody says; None as in `file_keys`."""
    file = locate(io, location)
    if not is_local_disk(file.filesystem):
        return location, 0, 0
    info = file.filesystem.get_file_info(file.path)
    return file_keys(io, {location: info.size or 0})[location]
