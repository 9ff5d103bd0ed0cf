"""An upsert of few rows that the driver holds, into rows that it can find: Spark joins nothing.

Every source row is written, as an update or as an insert. The driver looks up the positions of the
rows that updates replace, in sidecars of an index, or in the key column of few small files, and
writes the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.types import PrimitiveType
from pyroaring import BitMap64

from icefloe.commands.context import Context, Outcome, row_report
from icefloe.commands.input_rows import as_schema
from icefloe.commands.merge.files import MergeFiles
from icefloe.commands.merge.held_source import intervals
from icefloe.commands.merge.keys import MergeSides, match_name, only_key
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
from icefloe.scan.arrow_rows import ArrowRead, are_few_and_plain, find_arrow_rows
from icefloe.scan.scan import Scan
from icefloe.schema.arrow_values import arrow_schema
from icefloe.schema.to_spark import spark_schema
from icefloe.settings import UpdateKind, UpdateMode
from icefloe.statements import Duplicates, MergeStatement, Then, When
from icefloe.storage.filesystem import is_local_disk
from icefloe.tasks.btree import BATCH_ROWS, CodeTable
from icefloe.tasks.index_codes import EXACT, Coder, Codes, encode
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

# Of a source that Spark keeps: the driver reads it only if it can use it, so more bytes pay.
_MOST_KEPT_ROWS, _MOST_KEPT_BYTES = 50_000, 64 * 2**20
_MOST_FILES = 256
_THREADS = 16
_BATCH_BYTES = 12 * BATCH_ROWS  # of a sidecar that the look-up of one key reads
# Of sidecars that the driver reads: on a disk of this machine, and elsewhere.
_MOST_LOCAL_BYTES, _MOST_REMOTE_BYTES = 2**30, 32 * 2**20
_SHOWN_KEYS = 5
# Equal in Spark where they are equal in Arrow: numbers with two zeros or NaN are not.
_KEY_TYPES = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


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
    reads_files: bool

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
        report = replace(row_report(self.plan, changes, counts), clauses=clauses)
        report = report if self.reads_files else replace(report, files_scanned=0)
        return Outcome(report, changes, self.check)


def plan_locally(
    statement: MergeStatement, rows: pa.Table, state: TableState, context: Context
) -> LocalUpsert | None:
    """Plan an upsert without Spark; None where only Spark can run it, or says what is wrong."""
    key = _upsert_key(statement, rows, state)
    if key is None:
        return None
    keys = _Keys.of(rows.column(key.source))
    if not len(keys.first):
        return None
    matcher = _matcher(key, rows, state)
    files = choose_files(state, matcher)
    candidates = files.candidates
    find = _finder(state, key, candidates, keys)
    if find is None:
        return None
    scan = Scan.of(context.spark, state, candidates)
    matches = find.matches(scan, keys)
    if matches is None:
        return None
    hits = {path: as_bitmap(positions) for path, (_, positions) in matches.items()}
    numbers = np.concatenate([np.empty(0, np.int64), *(found for found, _ in matches.values())])
    _refuse_double_matches(keys, numbers, rows.column(key.source))
    is_inserted = np.ones(rows.num_rows, bool)
    is_inserted[keys.first[numbers]] = False
    plan = _plan(statement, rows, state, files)
    plan = replace(plan, join=find.join, reasons=(*plan.reasons, find.reason))
    if not find.reads_files:
        plan = replace(plan, estimated_bytes_read=0)

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
        find.reads_files,
    )


def may_be_local(statement: MergeStatement, state: TableState, files: MergeFiles) -> bool:
    """Whether `plan_locally` may accept a source that Spark keeps, and few small files."""
    is_small = files.facts.rows <= _MOST_KEPT_ROWS and files.facts.bytes <= _MOST_KEPT_BYTES
    is_upsert = _is_plain(statement, state) and _matched_column(statement, state) is not None
    return is_small and is_upsert and may_be_read(files.plan.candidates)


# -------------------------------------------------------------------------------------------------
# Which statements


def _upsert_key(statement: MergeStatement, rows: pa.Table, state: TableState) -> SourceKey | None:
    """The key of a plain upsert of rows in the table's types."""
    if not _is_plain(statement, state):
        return None
    if not (has_types(rows, state.schema) and has_local_layout(state, rows)):
        return None
    name = _matched_column(statement, state)
    return None if name is None else _key_of(name, rows, state)


def _is_plain(statement: MergeStatement, state: TableState) -> bool:
    """Whether whole rows are updated and inserted, in merge-on-read, with default options."""
    options = statement.options
    mode = options.mode or state.settings.mode(UpdateKind.MERGE)
    return (
        mode is UpdateMode.MERGE_ON_READ
        and options.duplicates is Duplicates.ERROR
        and options.enable_dpp
        and not (state.has_inline_tier or statement.evolves_schema)
        and not statement.source_reads_target
        and _is_upsert(statement)
    )


def _matched_column(statement: MergeStatement, state: TableState) -> str | None:
    """The one column that is compared with that of the same name, and all of the condition."""
    if isinstance(statement.on, tuple):
        return statement.on[0] if len(statement.on) == 1 else None
    aliases = statement.target_alias, statement.source_alias
    if not isinstance(statement.on, str) or len({alias.lower() for alias in aliases}) == 1:
        return None
    sides = MergeSides(*aliases, spark_schema(state.schema), statement.source.schema)
    key = only_key(statement.on, sides)
    same = key is not None and key.target.lower() == key.source.lower()
    return key.target if key is not None and same else None


def _is_upsert(statement: MergeStatement) -> bool:
    """Whether rows are updated and inserted whole, without a condition."""
    kinds = [(clause.when, clause.then) for clause in statement.clauses]
    whole = all(c.condition is None and c.assignments is None for c in statement.clauses)
    return whole and sorted(kinds) == sorted(
        [(When.MATCHED, Then.UPDATE), (When.NOT_MATCHED, Then.INSERT)]
    )


def _key_of(name: str, rows: pa.Table, state: TableState) -> SourceKey | None:
    target = match_name(name, spark_schema(state.schema))
    sources = [column for column in rows.column_names if column.lower() == name.lower()]
    if target is None or len(sources) != 1:
        return None
    field = next(field for field in state.schema.fields if field.name == target)
    if not isinstance(field.field_type, PrimitiveType):
        return None
    kind = rows.schema.field(sources[0]).type
    if not any(is_kind(kind) for is_kind in _KEY_TYPES):
        return None
    return SourceKey(target, sources[0], field.field_id, field.field_type)


def _matcher(key: SourceKey, rows: pa.Table, state: TableState) -> SourceMatcher:
    """Match files by the ranges of the keys."""
    ranges = KeyValues(key.field_id, key.type, intervals(combined(rows.column(key.source))))
    required = FilePredicate(range_expression([key], [ranges]), None)
    matcher = FileMatcher(required, state.schema, state.metadata.specs())
    return SourceMatcher(matcher, {}, (ranges,))


def _plan(statement: MergeStatement, rows: pa.Table, state: TableState, files: FilePlan) -> Plan:
    names = [field.name for field in state.schema.fields]
    plan = plan_rows(UpdateKind.MERGE, statement.options, state, files, names)
    on = f"{statement.on[0]} = {statement.on[0]}" if isinstance(statement.on, tuple) else None
    return replace(
        plan,
        where=on or str(statement.on),
        clauses=tuple(map(str, statement.clauses)),
        source_rows=rows.num_rows,
    )


# -------------------------------------------------------------------------------------------------
# Finding the rows


@dataclass(frozen=True, slots=True)
class _Keys:
    """The distinct keys of the source; rows with NULL have none."""

    distinct: pa.Array
    first: Positions  # the first row with each key
    counts: Positions  # how many rows have it

    @staticmethod
    def of(column: pa.ChunkedArray) -> _Keys:
        keys = combined(column)
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        encoded = keys.filter(pa.array(valid)).dictionary_encode()
        indices = encoded.indices.to_numpy()
        _, first, counts = np.unique(indices, return_index=True, return_counts=True)
        return _Keys(encoded.dictionary, np.flatnonzero(valid)[first], counts)


_Matches = tuple[Positions, Positions]  # indexes of keys, and positions of rows


class _Finder(Protocol):
    """Finds the live rows of files that have one of the keys."""

    @property
    def join(self) -> str:
        """The join, as the plan calls it."""
        ...

    @property
    def reason(self) -> str:
        """How the rows are found, for people."""
        ...

    @property
    def reads_files(self) -> bool:
        """Whether data files are read."""
        ...

    def matches(self, scan: Scan, keys: _Keys) -> dict[str, _Matches] | None:
        """The rows by file; None where only Spark can find them."""
        ...


def _finder(
    state: TableState, key: SourceKey, files: Sequence[Candidate], keys: _Keys
) -> _Finder | None:
    """An index of the key, or the files themselves where they are few and small."""
    for definition in answering(state):
        of_key = definition.field_ids == (key.field_id,)
        if of_key and codes_are_exact(definition, state.schema):
            by_index = _ByIndex(definition)
            if by_index.may_be_read(state, files, len(keys.first)):
                return by_index
    return _ByReading(key) if may_be_read(files) else None


def may_be_read(files: Sequence[Candidate]) -> bool:
    """Whether the driver may read the key column of these files."""
    return are_few_and_plain(files)


@dataclass(frozen=True, slots=True)
class _ByReading:
    """Reads the key column of few small files; only rows with one of the keys are kept."""

    key: SourceKey
    join = "driver"
    reason = "the files are few and small: the driver finds the source's keys and writes its rows"
    reads_files = True

    def matches(self, scan: Scan, keys: _Keys) -> dict[str, _Matches] | None:
        name = self.key.name
        values = keys.distinct.cast(arrow_schema(scan.state.schema).field(name).type)
        read = ArrowRead(scan.state, AlwaysTrue(), [name], among=(name, values))
        found = find_arrow_rows(read, scan.candidates)
        if found is None:
            return None
        return {
            rows.file.path: (
                combined(pc.index_in(rows.rows.column(name), values)).to_numpy().astype(np.int64),
                as_array(rows.positions),
            )
            for rows in found
        }


@dataclass(frozen=True, slots=True)
class _ByIndex:
    """Looks up the codes of the keys in sidecars."""

    definition: IndexDefinition
    join = "index"
    reads_files = False

    @property
    def reason(self) -> str:
        return (
            f"index {self.definition.name}: the driver looks the source's keys up and writes its "
            "rows; no data file is read"
        )

    def may_be_read(self, state: TableState, files: Sequence[Candidate], keys: int) -> bool:
        """Whether the driver may read so many sidecars; equality deletes need the files' values."""
        if len(files) > _MOST_FILES or any(c.equality_deletes for c in files):
            return False
        batches = sum(min(keys, c.live.rows // BATCH_ROWS + 1) for c in files)
        [index] = to_write(state, [self.definition])
        is_local = is_local_disk(index.filesystem)
        return batches * _BATCH_BYTES <= (_MOST_LOCAL_BYTES if is_local else _MOST_REMOTE_BYTES)

    def matches(self, scan: Scan, keys: _Keys) -> dict[str, _Matches] | None:
        codes = encode([keys.distinct], Coder(EXACT))
        order = np.argsort(codes)

        def of_file(candidate: Candidate) -> _Matches:
            numbers, positions = self._in_file(scan, codes[order], candidate)
            return order[numbers], positions

        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                found = list(pool.map(of_file, scan.candidates))
        except FileNotFoundError:
            return None
        except DamagedSidecarError as damaged:
            log.warning("A sidecar is not used: %s", damaged)
            return None
        return {c.path: matches for c, matches in zip(scan.candidates, found, strict=True)}

    def _in_file(self, scan: Scan, codes: Codes, candidate: Candidate) -> _Matches:
        fields = self.definition.fields(scan.state.schema) or []
        with place_of(scan.state, self.definition, candidate.live).open() as sidecar:
            table = CodeTable.of(sidecar, [str(field.field_type) for field in fields])
            if table.coder.kind != EXACT:
                raise DamagedSidecarError(f"{sidecar.path} has codes that stand for several values")
            numbers, positions = table.matches(codes)
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
