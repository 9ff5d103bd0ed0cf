"""An upsert of few rows that the driver holds, by an index of their key: Spark joins nothing.

Every source row is written, as an update or as an insert, and sidecars have the positions of the
rows that updates replace. The driver looks these up and writes the rows; no data file is read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg.types import PrimitiveType
from pyroaring import BitMap64

from icefloe.commands.context import Context, Outcome, row_report
from icefloe.commands.input_rows import as_schema
from icefloe.commands.merge.held_source import intervals
from icefloe.commands.merge.keys import match_name
from icefloe.commands.merge.source import SourceKey, range_expression
from icefloe.commands.plan import Plan, plan_rows
from icefloe.commands.row_changes import file_changes
from icefloe.commit.conflicts import ConflictCheck, MatchedRows
from icefloe.deletes.row_positions import as_array, as_bitmap
from icefloe.errors import CardinalityError
from icefloe.indexes.definitions import IndexDefinition, answering, codes_are_exact, to_write
from icefloe.indexes.sidecars import place_of
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import Candidate, FilePlan, choose_files
from icefloe.pruning.comparisons import FilePredicate
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.pruning.source_matcher import KeyValues, SourceMatcher
from icefloe.results import RowCounts
from icefloe.scan.scan import Scan
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import UpdateKind, UpdateMode
from icefloe.statements import Duplicates, MergeStatement, Then, When
from icefloe.storage.filesystem import is_local_disk
from icefloe.tasks.btree import BATCH_ROWS, CodeTable
from icefloe.tasks.index_codes import EXACT, Coder, Codes, code_class, encode
from icefloe.tasks.messages import Positions
from icefloe.tasks.sidecars import DamagedSidecarError, combined
from icefloe.writing.local_rows import (
    has_local_layout,
    has_types,
    in_schema_order,
    write_local_rows,
)
from icefloe.writing.rewrite import RewriteResult, row_count_mismatch

log = logging.getLogger("icefloe")

_MOST_FILES = 256
_THREADS = 16
_BATCH_BYTES = 12 * BATCH_ROWS  # of a sidecar that the look-up of one key reads
# Of sidecars that the driver reads: on a disk of this machine, and elsewhere.
_MOST_LOCAL_BYTES, _MOST_REMOTE_BYTES = 2**30, 32 * 2**20
_SHOWN_KEYS = 5


@dataclass(frozen=True, slots=True)
class LocalUpsert:
    """The rows to write, and the rows of the table that they replace."""

    rows: pa.Table  # with the table's columns
    replacing: Positions  # indexes of rows, one for each row of the table that is replaced
    inserted: Positions  # indexes of rows that replace none
    hits: Mapping[str, BitMap64]  # the replaced rows, by data file location
    scan: Scan
    files: FilePlan
    plan: Plan
    check: ConflictCheck

    @property
    def cut(self) -> None:
        """No inline rows: the table has no such tier."""

    def work(self, statement: MergeStatement, statement_id: str) -> Outcome:
        """Write the rows."""
        written_rows = self.rows.take(np.sort(np.concatenate([self.replacing, self.inserted])))
        written, _ = write_local_rows(self.scan.state, written_rows, statement_id)
        if written.rows != written_rows.num_rows:
            raise row_count_mismatch(written.rows, written_rows.num_rows)
        hits = self.hits
        changes = file_changes(self.scan, self.files, RewriteResult(), hits, hits, written.files)
        counts = RowCounts(rows_updated=len(self.replacing), rows_inserted=len(self.inserted))
        by_kind = {When.MATCHED: counts.rows_updated, When.NOT_MATCHED: counts.rows_inserted}
        clauses = tuple(by_kind[clause.when] for clause in statement.clauses)
        report = row_report(self.plan, changes, counts)
        return Outcome(replace(report, files_scanned=0, clauses=clauses), changes, self.check)


def plan_locally(
    statement: MergeStatement, rows: pa.Table, state: TableState, context: Context
) -> LocalUpsert | None:
    """Plan an upsert without Spark; None where only Spark can run it, or says what is wrong."""
    upsert = _upsert_of(statement, rows, state)
    if upsert is None:
        return None
    definition, key = upsert
    keys = _Keys.of(rows.column(key.source))
    if not len(keys.codes):
        return None
    matcher = _matcher(key, rows, state)
    files = choose_files(state, matcher)
    candidates = files.candidates
    if not _may_be_read(state, definition, candidates, len(keys.codes)):
        return None
    scan = Scan.of(context.spark, state, candidates)
    matches = _look_up(scan, definition, keys.codes)
    if matches is None:
        return None
    hits = {path: as_bitmap(positions) for path, (_, positions) in matches.items()}
    numbers = np.concatenate([np.empty(0, np.int64), *(found for found, _ in matches.values())])
    _refuse_double_matches(keys, numbers, rows.column(key.source))
    is_inserted = np.ones(rows.num_rows, bool)
    is_inserted[keys.first[numbers]] = False
    plan = _plan(statement, rows, state, files, definition)

    def matches_any_at(positions: Mapping[str, BitMap64]) -> bool:
        return any(hits.get(path, BitMap64()) & rows for path, rows in positions.items())

    matched = MatchedRows({c.path: c.live for c in candidates}, matches_any_at)
    return LocalUpsert(
        as_schema(in_schema_order(rows, state.schema), state.schema),
        keys.first[numbers],
        np.flatnonzero(is_inserted),
        {path: rows for path, rows in hits.items() if rows},
        scan,
        files,
        plan,
        ConflictCheck(plan.isolation, matcher, matched=matched),
    )


# -------------------------------------------------------------------------------------------------
# Which statements


def _upsert_of(
    statement: MergeStatement, rows: pa.Table, state: TableState
) -> tuple[IndexDefinition, SourceKey] | None:
    """The index and the key of a plain upsert of rows in the table's types."""
    options = statement.options
    mode = options.mode or state.settings.mode(UpdateKind.MERGE)
    is_plain = (
        mode is UpdateMode.MERGE_ON_READ
        and options.duplicates is Duplicates.ERROR
        and options.enable_dpp
        and not (state.has_inline_tier or statement.evolves_schema)
        and _is_upsert(statement)
    )
    if not is_plain or not isinstance(statement.on, tuple) or len(statement.on) != 1:
        return None
    if not (has_types(rows, state.schema) and has_local_layout(state, rows)):
        return None
    return _indexed_key(statement.on[0], rows, state)


def _is_upsert(statement: MergeStatement) -> bool:
    """Whether rows are updated and inserted whole, without a condition."""
    kinds = [(clause.when, clause.then) for clause in statement.clauses]
    whole = all(c.condition is None and c.assignments is None for c in statement.clauses)
    return whole and sorted(kinds) == sorted(
        [(When.MATCHED, Then.UPDATE), (When.NOT_MATCHED, Then.INSERT)]
    )


def _indexed_key(
    name: str, rows: pa.Table, state: TableState
) -> tuple[IndexDefinition, SourceKey] | None:
    target = match_name(name, spark_schema(state.schema))
    sources = [column for column in rows.column_names if column.lower() == name.lower()]
    if target is None or len(sources) != 1:
        return None
    field = next(field for field in state.schema.fields if field.name == target)
    if not isinstance(field.field_type, PrimitiveType) or pa.types.is_floating(
        rows.schema.field(sources[0]).type
    ):
        return None
    for definition in answering(state):
        of_key = definition.field_ids == (field.field_id,)
        if of_key and codes_are_exact(definition, state.schema):
            return definition, SourceKey(target, sources[0], field.field_id, field.field_type)
    return None


def _may_be_read(
    state: TableState, definition: IndexDefinition, files: Sequence[Candidate], keys: int
) -> bool:
    """Whether the driver may read so many sidecars; equality deletes need the files' values."""
    if len(files) > _MOST_FILES or any(c.equality_deletes for c in files):
        return False
    batches = sum(min(keys, c.live.rows // BATCH_ROWS + 1) for c in files)
    [index] = to_write(state, [definition])
    is_local = is_local_disk(index.filesystem)
    return batches * _BATCH_BYTES <= (_MOST_LOCAL_BYTES if is_local else _MOST_REMOTE_BYTES)


def _matcher(key: SourceKey, rows: pa.Table, state: TableState) -> SourceMatcher:
    """Match files by the ranges of the keys."""
    ranges = KeyValues(key.field_id, key.type, intervals(combined(rows.column(key.source))))
    required = FilePredicate(range_expression([key], [ranges]), None)
    matcher = FileMatcher(required, state.schema, state.metadata.specs())
    return SourceMatcher(matcher, {}, (ranges,))


def _plan(
    statement: MergeStatement,
    rows: pa.Table,
    state: TableState,
    files: FilePlan,
    definition: IndexDefinition,
) -> Plan:
    names = [field.name for field in state.schema.fields]
    plan = plan_rows(UpdateKind.MERGE, statement.options, state, files, names)
    [on] = statement.on if isinstance(statement.on, tuple) else [""]
    reason = (
        f"index {definition.name}: the driver looks the source's keys up and writes its rows; no "
        "data file is read"
    )
    return replace(
        plan,
        where=f"{on} = {on}",
        reasons=(*plan.reasons, reason),
        join="index",
        clauses=tuple(map(str, statement.clauses)),
        source_rows=rows.num_rows,
        estimated_bytes_read=0,
    )


# -------------------------------------------------------------------------------------------------
# Look-ups


@dataclass(frozen=True, slots=True)
class _Keys:
    """The codes of the source's keys, sorted, each once; rows with NULL have none."""

    codes: Codes
    first: Positions  # the first row with each code
    counts: Positions  # how many rows have it

    @staticmethod
    def of(column: pa.ChunkedArray) -> _Keys:
        keys = combined(column)
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        codes, first, counts = np.unique(
            encode([keys.filter(pa.array(valid))], Coder(EXACT)),
            return_index=True,
            return_counts=True,
        )
        return _Keys(codes, np.flatnonzero(valid)[first], counts)


_Matches = tuple[Positions, Positions]  # indexes of codes, and positions of rows


def _look_up(scan: Scan, definition: IndexDefinition, codes: Codes) -> dict[str, _Matches] | None:
    """The live rows with one of the codes, by file; None where a sidecar does not say."""

    def of_file(candidate: Candidate) -> _Matches:
        return _matches_of(scan, definition, codes, candidate)

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(of_file, scan.candidates))
    except FileNotFoundError:
        return None
    except DamagedSidecarError as damaged:
        log.warning("A sidecar is not used: %s", damaged)
        return None
    return {c.path: matches for c, matches in zip(scan.candidates, found, strict=True)}


def _matches_of(
    scan: Scan, definition: IndexDefinition, codes: Codes, candidate: Candidate
) -> _Matches:
    fields = definition.fields(scan.state.schema) or []
    with place_of(scan.state, definition, candidate.live).open() as sidecar:
        table = CodeTable.of(sidecar)
        classes = [code_class(str(field.field_type)) for field in fields]
        if table.coder.kind != EXACT or [code_class(kind) for kind in table.types] != classes:
            raise DamagedSidecarError(f"{sidecar.path} has codes of other types")
        numbers, positions = table.matches(codes)
        if len(positions) and int(positions.max()) >= candidate.live.rows:
            raise DamagedSidecarError(f"{sidecar.path} has rows past the end of the data file")
    deleted = scan.deleted.get(candidate.path)
    if deleted:
        live = ~np.isin(positions, as_array(deleted))
        numbers, positions = numbers[live], positions[live]
    return numbers, positions


def _refuse_double_matches(keys: _Keys, numbers: Positions, column: pa.ChunkedArray) -> None:
    """Raise where several source rows match a row of the table."""
    double = np.unique(numbers[keys.counts[numbers] > 1])[:_SHOWN_KEYS]
    if len(double):
        raise CardinalityError(column.take(pa.array(keys.first[double])).to_pylist())
