"""delta-rs, which always rewrites files: it writes no deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake
from deltalake.table import TableMerger

from benchmarks.digest import AGGREGATES, Digest
from benchmarks.merges import ON, OPERATION, Action, Clause, When
from benchmarks.peers.peer import Facts, reason_not_to_scan
from benchmarks.statements import BoundStatement, Kind

_TARGET_FILE_BYTES = 2**30


class DeltaRsPeer:
    """The `deltalake` package, with its defaults or another compression.

    With a "streamed" source, its default for MERGE, it has no key bounds to skip files by; with a
    "collected" one it has.
    """

    def __init__(
        self, folder: Path, compression: str | None = None, source: str = "streamed"
    ) -> None:
        self._source = source
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
        return reason_not_to_scan(bound)

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.SCAN:
            return Facts(answer=self.digest(bound.where))
        if bound.statement.kind is Kind.DELETE:
            metrics = self._table.delete(bound.where, writer_properties=self._writer)
            return Facts(metrics["num_deleted_rows"], reported=metrics)
        if bound.statement.kind is Kind.MERGE:
            return self._merge(bound)
        metrics = self._table.update(
            updates=bound.assignments,
            predicate=bound.where,
            writer_properties=self._writer,
        )
        return Facts(metrics["num_updated_rows"], reported=metrics)

    def _merge(self, bound: BoundStatement) -> Facts:
        merger = self._table.merge(
            pq.read_table(bound.source),
            predicate=ON,
            source_alias="source",
            target_alias="target",
            writer_properties=self._writer,
            streamed_exec=self._source == "streamed",
        )
        excluded = [OPERATION] if bound.statement.merge.source.operations else None
        for clause in bound.statement.merge.clauses:
            merger = _with_clause(merger, clause, excluded)
        metrics = merger.execute()
        kinds = ("inserted", "updated", "deleted")
        return Facts(sum(metrics[f"num_target_rows_{kind}"] for kind in kinds), reported=metrics)

    def settle(self, facts: Facts) -> Facts:
        return facts

    def restore(self) -> None:
        self._table.restore(self._base)

    def live_files(self) -> frozenset[str] | None:
        return frozenset(Path(uri).name for uri in self._table.file_uris())

    def digest(self, where: str = "") -> Digest:
        query = f"SELECT {', '.join(AGGREGATES)} FROM t WHERE {where or 'true'}"
        answer = pa.table(QueryBuilder().register("t", self._table).execute(query).read_all())
        return Digest(*(int(column[0].as_py()) for column in answer.columns))

    def versions(self) -> Mapping[str, str]:
        return {
            "deltalake": version("deltalake"),
            "pyarrow": version("pyarrow"),
            "source of MERGE": self._source,
            "compression": self._compression or "its defaults: DELETE zstd, all else Snappy",
        }

    def close(self) -> None:
        self._table = None


def _with_clause(merger: TableMerger, clause: Clause, excluded: list[str] | None) -> TableMerger:
    match clause.when, clause.action:
        case When.MATCHED, Action.UPDATE_ALL:
            return merger.when_matched_update_all(clause.condition, except_cols=excluded)
        case When.MATCHED, Action.DELETE:
            return merger.when_matched_delete(clause.condition)
        case When.NOT_MATCHED, Action.INSERT_ALL:
            return merger.when_not_matched_insert_all(clause.condition, except_cols=excluded)
        case When.NOT_MATCHED_BY_SOURCE, Action.DELETE:
            return merger.when_not_matched_by_source_delete(clause.condition)
    raise ValueError(f"delta-rs does not support the clause {clause.sql}")
