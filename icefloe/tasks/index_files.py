"""Index data files: write the sidecars of a table's indexes, or look which files have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from icefloe.tasks.bm25 import build_bm25
from icefloe.tasks.btree import build_btree, remap_btree
from icefloe.tasks.messages import Task
from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexBuilder,
    IndexedFile,
    IndexToWrite,
    RowEdits,
    SidecarPlace,
    change_in_place,
    write_sidecar,
)
from icefloe.tasks.vectors import build_hnsw, needs_graph

# By kind of index; no task names this.
BUILDERS: Mapping[str, IndexBuilder] = {
    "bm25": IndexBuilder(build_bm25),
    "btree": IndexBuilder(build_btree, remap_btree),
    "hnsw": IndexBuilder(build_hnsw),
}

# The number of a file in the plan, the size of its sidecar, and why it has none.
COVERAGE = pa.schema([("file", pa.int64()), ("bytes", pa.int64()), ("problem", pa.string())])


@dataclass(frozen=True)
class CoveragePlan:
    """Data files that an index should cover."""

    index: IndexToWrite
    files: Sequence[IndexedFile]
    builds: bool  # sidecars that are missing or damaged


@dataclass(frozen=True)
class ReplacedFile:
    """A data file that another replaces, and how their rows differ."""

    location: str  # as the table's metadata has it
    size: int
    rows: int
    edits: RowEdits


def index_file(indexes: Sequence[IndexToWrite], file: IndexedFile) -> tuple[str, ...]:
    """Write the sidecars of a data file; returns why some could not be written.

    A file without a sidecar is read as if there were no index, so an error is no reason to fail.
    """
    return tuple(
        f"index {index.name} does not cover {file.location}: {problem}"
        for index in indexes
        if (problem := _build(index, file)[1]) is not None
    )


def index_edited_file(
    indexes: Sequence[IndexToWrite], file: IndexedFile, old: ReplacedFile
) -> tuple[str, ...]:
    """The same for a file that replaces another, whose sidecars are used where they can be."""
    remapped = {index.index_id for index in indexes if _remap(index, file, old)}
    return index_file([each for each in indexes if each.index_id not in remapped], file)


def _remap(index: IndexToWrite, file: IndexedFile, old: ReplacedFile) -> bool:
    """Write a sidecar with what another has; False if it has to be built."""
    remap = None if index.builder is None else index.builder.remap
    if remap is None:
        return False
    place = SidecarPlace.of(index, old.location, old.size, old.rows)
    try:
        content = remap(index, place, old.edits, file.rows)
        if content is None:
            return False
        write_sidecar(index, file, content)
    except (DamagedSidecarError, OSError, pa.ArrowException):
        return False
    return True


def needs_sidecar(kind: str, params: Mapping[str, Any], rows: int) -> bool:
    """Whether an index covers a file of so many rows by a sidecar; small ones may need none."""
    return kind != "hnsw" or needs_graph(params, rows)


def cover_files(plan: CoveragePlan) -> Task:
    """A task that reports the sidecars of the files whose numbers it gets, and may build them."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                size, problem = _coverage(plan, plan.files[number])
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([value], kind)
                        for value, kind in zip((number, size, problem), COVERAGE.types, strict=True)
                    ],
                    schema=COVERAGE,
                )

    return task


def _coverage(plan: CoveragePlan, file: IndexedFile) -> tuple[int | None, str | None]:
    """The size of a file's sidecar, 0 if it needs none; None, and why, if it has none."""
    if not needs_sidecar(plan.index.kind, plan.index.params, file.rows):
        return 0, None
    place = SidecarPlace.of(plan.index, file.location, file.size, file.rows)
    place = replace(place, problem=change_in_place(file.filesystem, file.path, file.size))
    try:
        with place.open():
            return place.filesystem.get_file_info(place.path).size, None
    except FileNotFoundError:
        problem = "it has no sidecar"
    except DamagedSidecarError as damaged:
        problem = str(damaged)
    return _build(plan.index, file) if plan.builds else (None, problem)


def _build(index: IndexToWrite, file: IndexedFile) -> tuple[int | None, str | None]:
    if index.builder is None:
        raise AssertionError(f"index {index.name} is only to be read")
    try:
        content = index.builder.build(index, file)
        return (0 if content is None else write_sidecar(index, file, content)), None
    except Exception as error:  # noqa: BLE001 - the data file is complete without it
        return None, str(error) or type(error).__name__
