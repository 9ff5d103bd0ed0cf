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
    """The delete files that go when `removed` data files go.

    `contents` tells which data files a position-delete file names, where it has been read. A
    delete file that may still apply to a live data file is kept. Equality deletes of the specs
    `everywhere`, which reach every partition, are judged too; then `files` must be all there are.
    """
    if not removed:
        return ()
    gone = {file.path for file in removed}
    partitions = {file.partition_key for file in removed}
    remaining = [file for file in files.data if file.path not in gone]
    live = {file.path for file in remaining}
    oldest: dict[object, int] = {}
    for file in remaining:
        known = oldest.get(file.partition_key, file.sequence_number)
        oldest[file.partition_key] = min(known, file.sequence_number)
    eldest = min((file.sequence_number for file in remaining), default=None)
    reaching = tuple(
        delete
        for delete in files.deletes
        if delete.is_equality_delete
        and delete.spec_id in everywhere
        and not (eldest is not None and eldest < delete.sequence_number)
    )
    going = {delete.path for delete in reaching}
    return reaching + tuple(
        delete
        for delete in files.deletes
        if delete.path not in going
        and delete.partition_key in partitions
        and not _applies(delete, live, oldest.get(delete.partition_key), contents.get(delete.path))
    )


def _applies(
    delete: LiveFile, live: set[str], oldest: int | None, named: Iterable[str] | None
) -> bool:
    """Whether a delete file may name rows of a live file of its partition.

    An equality delete under an unpartitioned spec, one with void fields too, reaches every
    partition and is never dropped here: other specs may hold older files.
    """
    if delete.is_equality_delete:
        everywhere = all(value is None for value in delete.partition_key[1])
        return everywhere or (oldest is not None and oldest < delete.sequence_number)
    if delete.referenced_path is not None:
        return delete.referenced_path in live
    if named is not None:
        return any(path in live for path in named)
    return oldest is not None and oldest <= delete.sequence_number
