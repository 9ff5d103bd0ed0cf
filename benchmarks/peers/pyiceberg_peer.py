"""PyIceberg without Spark: its own DELETE, UPDATE by other means, MERGE as upsert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from benchmarks.data import assigned
from benchmarks.digest import COLUMNS, Digest, digest_of
from benchmarks.merges import INSERT_ONLY, KEY, UPSERT
from benchmarks.peers.peer import Facts, reason_not_to_scan
from benchmarks.statements import BoundStatement, Kind

_UPSERT_ROWS = 50_000  # seconds grow with the rows: 40,000 took 12 s on a busy machine


class PyIcebergPeer:
    """`update_by` is "upsert" (by key) or "overwrite" (delete and append in one commit)."""

    def __init__(self, folder: Path, update_by: str) -> None:
        self._folder = folder / "warehouse"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._update_by = update_by
        self._catalog = load_catalog(
            "bench",
            type="sql",
            uri=f"sqlite:///{folder / 'catalog.db'}",
            warehouse=f"file://{self._folder}",
        )
        self._table: Table | None = None
        self._base: int | None = None

    @property
    def table_folder(self) -> Path:
        return self._folder

    def setup(self, files: Sequence[Path]) -> None:
        self._catalog.create_namespace("bench")
        self._table = self._catalog.create_table("bench.rows", pq.read_schema(files[0]))
        for file in files:
            self._table.append(pq.read_table(file))
        self._base = self._snapshot_id

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        if bound.statement.kind is Kind.DELETE:
            return None
        if bound.statement.kind is Kind.SCAN:
            rows = bound.rows_changed // bound.statement.statements_before
            return _too_many(rows) if rows > _UPSERT_ROWS else reason_not_to_scan(bound)
        if bound.statement.kind is Kind.MERGE:
            return _reason_to_leave_out_merge(bound)
        if self._update_by == "overwrite" or bound.rows_changed <= _UPSERT_ROWS:
            return None
        return f"PyIceberg has no UPDATE, and {_too_many(bound.rows_changed)}"

    def run(self, bound: BoundStatement) -> Facts:
        if bound.statement.kind is Kind.SCAN:
            return Facts(answer=self.digest(bound.where))
        if bound.statement.kind is Kind.DELETE:
            self._table.delete(bound.where)
            return Facts()
        if bound.statement.kind is Kind.MERGE:
            return self._upsert(bound)
        rows = _assigned(self._table.scan(bound.where).to_arrow(), bound)
        if self._update_by == "overwrite":
            self._table.overwrite(rows, overwrite_filter=bound.where)
            return Facts(rows.num_rows)
        result = self._table.upsert(rows, join_cols=[KEY])
        return Facts(result.rows_updated)

    def _upsert(self, bound: BoundStatement) -> Facts:
        result = self._table.upsert(
            pq.read_table(bound.source),
            join_cols=[KEY],
            when_matched_update_all=bound.statement.merge.clauses == UPSERT,
        )
        return Facts(result.rows_updated + result.rows_inserted)

    def settle(self, facts: Facts) -> Facts:
        """A delete returns no count: take it from the totals of the snapshots."""
        if facts.rows_changed is not None or facts.answer is not None:
            return facts
        before, after = self._total_rows(self._base), self._total_rows(self._snapshot_id)
        return replace(facts, rows_changed=before - after)

    def restore(self) -> None:
        if self._snapshot_id != self._base:
            self._table.manage_snapshots().rollback_to_snapshot(self._base).commit()
            self._table.refresh()

    def live_files(self) -> frozenset[str] | None:
        return frozenset(Path(task.file.file_path).name for task in self._table.scan().plan_files())

    def digest(self, where: str = "") -> Digest:
        scan = self._table.scan(where or AlwaysTrue(), selected_fields=COLUMNS)
        return digest_of(scan.to_arrow_batch_reader())

    def versions(self) -> Mapping[str, str]:
        return {
            "pyiceberg": version("pyiceberg"),
            "pyarrow": version("pyarrow"),
            "update by": self._update_by,
        }

    def close(self) -> None:
        self._catalog.close()

    @property
    def _snapshot_id(self) -> int:
        return self._table.metadata.current_snapshot_id

    def _total_rows(self, snapshot_id: int) -> int:
        return int(self._table.snapshot_by_id(snapshot_id).summary["total-records"])


def _reason_to_leave_out_merge(bound: BoundStatement) -> str | None:
    if bound.statement.merge.clauses not in (UPSERT, INSERT_ONLY):
        return "PyIceberg has no MERGE, and its upsert has neither conditions nor deletes"
    if bound.source_rows > _UPSERT_ROWS:
        return _too_many(bound.source_rows)
    return None


def _too_many(rows: int) -> str:
    return f"its upsert is slow: {rows:,} rows exceed the limit of {_UPSERT_ROWS:,}"


def _assigned(rows: pa.Table, bound: BoundStatement) -> pa.Table:
    for name in bound.assignments:
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index), assigned(rows.column(index)))
    return rows
