"""What the page shows of a lake, from metadata alone: no Spark session is started here.

Facts of a table are computed once for each version of its metadata.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, TypeAlias

from pyiceberg.table import Table as IcebergTable

from icefloe.errors import IcefloeError
from icefloe.inspection.column_bounds import column_overlap, columns_overview, files_opened
from icefloe.inspection.facts import table_counts, table_facts
from icefloe.inspection.file_health import FileFacts, file_facts, file_map, files_of
from icefloe.inspection.timeline import partition_specs, schema_versions, timeline
from icefloe.inspection.upkeep import (
    compaction,
    expired_files,
    expiry,
    index_coverage,
    inline_rows,
)
from icefloe.lake import Lake
from icefloe.metadata.files import SnapshotFiles
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import TableState, state_of
from icefloe.version import __version__

Json: TypeAlias = dict[str, Any]
_FRESH_S = 1.0  # so long a table's metadata is not read again: one view asks several times
_MOST_TABLES = 4  # whose facts are held
_THREADS = 8


class TableView:
    """One version of a table, with facts that are computed when they are first asked for."""

    def __init__(self, name: str, table: IcebergTable) -> None:
        self.name = name
        self.table = table
        self._lock = Lock()

    @cached_property
    def state(self) -> TableState:
        """The state of the table; raises UnsupportedTableError."""
        return state_of(self.table, self.name)

    @property
    def files(self) -> SnapshotFiles:
        """The live files, whose manifests are read once."""
        with self._lock:
            return self._files

    @cached_property
    def _files(self) -> SnapshotFiles:
        return read_snapshot_files(self.state.io, self.state.snapshot)

    @property
    def facts(self) -> Sequence[FileFacts]:
        """The live data files with their deletes."""
        with self._lock:
            return self._facts

    @cached_property
    def _facts(self) -> Sequence[FileFacts]:
        return file_facts(self.state, self._files)

    @cached_property
    def timeline(self) -> Json:
        """The snapshots."""
        return timeline(self.state)

    @cached_property
    def file_map(self) -> Json:
        """Partitions by bytes, with a histogram of file sizes."""
        return file_map(self.state, self.files, self.facts)

    @cached_property
    def columns(self) -> list[Json]:
        """The columns with their sizes and how well their bounds tell files apart."""
        return columns_overview(self.state, self.files)


class LakeViews:
    """The views of a lake's tables."""

    def __init__(self, lake: Lake, place: str, command: Sequence[str] = ("icefloe",)) -> None:
        self._lake = lake
        self._place = place
        self._command = command
        self._lock = Lock()
        self._views: dict[str, tuple[float, TableView]] = {}

    def lake(self) -> Json:
        """The names of the tables."""
        return {"place": self._place, "version": __version__, "tables": self._lake.tables()}

    def tables(self) -> Json:
        """Every table with the counts of its current snapshot, or why it cannot be read."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return {"tables": list(pool.map(self._counts, self._lake.tables()))}

    def _counts(self, name: str) -> Json:
        try:
            return table_counts(name, self._lake.load(name))
        except IcefloeError as error:
            return {"table": name, "error": str(error)}

    def view(self, name: str) -> TableView:
        """The table as it is now; facts of the same metadata are computed once."""
        now = time.monotonic()
        with self._lock:
            at, held = self._views.get(name, (0.0, None))
            if held is not None and now - at < _FRESH_S:
                return held
            table = self._lake.load(name)
            if held is None or held.table.metadata_location != table.metadata_location:
                held = TableView(name, table)
            self._views.pop(name, None)
            self._views[name] = (now, held)
            while len(self._views) > _MOST_TABLES:
                self._views.pop(next(iter(self._views)))
            return held

    def summary(self, name: str) -> Json:
        """A table's columns, layout, counts, properties, branches and tags."""
        view = self.view(name)
        facts = table_facts(name, view.table)
        refs = [
            {"name": ref, "kind": of.snapshot_ref_type.value, "snapshot": str(of.snapshot_id)}
            for ref, of in sorted(view.table.metadata.refs.items())
        ]
        snapshot = facts["snapshot"]
        if snapshot is not None:
            snapshot = {**snapshot, "id": str(snapshot["id"]), "made_at": _ms(snapshot["made_at"])}
        problem = _problem(view)
        inline = None if problem else _or_problem(lambda: inline_rows(self._lake.tier, view.state))
        return {
            **facts,
            "snapshot": snapshot,
            "refs": refs,
            "specs": partition_specs(view.table.metadata),
            "inline": inline,
            "problem": problem,
        }

    def timeline(self, name: str) -> Json:
        """The snapshots of a table."""
        return self.view(name).timeline

    def files(self, name: str, partition: str | None) -> Json:
        """The partitions of a table by bytes, or the files of one of them."""
        view = self.view(name)
        if partition is None:
            return view.file_map
        return files_of(view.state, view.facts, partition)

    def columns(self, name: str) -> Json:
        """The columns, and how the schema changed."""
        view = self.view(name)
        return {"columns": view.columns, "versions": schema_versions(view.state)}

    def overlap(self, name: str, column: str) -> Json:
        """The bounds of one column."""
        view = self.view(name)
        return column_overlap(view.state, view.files, column)

    def opened(self, name: str, where: str) -> Json:
        """The files that a condition would open."""
        view = self.view(name)
        return files_opened(view.state, view.files, where)

    def upkeep(self, name: str) -> Json:
        """What maintenance would do and save, inline rows, and indexes with their coverage."""
        view = self.view(name)
        return {
            "compact": compaction(view.state, view.files, view.facts),
            "expire": expiry(view.state),
            "flush": _or_problem(lambda: inline_rows(self._lake.tier, view.state)),
            "indexes": index_coverage(view.state, view.files),
            "commands": {verb: self._shell(verb, name) for verb in ("compact", "expire", "flush")},
        }

    def _shell(self, verb: str, name: str) -> str:
        """A command of maintenance for a shell, where a name is one word, whatever it has."""
        return shlex.join([*self._command, verb, name])

    def expired(self, name: str) -> Json:
        """The files that expiry would delete."""
        return expired_files(self.view(name).state)


def _problem(view: TableView) -> str | None:
    try:
        _ = view.state
    except IcefloeError as error:
        return str(error)
    return None


def _or_problem(read: Callable[[], Json | None]) -> Json | None:
    try:
        return read()
    except IcefloeError as error:
        return {"problem": str(error)}


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
