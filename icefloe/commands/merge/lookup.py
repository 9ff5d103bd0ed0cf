"""Rows of the table that a MERGE may match, found by an index of the condition's keys.

Tasks look the source's keys up in the sidecars of the files and return the rows that may have one
of them. Where only the key is needed of these rows, no data file is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from icefloe.commands.bind import columns_named
from icefloe.commands.merge.bind import BoundMerge
from icefloe.commands.merge.files import MergeFiles
from icefloe.commands.merge.join import Join, JoinShape
from icefloe.commands.merge.source import SourceKey, comparable_keys
from icefloe.indexes.definitions import IndexDefinition, answering, codes_are_exact
from icefloe.indexes.sidecars import have_sidecars
from icefloe.pruning.candidates import Candidate
from icefloe.scan.fetch import KeyLookup
from icefloe.scan.scan import Scan
from icefloe.spark import columns
from icefloe.spark.column_trees import ColumnReader
from icefloe.spark.columns import quote
from icefloe.statements import Expression, MergeStatement, Then

_MOST_KEYS = 25  # where the source has more than one row in so many of the table's, it is read
_MOST_FETCHED = 50  # the same where more than the key is read of the rows that it finds
# Joins that need the rows of the table that match, and no others.
_OF_MATCHES = (JoinShape.PROBE, JoinShape.INNER, JoinShape.RIGHT, JoinShape.SOURCE_ANTI)


@dataclass(frozen=True, slots=True)
class MergeLookup:
    """How an index finds the rows of some files that a source row may match."""

    definition: IndexDefinition
    files: frozenset[str]  # their locations; other files are scanned
    keys: tuple[SourceKey, ...]  # of the index's columns
    named: frozenset[str]  # columns of the table that the statement's expressions may name
    bound: BoundMerge
    values: tuple[pa.Array, ...] = ()  # of the source, by key

    def rows(self, scan: Scan, names: Sequence[str]) -> DataFrame:
        """Rows that may match, with the columns that new values of `names` and the join need."""
        read = self.columns_read(names)
        found = [c for c in scan.candidates if c.path in self.files]
        others = [c for c in scan.candidates if c.path not in self.files]
        keys = KeyLookup(self.definition, self.values)
        parts = [scan.fetch(read).with_keys(found, keys)] if found else []
        if others or not found:
            rows = scan.restrict_to(others).rows()
            parts.append(rows.selectExpr(*map(quote, read), columns.FILE, columns.POS))
        return reduce(DataFrame.union, parts)

    def columns_read(self, names: Sequence[str]) -> list[str]:
        """The table's columns that are read for new values of `names`, keys first."""
        updates = [clause.values for clause in self.bound.clauses if clause.then is Then.UPDATE]
        kept = {name for name in names if any(name not in values for values in updates)}
        keys = [key.name for key in self.keys]
        others = self.named | kept
        return [*keys, *(n for n in self.bound.sides.present.names if n in others - set(keys))]

    def reads_no_data(self, scan: Scan) -> bool:
        """Whether sidecars alone have what is needed: codes that stand for one key each."""
        names = [field.name for field in scan.state.schema.fields]
        only_key = len(self.columns_read(names)) == 1
        return only_key and codes_are_exact(self.definition, scan.state.schema)


@dataclass(frozen=True, slots=True)
class LookupChoice:
    """The index that a MERGE uses, if any, and the reason."""

    lookup: MergeLookup | None = None
    reasons: tuple[str, ...] = ()


def choose_lookup(
    statement: MergeStatement, bound: BoundMerge, scan: Scan, files: MergeFiles, join: Join
) -> LookupChoice:
    """Choose an index for the keys of a MERGE; none where reading the files is as good."""
    keys = comparable_keys(bound.keys, scan.state.schema, bound.sides)
    definition = _index_of(answering(scan.state), keys)
    if definition is None or not scan.candidates:
        return LookupChoice()

    def not_used(reason: str) -> LookupChoice:
        return LookupChoice(None, (f"index {definition.name} not used: {reason}",))

    if join.shape not in _OF_MATCHES:
        return not_used("rows that match no source row are needed too")
    named = _columns_named(statement, bound, ColumnReader(lambda: scan.spark))
    if named is None:
        return not_used("a condition or a value may name any column")
    limit = scan.state.settings.index_max_keys
    if files.facts.rows > limit:
        return not_used(f"the source has {files.facts.rows} rows, more than {limit}")
    covered = _covered(scan, definition)
    if not covered:
        return not_used("no file has a sidecar")
    by_id = {key.field_id: key for key in keys}
    own = tuple(by_id[field_id] for field_id in definition.field_ids)
    paths = frozenset(c.path for c in covered)
    lookup = MergeLookup(definition, paths, own, frozenset(named), bound)
    rows = sum(c.live.rows for c in covered)
    if files.facts.rows * (_MOST_KEYS if lookup.reads_no_data(scan) else _MOST_FETCHED) > rows:
        return not_used(f"the source has {files.facts.rows} rows, the files {rows}")
    return LookupChoice(lookup, tuple(_reasons(lookup, scan)))


def _index_of(
    definitions: Sequence[IndexDefinition], keys: Sequence[SourceKey]
) -> IndexDefinition | None:
    """The index whose columns are keys; of several, the one with most columns."""
    compared = {key.field_id for key in keys}
    fitting = [each for each in definitions if compared.issuperset(each.field_ids)]
    return max(fitting, key=lambda each: len(each.field_ids), default=None)


def _columns_named(
    statement: MergeStatement, bound: BoundMerge, columns: ColumnReader
) -> list[str] | None:
    """The table's columns that expressions may name; None: all."""
    expressions: list[Expression] = [clause.condition for clause in statement.clauses]
    for clause in statement.clauses:
        expressions += [part for pair in clause.assignments or () for part in pair]
    if isinstance(statement.on, str | Column):
        expressions.append(statement.on)
    named = columns_named(expressions, bound.sides.present.names, columns)
    return None if named is None else [*named, *(key.target for key in bound.keys)]


def _covered(scan: Scan, definition: IndexDefinition) -> list[Candidate]:
    files = [c for c in scan.candidates if scan.can_fetch(c)]
    there = have_sidecars(scan.state, definition, [c.live for c in files])
    return [candidate for candidate, is_there in zip(files, there, strict=True) if is_there]


def _reasons(lookup: MergeLookup, scan: Scan) -> Iterator[str]:
    name = lookup.definition.name
    yield f"index {name}: the source's keys are looked up in {len(lookup.files)} files"
    if lookup.reads_no_data(scan):
        yield f"index {name}: no column of these files is read"
    if without := len(scan.candidates) - len(lookup.files):
        yield f"index {name} not used for {without} files: they have no sidecar"
