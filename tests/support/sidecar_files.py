"""Data files and their sidecars on the local disk, made without Spark and without a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from icefloe.tasks.btree import CodeTable, build_btree
from icefloe.tasks.sidecars import IndexedFile, IndexToWrite, SidecarPlace, write_sidecar

INDEX_ID = "0123456789ab"


@dataclass(frozen=True)
class SidecarFiles:
    """A folder of data files and of sidecars of one index."""

    folder: Path
    types: tuple[str, ...]  # Iceberg's names
    index_id: str = INDEX_ID
    params: Mapping[str, object] = field(default_factory=dict)

    @property
    def index(self) -> IndexToWrite:
        return IndexToWrite(
            self.index_id,
            "i",
            "btree",
            tuple(range(1, len(self.types) + 1)),
            self.types,
            self.params,
            LocalFileSystem(),
            str(self.folder / "index" / self.index_id),
        )

    def data_file(self, name: str, *columns: pa.Array) -> IndexedFile:
        """A Parquet file with these columns, whose field ids count from 1."""
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table(list(columns), schema=schema_of(columns))
        pq.write_table(table, path)
        size = path.stat().st_size
        return IndexedFile(LocalFileSystem(), str(path), f"file://{path}", size, table.num_rows)

    def build(self, file: IndexedFile) -> Path:
        """Write the sidecar of a data file."""
        write_sidecar(self.index, file, build_btree(self.index, file))
        return self.sidecar(file)

    def sidecar(self, file: IndexedFile) -> Path:
        return Path(self.place(file).path)

    def place(self, file: IndexedFile) -> SidecarPlace:
        return SidecarPlace.of(self.index, file.location, file.size, file.rows)

    @contextmanager
    def open(self, file: IndexedFile) -> Iterator[CodeTable]:
        with self.place(file).open() as sidecar:
            yield CodeTable.of(sidecar, self.types)


def schema_of(columns: Sequence[pa.Array]) -> pa.Schema:
    """A schema whose columns are named c1, c2 and so on, with those numbers as field ids."""
    return pa.schema(
        [
            pa.field(f"c{number}", column.type, True, {"PARQUET:field_id": str(number)})
            for number, column in enumerate(columns, 1)
        ]
    )
