"""Delete files that no longer refer to any live data file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icefloe.metadata.files import LiveFile, SnapshotFiles


def dangling_deletes(
    files: SnapshotFiles,
    removed: Sequence[LiveFile],
    contents: Mapping[str, Mapping[str, Any]],
    everywhere: frozenset[int] = frozenset(),
) -> tuple[LiveFile, ...]:
    """The delete files to remove together with the `removed` data files.

    `contents` has the data files that a position delete file names, where it has been read. A
    delete file that may still apply to a live data file stays. Equality deletes of the specs
    `everywhere`, which apply to every partition, are considered too; `files` must then be complete.
    """
    if not removed:
        return ()
    removed_paths = {file.path for file in removed}
    partitions = {file.partition_key for file in removed}
    remaining = [file for file in files.data if file.path not in removed_paths]
    live = {file.path for file in remaining}
    oldest: dict[object, int] = {}  # lowest sequence number by partition
    for file in remaining:
        lowest = oldest.get(file.partition_key, file.sequence_number)
        oldest[file.partition_key] = min(lowest, file.sequence_number)
    oldest_of_all = min((file.sequence_number for file in remaining), default=None)
    dangling_everywhere = tuple(
        delete
        for delete in files.deletes
        if delete.is_equality_delete
        and delete.spec_id in everywhere
        and not (oldest_of_all is not None and oldest_of_all < delete.sequence_number)
    )
    paths = {delete.path for delete in dangling_everywhere}
    return dangling_everywhere + tuple(
        delete
        for delete in files.deletes
        if delete.path not in paths
        and delete.partition_key in partitions
        and not _applies(delete, live, oldest.get(delete.partition_key), contents.get(delete.path))
    )


def _applies(
    delete: LiveFile, live: set[str], oldest: int | None, named: Iterable[str] | None
) -> bool:
    """Whether a delete file may apply to rows of a live file of its partition.

    An equality delete under an unpartitioned spec, or one whose fields are all void, applies to
    every partition. It stays here: files of other specs may be older.
    """
    if delete.is_equality_delete:
        is_global = all(value is None for value in delete.partition_key[1])
        return is_global or (oldest is not None and oldest < delete.sequence_number)
    if delete.referenced_path is not None:
        return delete.referenced_path in live
    if named is not None:
        return any(path in live for path in named)
    return oldest is not None and oldest <= delete.sequence_number
