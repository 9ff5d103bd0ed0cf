"""Which files a MERGE must read: those that source rows may match, and those by-source clauses see.

Files are ruled out by partition, then by the range of each key, then by where the keys lie within
that range. A file is skipped only when it surely holds no row that the statement looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import DataFrame

from icefloe.metadata.matching import FileMatcher, Matcher
from icefloe.metadata.source_matching import AnyMatcher, KeyValues, PartitionValues, SourceMatcher
from icefloe.metadata.state import TableState
from icefloe.plan.files import Candidate, FilePlan, choose_files, narrowed
from icefloe.plan.merge_bind import BoundMerge
from icefloe.plan.source_facts import (
    KeyRange,
    SourceFacts,
    SourceKey,
    comparable_keys,
    group_values,
    measure,
    ordinal_of,
    partition_values,
    range_expression,
)
from icefloe.predicates.lowered import ALWAYS, NEVER, Lowered, all_of
from icefloe.statements import MergeOptions, When


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """The files a MERGE reads, what chose them, and how large its source is."""

    plan: FilePlan
    matcher: Matcher  # also tells which files added meanwhile would have mattered
    facts: SourceFacts
    keys: tuple[KeyValues, ...]  # where the source's keys lie, for filters within files
    dpp_applied: bool
    dpp_partition_count: int
    reasons: tuple[str, ...]


def choose_merge_files(
    bound: BoundMerge, source: DataFrame, state: TableState, options: MergeOptions
) -> MergeFiles:
    """Measure the source and choose files by it."""
    keys = comparable_keys(bound.keys, state.schema, bound.sides)
    needed = [key.source for key in bound.keys] or bound.sides.source.names
    off = _why_all(bound, options)
    facts = measure(source, () if off else keys, needed)
    by_source = bound.numbered(When.NOT_MATCHED_BY_SOURCE)
    if off or (not facts.rows and not by_source):
        return _unpruned(bound, state, facts, off or "the source has no rows")
    chooser = _Chooser(bound, source, state, options, facts)
    return chooser.choose(keys)


def _why_all(bound: BoundMerge, options: MergeOptions) -> str | None:
    """Why no file may be ruled out by the source's values."""
    if not options.enable_dpp:
        return "option enable_dpp is off"
    for _, clause in bound.numbered(When.NOT_MATCHED_BY_SOURCE):
        if isinstance(clause.lowered.inclusive, AlwaysTrue):
            return "a clause for rows not matched by source must see every row"
    return None


def _unpruned(bound: BoundMerge, state: TableState, facts: SourceFacts, reason: str) -> MergeFiles:
    has_by_source = bool(bound.numbered(When.NOT_MATCHED_BY_SOURCE))
    lowered = ALWAYS if has_by_source else bound.lowered_on
    if not facts.rows and not has_by_source:
        lowered = NEVER
    matcher = FileMatcher(lowered, state.schema, state.metadata.specs())
    plan = choose_files(state, matcher)
    return MergeFiles(plan, matcher, facts, (), False, 0, (f"no pruning by the source: {reason}",))


@dataclass(frozen=True, slots=True)
class _Chooser:
    bound: BoundMerge
    source: DataFrame
    state: TableState
    options: MergeOptions
    facts: SourceFacts

    def choose(self, keys: tuple[SourceKey, ...]) -> MergeFiles:
        partitions, count, told = self._partitions(keys)
        ranges = self._ranges(told)
        matcher = SourceMatcher(self._by_range(ranges), partitions, ())
        plan = choose_files(self.state, self._with_by_source(matcher))
        found = self._grouped(ranges, plan.candidates)
        matcher = replace(matcher, keys=found)
        seen = self._with_by_source(matcher)
        return MergeFiles(
            narrowed(plan, seen) if found else plan,
            seen,
            self.facts,
            (found or _widest(ranges)) if seen is matcher else (),
            bool(partitions),
            count,
            tuple(self._reasons(keys, partitions, count)),
        )

    def _partitions(
        self, keys: tuple[SourceKey, ...]
    ) -> tuple[dict[int, PartitionValues], int, bool]:
        """The source's partitions by spec; the count is of the current spec's."""
        found: dict[int, PartitionValues] = {}
        count, within_limit = 0, True
        current = self.state.metadata.default_spec_id
        for spec_id, spec in self.state.metadata.specs().items():
            values, seen = partition_values(
                self.source, keys, spec, self.state.schema, self.options.dpp_max_partitions
            )
            if values is not None:
                found[spec_id] = values
            if spec_id == current:
                count, within_limit = seen, seen <= self.options.dpp_max_partitions
        return found, count, within_limit

    def _ranges(self, within_limit: bool) -> tuple[KeyRange, ...]:
        """Ranges that may choose files: over the limit, not those of partition columns."""
        if within_limit:
            return self.facts.ranges
        sources = {field.source_id for field in self.state.metadata.spec().fields}
        return tuple(r for r in self.facts.ranges if r.key.field_id not in sources)

    def _by_range(self, ranges: Sequence[KeyRange]) -> FileMatcher:
        lowered = all_of([Lowered(range_expression(ranges), None), self.bound.lowered_on])
        return FileMatcher(lowered, self.state.schema, self.state.metadata.specs())

    def _with_by_source(self, matcher: SourceMatcher) -> Matcher:
        """Files that by-source clauses may change are seen besides."""
        clauses = [clause for _, clause in self.bound.numbered(When.NOT_MATCHED_BY_SOURCE)]
        if not clauses:
            return matcher
        specs = self.state.metadata.specs()
        others = [FileMatcher(c.lowered, self.state.schema, specs) for c in clauses]
        return AnyMatcher((matcher, *others))

    def _grouped(
        self, ranges: Sequence[KeyRange], candidates: Sequence[Candidate]
    ) -> tuple[KeyValues, ...]:
        """Where the keys lie, for keys by which that may rule out more files."""
        if len(candidates) < 2:
            return ()
        useful = [r for r in ranges if r.values is not None and _may_have_gaps(r, candidates)]
        return tuple(group_values(self.source, found) for found in useful)

    def _reasons(
        self, keys: Sequence[SourceKey], partitions: dict[int, PartitionValues], count: int
    ) -> list[str]:
        limit = self.options.dpp_max_partitions
        if count > limit:
            said = f"the source is of {count} partitions, more than dpp_max_partitions ({limit})"
        elif partitions:
            said = f"the source is of {count} partitions: only those are read"
        else:
            said = "no partition column is compared for equality"
        if not keys:
            return [said, "no key chooses files: the condition has no equality of plain columns"]
        return [said, f"files are chosen by the source's {', '.join(k.name for k in keys)}"]


def _widest(ranges: Sequence[KeyRange]) -> tuple[KeyValues, ...]:
    return tuple(
        KeyValues(r.key.field_id, r.key.type, (r.values,))
        for r in ranges
        if r.values is not None and r.key.has_order
    )


def _may_have_gaps(found: KeyRange, candidates: Sequence[Candidate]) -> bool:
    """Whether some file's bounds hold none of the sampled values, so that it may be skipped."""
    values = KeyValues(found.key.field_id, found.key.type, ())
    bounds = [values.bounds(c.live.file) for c in candidates]
    if not found.key.has_order or all(b is None for b in bounds):
        return False
    if not found.quantiles:
        return True
    return any(
        not any(ordinal_of(b[0]) <= q <= ordinal_of(b[1]) for q in found.quantiles)
        for b in bounds
        if b is not None
    )
