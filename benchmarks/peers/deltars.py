"""delta-rs, which always rewrites files: it writes no deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from benchmarks.digest import AGGREGATES, Digest
from benchmarks.peers.peer import Facts
from benchmarks.statements import ASSIGNED_COLUMN, ASSIGNED_EXPRESSION, BoundStatement, Kind

_TARGET_FILE_BYTES = 2**30


class DeltaRsPeer:
    """The `deltalake` package, with its own defaults or another compression."""

    def __init__(self, folder: Path, compression: str | None = None) -> None:
        self._folder = folder / "rows"
        self._compression = compression
        self._writer = WriterProperties(compression=compression) if compression else None
        self._table: DeltaTable | None = None
        self._base = 0

    @property
    def table_folder(self) -> Path:
        return self._folder

    def setup(self, files: Sequence[Path]) -> None:
        for file in files:
            write_deltalake(
                self._folder,
                pq.read_table(file),
                mode="append",
                target_file_size=_TARGET_FILE_BYTES,
                writer_properties=self._writer,
            )
        self._table = DeltaTable(self._folder)
        self._base = self._table.version()

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        known = bound.statement.kind in (Kind.DELETE, Kind.UPDATE)
        return None if known else f"no {bound.statement.kind} here yet"

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.DELETE:
            told = self._table.delete(bound.where, writer_properties=self._writer)
            return Facts(told["num_deleted_rows"], told=told)
        told = self._table.update(
            updates={ASSIGNED_COLUMN: ASSIGNED_EXPRESSION},
            predicate=bound.where,
            writer_properties=self._writer,
        )
        return Facts(told["num_updated_rows"], told=told)

    def settle(self, facts: Facts) -> Facts:
        return facts

    def restore(self) -> None:
        self._table.restore(self._base)

    def digest(self) -> Digest:
        query = f"SELECT {', '.join(AGGREGATES)} FROM t"
        found = pa.table(QueryBuilder().register("t", self._table).execute(query).read_all())
        return Digest(*(int(column[0].as_py()) for column in found.columns))

    def versions(self) -> Mapping[str, str]:
        return {
            "deltalake": version("deltalake"),
            "pyarrow": version("pyarrow"),
            "compression": self._compression or "its defaults: DELETE zstd, all else Snappy",
        }

    def close(self) -> None:
        self._table = None
