"""Rows marked as gone without touching their files; files whose last rows go are removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.manifest import DataFile
from pyroaring import BitMap64

from icefloe.deletes.dangling import dangling_deletes
from icefloe.deletes.position_deletes import DeletePartition, write_position_deletes
from icefloe.file_changes import FileChanges, RemoveFiles
from icefloe.metadata.files import LiveFile, PartitionKey
from icefloe.pruning.candidates import FilePlan
from icefloe.scan.scan import Scan
from icefloe.tasks.messages import FileKey
from icefloe.write.data_files import partition_folder
from icefloe.write.rewrite import Rewritten

Hits = Mapping[str, BitMap64]  # rows by data file location


def by_location(scan: Scan, found: Mapping[FileKey, BitMap64]) -> dict[str, BitMap64]:
    """Rows found by the keys of files, told by the files' locations."""
    return {scan.keys.files[key].path: rows for key, rows in found.items() if rows}


def count(hits: Hits) -> int:
    """How many rows."""
    return sum(len(rows) for rows in hits.values())


def file_changes(
    scan: Scan,
    files: FilePlan,
    statement_id: str,
    rewritten: Rewritten,
    marked: Hits,
    replaced: Hits,
    added: Sequence[DataFile] = (),
) -> FileChanges:
    """Everything a statement changes: `marked` rows go from files that stay, or the files go.

    `replaced` are those of the marked rows that have new versions among `added`.
    """
    emptied = [
        c
        for c in scan.candidates
        if c.path in marked and not c.equality_deletes and len(marked[c.path]) == scan.live_rows(c)
    ]
    gone = {c.path for c in emptied}
    left = {path: rows for path, rows in marked.items() if path not in gone}
    removed = (*rewritten.replaced, *(c.live for c in emptied))
    return FileChanges(
        added_data=(*rewritten.files, *added),
        added_deletes=tuple(_write_deletes(scan, statement_id, left)),
        removal=RemoveFiles(removed, dangling_deletes(files.files, removed, scan.delete_contents)),
        deleted_rows=left,
        replaced_rows=dict(replaced),
    )


def _write_deletes(scan: Scan, statement_id: str, hits: Hits) -> list[DataFile]:
    """Position deletes under each data file's own spec and partition, one file per partition.

    With `write.delete.granularity` = `file`, one per data file, as some readers want it.
    """
    state = scan.state
    groups: dict[PartitionKey | str, list[LiveFile]] = {}
    for candidate in scan.candidates:
        if candidate.path in hits:
            live = candidate.live
            key = live.path if state.settings.deletes_per_file else live.partition_key
            groups.setdefault(key, []).append(live)
    written: list[DataFile] = []
    for number, files in enumerate(groups.values()):
        first = files[0]
        folder = partition_folder(state, first)
        where = DeletePartition(first.spec_id, first.file.partition, f"{folder}/" if folder else "")
        positions = {file.path: hits[file.path] for file in files}
        written += write_position_deletes(state, f"{statement_id}-d{number}", positions, where)
    return written
