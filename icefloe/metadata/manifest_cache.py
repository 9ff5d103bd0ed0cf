"""Decoded manifests of this process: one never changes, so it is read once.

Least recently used manifests go first. Paths have random parts, and the length must be the same
too: a file that was replaced is read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from pyiceberg.manifest import ManifestEntry

from icefloe.errors import SetupError

# Catalog properties, by the names that Iceberg's Java library has for them.
ENABLED = "io.manifest.cache-enabled"
MOST_BYTES = "io.manifest.cache.max-total-bytes"
_DEFAULT_BYTES = 256 * 2**20

_Key = tuple[str, int]
Entries = tuple[ManifestEntry, ...]


class ManifestCache:
    """Entries of manifests by location and length, within a limit of estimated bytes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: OrderedDict[_Key, tuple[Entries, int]] = OrderedDict()
        self._bytes = 0

    def get(self, path: str, length: int) -> Entries | None:
        """The entries of a manifest, if it is held."""
        with self._lock:
            held = self._held.get((path, length))
            if held is None:
                return None
            self._held.move_to_end((path, length))
            return held[0]

    def put(self, path: str, length: int, entries: Entries, limit: int) -> None:
        """Hold entries, and let go of others until all are within the limit."""
        size = sum(map(_bytes_of, entries))
        if size > limit:
            return
        with self._lock:
            _, before = self._held.pop((path, length), ((), 0))
            self._held[path, length] = entries, size
            self._bytes += size - before
            while self._bytes > limit:
                _, (_, released) = self._held.popitem(last=False)
                self._bytes -= released

    def __contains__(self, manifest: tuple[str, int]) -> bool:
        """Whether a manifest is held, by location and length."""
        return manifest in self._held

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


manifests = ManifestCache()


def entries_of(
    path: str,
    length: int,
    properties: Mapping[str, str],
    read: Callable[[], Sequence[ManifestEntry]],
) -> Entries:
    """The entries of a manifest: held ones, or those that `read` returns, which are then held."""
    limit = cache_bytes(properties)
    held = manifests.get(path, length) if limit else None
    if held is not None:
        return held
    entries = tuple(read())
    if limit:
        manifests.put(path, length, entries, limit)
    return entries


def cache_bytes(properties: Mapping[str, str]) -> int:
    """The most bytes of manifests to hold; 0 for none."""
    if str(properties.get(ENABLED, "true")).strip().lower() == "false":
        return 0
    given = properties.get(MOST_BYTES)
    if given is None:
        return _DEFAULT_BYTES
    try:
        return max(0, int(given))
    except ValueError:
        raise SetupError(f"{MOST_BYTES} must be a number of bytes, not {given!r}.") from None


# -------------------------------------------------------------------------------------------------
# Memory of an entry, estimated from what CPython's objects take

_ENTRY_BYTES, _PAIR_BYTES = 1200, 100


def _bytes_of(entry: ManifestEntry) -> int:
    file = entry.data_file
    maps = (
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
        file.lower_bounds,
        file.upper_bounds,
    )
    return _ENTRY_BYTES + _PAIR_BYTES * sum(len(each) for each in maps if each)
