"""Which data files and sidecars this process opens, and data files that can be read only in part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pyarrow.parquet as pq

from icefloe import Table
from icefloe.metadata.files import LiveFile
from support.indexed_tables import sidecar_of
from support.tables import data_files
from support.watched_calls import Watch, watching


@dataclass(frozen=True)
class OpenedFiles:
    """What the driver reads; tasks in Spark's workers are other processes."""

    watch: Watch

    @property
    def data(self) -> list[str]:
        return [path for path in self._read if "/data/" in path]

    @property
    def sidecars(self) -> list[str]:
        return [path for path in self._read if "/_icefloe/index/" in path]

    @property
    def _read(self) -> list[str]:
        reads = [call.removeprefix("read ") for call in self.watch.calls if call[:5] == "read "]
        return [path for path in reads if path.endswith(".parquet") and "-deletes" not in path]


@contextmanager
def opened_files() -> Iterator[OpenedFiles]:
    with watching(Watch()) as watch:
        yield OpenedFiles(watch)


def local(live: LiveFile) -> Path:
    return Path(urlparse(live.path).path)


def remove_sidecars(table: Table, index: str, files: list[LiveFile] | None = None) -> int:
    """Remove the sidecars of some data files; returns how many there were."""
    paths = [sidecar_of(table, index, live) for live in files or data_files(table)]
    stored = [path for path in paths if path.exists()]
    for path in stored:
        path.unlink()
    return len(stored)


def destroy_row_groups(live: LiveFile, keep: set[int]) -> None:
    """Overwrite the pages of all row groups but some: reading them fails."""
    path = local(live)
    footer, content = pq.read_metadata(path), bytearray(path.read_bytes())
    for number in set(range(footer.num_row_groups)) - keep:
        for leaf in range(footer.num_columns):
            chunk = footer.row_group(number).column(leaf)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            content[start : start + chunk.total_compressed_size] = bytes(
                chunk.total_compressed_size
            )
    path.write_bytes(content)
