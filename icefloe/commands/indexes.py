"""Create, drop and list the indexes of a table."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertTableUUID,
    SetPropertiesUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.types import NestedField
from pyspark.sql import DataFrame

from icefloe.commands.context import Context
from icefloe.commands.evolve import changing_table
from icefloe.commit.catalog import commit_with_retries, load_table
from icefloe.commit.handover import LostRaceError
from icefloe.errors import (
    ColumnNotFoundError,
    ConflictError,
    IndexNotFoundError,
    StatementError,
    StorageError,
)
from icefloe.indexes.definitions import (
    IndexDefinition,
    definitions_of,
    folder_of,
    is_name,
    to_write,
)
from icefloe.indexes.kinds import KINDS
from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import MAIN, TableState, delete_old_metadata
from icefloe.results import IndexResult
from icefloe.spark.errors import detect_jvm_exit, translate_spark_errors
from icefloe.spark.frames import frame_of, numbers
from icefloe.storage.files import delete_listed, list_files, locate
from icefloe.tasks.index_files import CoveragePlan, cover_files
from icefloe.tasks.sidecars import IndexedFile

log = logging.getLogger("icefloe")

_COVERAGE = "file BIGINT, bytes BIGINT, problem STRING"
_LISTED = pa.schema(
    [
        ("name", pa.string()),
        ("kind", pa.string()),
        ("columns", pa.list_(pa.string())),
        ("params", pa.string()),
        ("files", pa.int64()),
        ("files_covered", pa.int64()),
        ("rows_covered", pa.int64()),
        ("bytes", pa.int64()),
        ("problem", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class NewIndex:
    """An index as a user asks for it."""

    name: str
    kind: str
    columns: Sequence[str]
    params: Mapping[str, object]


def create_index(context: Context, table: IcebergTable, new: NewIndex) -> IndexResult:
    """Define an index and build the sidecars of the files that lack one.

    The definition is committed first, so that concurrent writers keep the index up; what a crash
    leaves to do, a second call does.
    """
    started = time.monotonic()
    state = context.read_state(MAIN)
    wanted = _definition(new, state)
    if _find(state, wanted.name) is None:
        state = _define(context, table, wanted, state)
    while True:
        existing = _defined(wanted, state)
        coverage = _coverage(context, state, existing, builds=True)
        state = context.read_state(MAIN)
        if _defined(wanted, state).index_id == existing.index_id:
            break  # otherwise it was dropped and created again, and has no sidecars
    for location, reason in coverage.problems.items():
        log.warning("Index %s does not cover %s: %s", existing.name, location, reason)
    return IndexResult(
        existing.name,
        existing.kind,
        coverage.files,
        coverage.files_covered,
        coverage.problems,
        coverage.rows,
        coverage.bytes,
        time.monotonic() - started,
    )


def _define(
    context: Context, table: IcebergTable, wanted: IndexDefinition, state: TableState
) -> TableState:
    """Commit a definition, unless the table has an index of that name by then."""

    def attempt(_number: int) -> None:
        uuid = table.metadata.table_uuid
        current = load_table(context.catalog, state.name, uuid)
        requirements: list[Any] = [AssertTableUUID(uuid=uuid)]
        if isinstance(context.catalog, MetastoreCatalog):  # servers refuse what they do not know
            requirements.append(_AssertNoIndex(name=wanted.name))
        stored = SetPropertiesUpdate(updates={wanted.property_name: wanted.as_json()})
        try:
            with changing_table(current):
                done = context.catalog.commit_table(current, tuple(requirements), (stored,))
                delete_old_metadata(state.io, current.metadata, done.metadata)
        except ConflictError as lost:
            if _find(context.read_state(MAIN), wanted.name) is None:
                raise LostRaceError(str(lost)) from lost

    commit_with_retries(state, attempt)
    return context.read_state(MAIN)


def drop_index(context: Context, table: IcebergTable, name: str) -> None:
    """Remove the definition of an index, then its sidecars."""
    state = context.read_state(MAIN)
    definition = index_named(state, name)
    with changing_table(table), table.transaction() as transaction:
        transaction.remove_properties(definition.property_name)
    try:
        left = delete_listed(list_files(state.io, folder_of(state, definition)))
    except StorageError as error:
        log.warning("Sidecars of index %s are left, for remove_orphans: %s", name, error)
    else:
        if left:
            log.warning("%d sidecars of index %s are left, for remove_orphans", len(left), name)


def list_indexes(context: Context, state: TableState) -> DataFrame:
    """The indexes of a table, with how much of it each of them covers."""
    rows = []
    for definition in definitions_of(state.metadata):
        problem = definition.problem(state.schema)
        coverage = _Coverage()
        if problem is None:
            coverage = _coverage(context, state, definition, builds=False)
        fields = definition.fields(state.schema) or []
        rows.append(
            {
                "name": definition.name,
                "kind": definition.kind,
                "columns": [column.name for column in fields],
                "params": json.dumps(dict(definition.params)),
                "files": coverage.files,
                "files_covered": coverage.files_covered,
                "rows_covered": coverage.rows,
                "bytes": coverage.bytes,
                "problem": problem,
            }
        )
    return frame_of(context.spark, pa.Table.from_pylist(rows, schema=_LISTED))


def index_named(state: TableState, name: str) -> IndexDefinition:
    """The index of that name; raises IndexNotFoundError."""
    definition = _find(state, name)
    if definition is None:
        available = [each.name for each in definitions_of(state.metadata)]
        raise IndexNotFoundError(state.name, name, available)
    return definition


# -------------------------------------------------------------------------------------------------
# Definitions


def _find(state: TableState, name: str) -> IndexDefinition | None:
    """The index of that name; names are not case-sensitive."""
    return _named(state.metadata, name)


def _named(metadata: TableMetadata, name: str) -> IndexDefinition | None:
    defined = definitions_of(metadata)
    return next((each for each in defined if each.name.lower() == str(name).lower()), None)


def _definition(new: NewIndex, state: TableState) -> IndexDefinition:
    """A new definition; raises StatementError where it does not fit the table."""
    if not isinstance(new.name, str) or not is_name(new.name):
        raise StatementError(
            f"{new.name!r} is not a valid name of an index: use letters, digits and underscores, "
            "at most 128, and no digit first."
        )
    kind = KINDS.get(new.kind) if isinstance(new.kind, str) else None
    if kind is None:
        raise StatementError(f"There is no index of kind {new.kind!r}. Use: {', '.join(KINDS)}.")
    columns = _columns(new, state)
    if reason := kind.refusal(columns):
        raise StatementError(f"Cannot create index {new.name!r}: {reason}.")
    return IndexDefinition(
        new.name,
        uuid.uuid4().hex[:12],
        new.kind,
        tuple(column.field_id for column in columns),
        kind.parameters(new.params),
        int(time.time() * 1000),
    )


def _columns(new: NewIndex, state: TableState) -> list[NestedField]:
    names = [new.columns] if isinstance(new.columns, str) else list(new.columns)
    if not names:
        raise StatementError(f"Index {new.name!r} has no column. Name at least one.")
    fields = [_column(str(name), state) for name in names]
    if len({column.field_id for column in fields}) < len(fields):
        raise StatementError(f"Index {new.name!r} has a column twice: {', '.join(names)}.")
    return fields


def _column(name: str, state: TableState) -> NestedField:
    fields = state.schema.fields
    exact = [column for column in fields if column.name == name]
    same = exact or [column for column in fields if column.name.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    top = name.partition(".")[0].lower()
    if any(column.name.lower() == top for column in fields):
        raise StatementError(f"{name!r} is part of a column: only whole columns are indexed.")
    raise ColumnNotFoundError(name, [column.name for column in fields])


class _AssertNoIndex(ValidatableTableRequirement):
    """The table must have no index of a name: two definitions would replace each other."""

    type: Literal["icefloe-assert-no-index"] = "icefloe-assert-no-index"
    name: str

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Compare with the metadata that the commit is based on."""
        if base_metadata is not None and _named(base_metadata, self.name) is not None:
            raise CommitFailedException(f"index {self.name!r} was created concurrently")


def _defined(wanted: IndexDefinition, state: TableState) -> IndexDefinition:
    """The index of that name, which has to be the wanted one; of any writer."""
    existing = _find(state, wanted.name)
    if existing is None:
        raise ConflictError(
            f"index {wanted.name!r} was dropped while it was created",
            table=state.name,
            base_snapshot_id=state.metadata.current_snapshot_id,
            current_snapshot_id=state.metadata.current_snapshot_id,
        )
    _refuse_other(existing, wanted, state)
    return existing


def _refuse_other(existing: IndexDefinition, wanted: IndexDefinition, state: TableState) -> None:
    """Refuse a name that another definition has."""
    same = replace(wanted, name=existing.name, index_id=existing.index_id, made=existing.made)
    if same != existing:
        columns = ", ".join(
            str(state.schema.find_column_name(i) or f"field {i}") for i in existing.field_ids
        )
        raise StatementError(
            f"{state.name} has another index {existing.name!r}: {existing.kind} on {columns}, with "
            f"parameters {dict(existing.params)}. Use another name, or drop it first."
        )


# -------------------------------------------------------------------------------------------------
# Coverage


@dataclass(frozen=True, slots=True)
class _Coverage:
    """Which data files an index covers."""

    files: int = 0
    files_covered: int = 0
    rows: int = 0
    bytes: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)  # by location of uncovered files


def _coverage(
    context: Context, state: TableState, definition: IndexDefinition, *, builds: bool
) -> _Coverage:
    """Look for the sidecars of the live files in tasks, which may build missing ones."""
    files = _files_of_branches(state)
    if not files:
        return _Coverage()
    spark = context.spark
    task = cover_files(_plan(state, definition, files, builds=builds))
    with detect_jvm_exit(), translate_spark_errors():
        found = numbers(spark, len(files)).mapInArrow(task, _COVERAGE).toArrow()
    covered = [row for row in found.to_pylist() if row["bytes"] is not None]
    problems = {
        files[row["file"]].path: row["problem"] for row in found.to_pylist() if row["bytes"] is None
    }
    return _Coverage(
        len(files),
        len(covered),
        sum(files[row["file"]].rows for row in covered),
        sum(row["bytes"] for row in covered),
        problems,
    )


def _plan(
    state: TableState, definition: IndexDefinition, files: Sequence[LiveFile], *, builds: bool
) -> CoveragePlan:
    [index] = to_write(state, [definition])
    index = replace(index, schema=schema_to_pyarrow(state.schema))
    indexed = []
    for live in files:
        place = locate(state.io, live.path)
        indexed.append(IndexedFile(place.filesystem, place.path, live.path, live.size, live.rows))
    return CoveragePlan(index, indexed, builds)


def _files_of_branches(state: TableState) -> list[LiveFile]:
    """The live data files of every branch, each once."""
    refs = state.metadata.refs.values()
    heads = {r.snapshot_id for r in refs if r.snapshot_ref_type == SnapshotRefType.BRANCH}
    snapshots = filter(None, map(state.metadata.snapshot_by_id, sorted(heads)))
    files = [f for s in snapshots for f in read_snapshot_files(state.io, s).data]
    return list({live.path: live for live in files}.values())
