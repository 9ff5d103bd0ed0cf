"""Which files a MERGE must read: those that source rows may match, and those by-source clauses see.

Files are ruled out by partition, then by the range of each key, then by where the keys lie within
that range. A file is skipped only when it surely holds no row that the statement looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.transforms import Transform, TruncateTransform
from pyspark.sql import DataFrame

from icefloe.commands.merge.bind import BoundMerge
from icefloe.commands.merge.source import (
    SourceFacts,
    SourceKey,
    choose_cells,
    comparable_keys,
    measure,
    partition_values,
    range_expression,
)
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import FilePlan, choose_files, narrowed
from icefloe.pruning.comparisons import ALWAYS, NEVER, FilePredicate, all_of
from icefloe.pruning.file_matcher import FileMatcher, Matcher
from icefloe.pruning.source_matcher import AnyMatcher, KeyValues, PartitionValues, SourceMatcher
from icefloe.statements import MergeOptions, When

# From here on, reading every manifest costs more than another look at the source.
_MANY_FILES = 2000


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
    if off:
        return _unpruned(bound, state, measure(source, (), needed), off)
    return _Chooser(bound, source, state, options, keys, needed).choose()


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
    matcher = FileMatcher(lowered, state.schema, state.metadata.specs())
    plan = choose_files(state, matcher)
    return MergeFiles(plan, matcher, facts, (), False, 0, (f"no pruning by the source: {reason}",))


@dataclass(frozen=True, slots=True)
class _Chooser:
    bound: BoundMerge
    source: DataFrame
    state: TableState
    options: MergeOptions
    keys: tuple[SourceKey, ...]
    needed: Sequence[str]

    def choose(self) -> MergeFiles:
        first = self._matcher(self._ranges_for_manifests(), {})
        plan = choose_files(self.state, self._with_by_source(first))
        files = [candidate.live.file for candidate in plan.candidates]
        facts = measure(self.source, self.keys, self.needed, choose_cells(self.keys, files))
        if not facts.rows and not self.bound.numbered(When.NOT_MATCHED_BY_SOURCE):
            nothing = FileMatcher(NEVER, self.state.schema, self.state.metadata.specs())
            plan = replace(plan, candidates=())
            return MergeFiles(plan, nothing, facts, (), False, 0, ("the source has no rows",))
        values = dict(zip(self.keys, facts.keys, strict=True))
        partitions, count, within_limit = self._partitions(values)
        usable = self._usable(values, within_limit)
        matcher = self._matcher(usable, partitions)
        seen = self._with_by_source(matcher)
        return MergeFiles(
            narrowed(plan, seen),
            seen,
            facts,
            matcher.keys if seen is matcher else (),
            bool(partitions),
            count,
            tuple(self._reasons(partitions, count)),
        )

    def _ranges_for_manifests(self) -> dict[SourceKey, KeyValues]:
        """Ranges of the keys, where so many files are listed that manifests should be skipped."""
        if _files_listed(self.state) <= _MANY_FILES:
            return {}
        facts = measure(self.source, self.keys, self.needed)
        return dict(zip(self.keys, facts.keys, strict=True))

    def _matcher(
        self, values: dict[SourceKey, KeyValues], partitions: dict[int, PartitionValues]
    ) -> SourceMatcher:
        """Files by the ranges of the keys, what the condition says besides, and partitions."""
        demanded = range_expression(list(values), list(values.values()))
        lowered = all_of([FilePredicate(demanded, None), self.bound.lowered_on])
        ranges = FileMatcher(lowered, self.state.schema, self.state.metadata.specs())
        ordered = tuple(found for key, found in values.items() if key.has_order)
        return SourceMatcher(ranges, partitions, ordered)

    def _partitions(
        self, keys: Mapping[SourceKey, KeyValues]
    ) -> tuple[dict[int, PartitionValues], int, bool]:
        """The source's partitions by spec; the count is of the current spec's."""
        found: dict[int, PartitionValues] = {}
        count, within_limit = 0, True
        limit = self.options.dpp_max_partitions
        for spec_id, spec in self.state.metadata.specs().items():
            values, seen = partition_values(self.source, keys, spec, self.state.schema, limit)
            if values is not None:
                found[spec_id] = values
            if spec_id == self.state.metadata.default_spec_id:
                count, within_limit = seen, seen <= limit
        return found, count, within_limit

    def _usable(
        self, values: Mapping[SourceKey, KeyValues], within_limit: bool
    ) -> dict[SourceKey, KeyValues]:
        """Keys that may choose files: over the limit, not those the table is partitioned by."""
        partitioned_by = self._partitioned_by()
        return {
            key: found
            for key, found in values.items()
            if within_limit or key.field_id not in partitioned_by
        }

    def _partitioned_by(self, transform: type = Transform) -> set[int]:
        """The columns that the table is partitioned by now, with such a transform."""
        fields = self.state.metadata.spec().fields
        return {field.source_id for field in fields if isinstance(field.transform, transform)}

    def _with_by_source(self, matcher: SourceMatcher) -> Matcher:
        """Files that by-source clauses may change are seen besides."""
        clauses = [clause for _, clause in self.bound.numbered(When.NOT_MATCHED_BY_SOURCE)]
        if not clauses:
            return matcher
        specs = self.state.metadata.specs()
        others = [FileMatcher(c.lowered, self.state.schema, specs) for c in clauses]
        return AnyMatcher((matcher, *others))

    def _reasons(self, partitions: dict[int, PartitionValues], count: int) -> list[str]:
        limit = self.options.dpp_max_partitions
        if count > limit:
            said = f"the source is of {count} partitions, more than dpp_max_partitions ({limit})"
        elif partitions:
            said = f"the source is of {count} partitions: only those are read"
        elif {key.field_id for key in self.keys} & self._partitioned_by(TruncateTransform):
            said = "a key of the source is of no partition: it is too small for truncate"
        else:
            said = "no partition column is compared for equality"
        if not self.keys:
            return [said, "no key chooses files: the condition has no equality of plain columns"]
        return [said, f"files are chosen by the source's {', '.join(k.name for k in self.keys)}"]


def _files_listed(state: TableState) -> int:
    """How many data files the snapshot says it has."""
    summary = state.snapshot.summary if state.snapshot else None
    return int((summary.get("total-data-files") if summary else None) or 0)
