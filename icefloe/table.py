"""One table: its rows, its metadata, and the statements that change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from icefloe.builders import Delete, Merge, ReplaceUsing, ReplaceWhere, Update
from icefloe.commands.context import Context, Tables
from icefloe.commands.evolve import (
    add_column,
    drop_column,
    evolve_partitions,
    rename_column,
    rollback,
    set_properties,
)
from icefloe.commands.indexes import NewIndex, create_index, drop_index, list_indexes
from icefloe.commands.input_rows import as_frame, fit_new_rows, fit_rows, source_rows
from icefloe.commands.lost_deletes import current_state
from icefloe.commands.replace.partitions_of import partitions_of
from icefloe.commands.run import flush, insert, run
from icefloe.commands.scan import ScanRequest, count_rows, read_arrow, read_pandas, read_rows
from icefloe.commands.search.command import Search, search
from icefloe.display import HtmlRows, block_html, figures_html, table_html
from icefloe.errors import IcefloeError
from icefloe.inline.facts import InlineFacts, read_inline_facts
from icefloe.inspection.facts import table_facts
from icefloe.inspection.log import render_log
from icefloe.inspection.metadata_tables import metadata_table
from icefloe.maintenance.compact import compact
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.orphans import OrphanSearch, remove_dropped_tables, remove_orphans
from icefloe.maintenance.rewrite_manifests import rewrite_manifests
from icefloe.metadata.table_state import MAIN, TableState, state_of
from icefloe.redaction import redacted
from icefloe.results import (
    DmlResult,
    ExpireResult,
    IndexResult,
    OrphansResult,
    RewriteManifestsResult,
)
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import UpdateKind
from icefloe.spark.progress import show_step
from icefloe.statements import (
    Condition,
    MergeStatement,
    Options,
    Replacement,
    ReplaceStatement,
    RowStatement,
    UsingStatement,
    WriteKind,
    WriteStatement,
)


class Table:
    """A table of a lake; made by `lake.table(name)` or `lake.create_table(…)`.

    Examples:
        >>> orders = lake.table("shop.orders")
        >>> orders.append([{"id": 4, "region": "eu", "n": 40}]).rows_inserted
        1
        >>> orders.update().set("n", 0).where("id = 4").execute().rows_updated
        1
        >>> orders.count("n = 0")
        1
    """

    def __init__(self, lake: Tables, name: str) -> None:
        self._lake = lake
        self._name = name
        self._known: TableState | None = None  # for inserts, which find out if it is out of date

    def __repr__(self) -> str:
        return redacted(f"Table({self._name!r})")

    def _repr_html_(self) -> str:
        """Columns and counts, for notebooks."""
        try:
            return _facts_html(table_facts(self._name, self.iceberg))
        except IcefloeError as error:  # it was dropped, for example
            return block_html(f"{self!r}: {error}")

    # Metadata

    @property
    def name(self) -> str:
        """The table's full name."""
        return self._name

    @property
    def iceberg(self) -> IcebergTable:
        """The PyIceberg table, as it is now."""
        return self._lake.load(self._name)

    @property
    def location(self) -> str:
        """The table's base location."""
        return self.iceberg.location()

    @property
    def schema(self) -> StructType:
        """The columns, as a Spark schema."""
        return spark_schema(self.iceberg.schema())

    @property
    def format_version(self) -> int:
        """Iceberg's format version."""
        return self.iceberg.metadata.format_version

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.iceberg.properties)

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot; None while the table has none."""
        return self.iceberg.metadata.current_snapshot_id

    # Rows out

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        *,
        limit: int | None = None,
        snapshot_id: int | None = None,
        as_of: datetime | None = None,
    ) -> DataFrame:
        """Live rows: now, at a snapshot, or as of a timestamp.

        `where` is SQL text, which also rules files out, or a Column. `_file` and `_pos`, a row's
        file and position, may be named in `columns` and `where`.

        Examples:
            >>> orders.scan(["id", "n"], where="region = 'us'").orderBy("id").collect()
            [Row(id=1, n=10), Row(id=2, n=20)]
        """
        request = ScanRequest(columns, where, limit, snapshot_id, as_of)
        return read_rows(self._context(), self._state(), request)

    def count(self, where: Condition | None = None) -> int:
        """How many live rows there are, or for how many of them a condition is true."""
        return count_rows(self._context(), self._state(), where)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        *,
        limit: int | None = None,
    ) -> pa.Table:
        """Live rows as an Arrow table."""
        request = ScanRequest(columns, where, limit)
        return read_arrow(self._context(), self._state(), request)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        *,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """Live rows as a pandas frame."""
        request = ScanRequest(columns, where, limit)
        return read_pandas(self._context(), self._state(), request)

    # Rows in

    def append(self, rows: object, *, idempotency_key: str | None = None) -> DmlResult:
        """Add rows as new data files; with a key, once however often it is called."""
        return self._write(WriteKind.APPEND, rows, idempotency_key)

    def insert(self, rows: object, *, idempotency_key: str | None = None) -> DmlResult:
        """Add a few rows: to the inline tier where the table has one, else as `append`.

        The inline tier takes up to 10,000 rows or 8 MB in one transaction of the database that the
        rows are in, without Spark and without a snapshot; the result's mode is `inline`.
        """
        result, self._known = insert(rows, idempotency_key, self._context(), self._known)
        return result

    @property
    def inline(self) -> InlineFacts | None:
        """What the inline tier holds: rows, bytes, the oldest row; None without that tier."""
        return read_inline_facts(self._lake.tier, self._state())

    def overwrite(self, rows: object, *, idempotency_key: str | None = None) -> DmlResult:
        """Replace all rows."""
        return self._write(WriteKind.OVERWRITE, rows, idempotency_key)

    def overwrite_partitions(
        self, rows: object, *, idempotency_key: str | None = None
    ) -> DmlResult:
        """Replace exactly the partitions that `rows` has rows in; others stay as they are."""
        return self._write(WriteKind.OVERWRITE_PARTITIONS, rows, idempotency_key)

    def truncate(self) -> DmlResult:
        """Remove all rows, by metadata alone."""
        return run(WriteStatement(WriteKind.TRUNCATE), self._context())

    def update(self) -> Update:
        """Start an UPDATE."""
        return Update(self._context(), RowStatement(UpdateKind.UPDATE))

    def delete(self) -> Delete:
        """Start a DELETE."""
        return Delete(self._context(), RowStatement(UpdateKind.DELETE))

    def merge(
        self,
        source: object,
        on: Condition | Sequence[str],
        *,
        target_alias: str = "target",
        source_alias: str = "source",
    ) -> Merge:
        """Start a MERGE: rows of `source` are matched with the table's rows by `on`.

        `on` is a condition over both aliases, a Column, or a list of columns both sides have.
        Nothing is changed before `execute()`.
        """
        state = self._state()
        local = source_rows(source, state)
        frame = as_frame(source if local is None else local, state, self._lake.spark)
        condition = on if isinstance(on, str | Column) else tuple(on)
        statement = MergeStatement(frame, condition, target_alias, source_alias, local=local)
        return Merge(self._context(), statement)

    def upsert(self, source: object, on: Condition | Sequence[str]) -> Merge:
        """Start a MERGE that updates matching rows and inserts the others."""
        return self.merge(source, on).when_matched().update_all().when_not_matched().insert_all()

    def replace_where(self, predicate: str, rows: object) -> ReplaceWhere:
        """Start a REPLACE WHERE: `rows` replace those that `predicate` is true for."""
        return ReplaceWhere(self._context(), ReplaceStatement((Replacement(predicate, rows),)))

    def replace_using(self, columns: Sequence[str] | str, rows: object) -> ReplaceUsing:
        """Start a REPLACE USING: `rows` replace those with the same values in `columns`."""
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return ReplaceUsing(self._context(), UsingStatement(names, rows))

    def partitions_of(self, rows: object) -> str:
        """The predicate of the partitions that `rows` are in, for `replace_where`.

        Only the columns that the table is partitioned by are needed.
        """
        return partitions_of(rows, self._state(), self._lake.spark)

    # Indexes

    def create_index(
        self, name: str, kind: str, columns: Sequence[str] | str, **params: object
    ) -> IndexResult:
        """Index columns: `btree` for values and ranges, `bm25` for words, `hnsw` for vectors.

        Called again, it covers the files that lack a sidecar: those of other engines, or of a call
        that was interrupted. With `on_write=False` only this call and compaction build sidecars.
        """
        new = NewIndex(name, kind, columns, params)
        return create_index(self._context(), self.iceberg, new)

    def drop_index(self, name: str) -> None:
        """Drop an index and its sidecars; raises IndexNotFoundError."""
        drop_index(self._context(), self.iceberg, name)

    def indexes(self) -> DataFrame:
        """The indexes, with the files and rows that each of them covers."""
        return list_indexes(self._context(), self._state())

    def search(
        self,
        index: str,
        query: str | Sequence[float],
        *,
        limit: int = 10,
        exact: bool = False,
    ) -> DataFrame:
        """The best rows for a query, the best first; raises IndexNotFoundError.

        A bm25 index takes a text: `words +must -not "a phrase"`. The rows have `_score`, which is
        higher the better. An hnsw index takes a vector; the rows have `_distance`. `exact=True`
        compares every vector, which graphs of large files avoid.

        Examples:
            >>> notes = lake.create_table("app.notes", "id BIGINT, note STRING")
            >>> _ = notes.append([{"id": 1, "note": "a pink house"}, {"id": 2, "note": "a fox"}])
            >>> _ = notes.create_index("by_note", "bm25", "note")
            >>> notes.search("by_note", "pink").select("id").collect()
            [Row(id=1)]
        """
        return search(self._context(), self._state(), Search(index, query, limit, exact))

    # Metadata tables

    def log(self, snapshot_id: int | None = None) -> str:
        """Commits as JSON lines of `replaceWhere`, `remove` and `add`: one commit, or all."""
        return render_log(self._state(), snapshot_id)

    def history(self) -> DataFrame:
        """The snapshots that were current, and since when."""
        return self._metadata_table("history")

    def snapshots(self) -> DataFrame:
        """Every snapshot with its operation and summary."""
        return self._metadata_table("snapshots")

    def files(self) -> DataFrame:
        """Live files: data (`content` 0), position deletes (1), equality deletes (2)."""
        return self._metadata_table("files")

    def partitions(self) -> DataFrame:
        """Partitions with their row and file counts."""
        return self._metadata_table("partitions")

    def manifests(self) -> DataFrame:
        """The manifests of the current snapshot."""
        return self._metadata_table("manifests")

    # Evolution

    def set_properties(
        self, properties: Mapping[str, object] | None = None, **named: object
    ) -> Table:
        """Set properties, several at once.

        Switching the inline tier on prepares its database; switching it off flushes its rows in the
        same commit.
        """
        set_properties(self._context(), self.iceberg, {**(properties or {}), **named})
        return self

    def add_column(self, name: str, type: str, *, default: Any = None) -> Table:
        """Add an optional column; existing rows read NULL in it."""
        add_column(self.iceberg, name, type, default)
        return self

    def drop_column(self, name: str) -> Table:
        """Drop a column; earlier snapshots keep it."""
        drop_column(self.iceberg, name)
        return self

    def rename_column(self, old: str, new: str) -> Table:
        """Rename a column; no file is changed."""
        rename_column(self.iceberg, old, new)
        return self

    def evolve_partitions(self, partition_by: Sequence[str] | str) -> Table:
        """Change how new rows are partitioned; existing files stay as they are."""
        evolve_partitions(self.iceberg, partition_by)
        return self

    def rollback(self, snapshot_id: int | None = None, *, as_of: datetime | None = None) -> Table:
        """Make an earlier snapshot current again; history is kept, inline rows are flushed."""
        rollback(self._context(), snapshot_id, as_of)
        return self

    # Maintenance

    def flush(self, *, discard_lost_deletes: bool = False) -> DmlResult:
        """Move inline rows to data files; other engines see them from then on.

        Rows of files that are deleted inline are deleted in delete files then. Where another engine
        replaced such a file and its deleted rows cannot be found in the new files, statements and
        reads are refused until `discard_lost_deletes` gives those deletes up.
        """
        return flush(self._context(), discard_lost_deletes=discard_lost_deletes)

    def compact(
        self, where: Condition | None = None, *, target_file_bytes: int | None = None
    ) -> DmlResult:
        """Combine small files, split large ones, apply deletes; rows stay the same.

        With `where`, only files that may hold such rows are compacted, as a whole.
        """
        return compact(self._context(), where, target_file_bytes)

    def expire_snapshots(
        self, *, older_than: datetime | None = None, retain_last: int = 1
    ) -> ExpireResult:
        """Expire snapshots older than 5 days by default, and delete files that only they use.

        The current snapshot, snapshots of tags and branches, and the last `retain_last` snapshots
        of each branch are retained.
        """
        state = current_state(self._context())  # while the files of its deleted rows are there
        with show_step("expiring snapshots"):
            result = expire_snapshots(self._lake.catalog, state, older_than, retain_last)
        self._lake.tier.remove_keys(state, older_than)
        return result

    def remove_orphans(
        self,
        *,
        older_than: datetime | None = None,
        dry_run: bool = True,
        allow_recent: bool = False,
        folders: Sequence[str] | str = (),
    ) -> OrphansResult:
        """Find files in the table's folders that nothing refers to, older than 3 days by default.

        They are listed, and with `dry_run=False` deleted. Deleting files younger than a day needs
        `allow_recent`. In folders outside the table's location only files named as Iceberg writers
        name them count; in folders named in `folders`, every file.

        Inline rows that dropped tables of the catalog left in its database are found too.
        """
        named = (folders,) if isinstance(folders, str) else tuple(folders)
        search = OrphanSearch(older_than, dry_run, allow_recent, named)
        catalog, state = self._lake.catalog, self._state()
        with show_step("searching for orphans"):
            result = remove_orphans(catalog, lambda: self.iceberg, state, search)
        dropped = remove_dropped_tables(self._lake.tier, state, dry_run=dry_run)
        return replace(result, inline_tables=dropped)

    def rewrite_manifests(self) -> RewriteManifestsResult:
        """List the same files in fewer manifests, files of one partition together."""
        with show_step("rewriting manifests"):
            return rewrite_manifests(self._lake.catalog, self._state())

    # Internal

    def _write(self, kind: WriteKind, rows: object, key: str | None) -> DmlResult:
        fit = fit_rows if kind is WriteKind.OVERWRITE_PARTITIONS else fit_new_rows
        fitted = fit(rows, self._state(), self._lake.spark)
        options = Options(idempotency_key=key)
        return run(WriteStatement(kind, fitted, options), self._context())

    def _metadata_table(self, name: str) -> DataFrame:
        return metadata_table(name, self.iceberg, self._lake.spark)

    def _state(self, branch: str = MAIN) -> TableState:
        return state_of(self.iceberg, self._name, branch)

    def _context(self) -> Context:
        return self._lake.context(self._state)


def _facts_html(facts: Mapping[str, Any]) -> str:
    names = ("name", "type", "required", "comment")
    rows = [[one[name] or "" for name in names] for one in facts["columns"]]
    snapshot = facts["snapshot"]
    figures = {
        "partitioned by": ", ".join(facts["partition_by"]) or "nothing",
        "rows in files": "unknown" if facts["rows"] is None else facts["rows"],
        "data files": facts["data_files"],
        "delete files": facts["delete_files"],
        "bytes": facts["bytes"],
        "snapshot": str(snapshot["id"]) if snapshot else "none yet",
        "snapshots": facts["snapshots"],
        "location": facts["location"],
        "format": f"Iceberg v{facts['format_version']}",
    }
    columns = table_html(HtmlRows(names, rows), facts["table"])
    return columns + figures_html("", {k: v for k, v in figures.items() if v is not None})
