"""Decoded manifests and manifest lists of this process: they never change, so each is read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile

from icefloe.errors import SetupError
from icefloe.metadata.files import LiveFile
from icefloe.storage.file_cache import FileCache, file_key

# Catalog properties, by the names that Iceberg's Java library has for them.
ENABLED = "io.manifest.cache-enabled"
MOST_BYTES = "io.manifest.cache.max-total-bytes"
_DEFAULT_BYTES = 256 * 2**20

LiveFiles = tuple[tuple[LiveFile, ...], tuple[LiveFile, ...]]  # data files and delete files


class Entries(tuple[ManifestEntry, ...]):
    """The entries of a manifest, and its live files once they were asked for."""

    live: LiveFiles | None = None


def entries_of(
    path: str,
    length: int,
    properties: Mapping[str, str],
    read: Callable[[], Sequence[ManifestEntry]],
) -> Entries:
    """The entries of a manifest: held ones, or those that `read` returns, which are then held."""
    limit, key = cache_bytes(properties), (path, length, 0)
    held = manifests.get(key) if limit else None
    if held is not None:
        return held
    entries = Entries(read())
    if limit:
        manifests.put(key, entries, limit)
    return entries


def manifests_in(
    io: FileIO, location: str, read: Callable[[], Sequence[ManifestFile]]
) -> tuple[ManifestFile, ...]:
    """The manifests of a list: held ones, or those that `read` returns, which are then held."""
    limit = cache_bytes(io.properties)
    key = file_key(io, location) if limit else None
    held = lists.get(key) if key is not None else None
    if held is not None:
        return held
    manifests = tuple(read())
    if key is not None:
        lists.put(key, manifests, limit)
    return manifests


def is_held(path: str, length: int) -> bool:
    """Whether the entries of a manifest are held."""
    return (path, length, 0) in manifests


def cache_bytes(properties: Mapping[str, str]) -> int:
    """The most bytes of manifests to hold, and of delete files; 0 for none."""
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

_ENTRY_BYTES, _PAIR_BYTES, _SUMMARY_BYTES = 1300, 100, 400


def _bytes_of_entry(entry: ManifestEntry) -> int:
    file = entry.data_file
    maps = (
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
        file.lower_bounds,
        file.upper_bounds,
    )
    pairs = sum(len(each) for each in maps if each)
    bounds = (*(file.lower_bounds or {}).values(), *(file.upper_bounds or {}).values())
    # Some writers do not truncate the bounds of texts.
    return _ENTRY_BYTES + _PAIR_BYTES * pairs + sum(map(len, bounds))


def _bytes_of_list(manifests: Sequence[ManifestFile]) -> int:
    summaries = sum(len(manifest.partitions or ()) for manifest in manifests)
    return _ENTRY_BYTES * len(manifests) + _SUMMARY_BYTES * summaries


manifests: FileCache[Entries] = FileCache(lambda entries: sum(map(_bytes_of_entry, entries)))
lists: FileCache[tuple[ManifestFile, ...]] = FileCache(_bytes_of_list)
