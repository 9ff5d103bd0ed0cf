"""Index a data file: write the sidecar of each of a table's indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icefloe.tasks.btree import build_btree
from icefloe.tasks.sidecars import IndexedFile, IndexToWrite, SidecarContent, write_sidecar

# Content of a sidecar, by kind of index; None where the file needs none.
_BUILDERS: dict[str, Callable[[IndexToWrite, IndexedFile], SidecarContent | None]] = {
    "btree": build_btree,
}


def index_file(indexes: Sequence[IndexToWrite], file: IndexedFile) -> tuple[str, ...]:
    """Write the sidecars of a data file; returns why some could not be written.

    A file without a sidecar is read as if there were no index, so an error is no reason to fail.
    """
    return tuple(problem for index in indexes if (problem := _index_file(index, file)))


def _index_file(index: IndexToWrite, file: IndexedFile) -> str | None:
    try:
        content = _BUILDERS[index.kind](index, file)
        if content is not None:
            write_sidecar(index, file, content)
    except Exception as error:  # noqa: BLE001 - the data file is complete without it
        return f"index {index.name} does not cover {file.location}: {error}"
    return None
