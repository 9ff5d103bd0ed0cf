"""Which files a MERGE reads: those that source rows may match, and those by-source clauses need.

Files are ruled out by partition, then by the range of each key, then by the gaps between the keys.
A file is skipped only when it provably holds no row that the statement reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.transforms import Transform, TruncateTransform

from icefloe.commands.merge.bind import BoundMerge
from icefloe.commands.merge.source import (
    MergeSource,
    SourceFacts,
    SourceKey,
    comparable_keys,
    range_expression,
)
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import FilePlan, choose_files, narrowed
from icefloe.pruning.comparisons import ALWAYS, NEVER, FilePredicate, all_of
from icefloe.pruning.file_matcher import FileMatcher, Matcher
from icefloe.pruning.source_matcher import AnyMatcher, KeyValues, PartitionValues, SourceMatcher
from icefloe.statements import MergeOptions, When

# Above this, reading every manifest costs more than measuring the source once more.
_MANY_FILES = 2000


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """The files a MERGE reads, what chose them, and how large its source is."""

    plan: FilePlan
    matcher: Matcher  # also decides which files added concurrently are a conflict
    facts: SourceFacts
    keys: tuple[KeyValues, ...]  # ranges of the source's keys, for filters within files
    dpp_applied: bool
    dpp_partition_count: int
    reasons: tuple[str, ...]


def choose_merge_files(
    bound: BoundMerge, source: MergeSource, state: TableState, options: MergeOptions
) -> MergeFiles:
    """Measure the source and choose files by its keys."""
    keys = comparable_keys(bound.keys, state.schema, bound.sides)
    needed = [key.source for key in bound.keys] or bound.sides.source.names
    reason = _why_not_pruned(bound, options)
    if reason:
        return _unpruned(bound, state, source.measure((), needed), reason)
    return _Chooser(bound, source, state, options, keys, needed).choose()


def _why_not_pruned(bound: BoundMerge, options: MergeOptions) -> str | None:
    """Why no file may be ruled out by the source's values; None where files may."""
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
    source: MergeSource
    state: TableState
    options: MergeOptions
    keys: tuple[SourceKey, ...]
    needed: Sequence[str]

    def choose(self) -> MergeFiles:
        plan = None if self.source.is_held else self._plan_without_values()
        files = [candidate.live.file for candidate in plan.candidates] if plan else []
        facts = self.source.measure(self.keys, self.needed, files)
        if not facts.rows and not self.bound.numbered(When.NOT_MATCHED_BY_SOURCE):
            nothing = FileMatcher(NEVER, self.state.schema, self.state.metadata.specs())
            plan = replace(plan or choose_files(self.state, nothing), candidates=())
            return MergeFiles(plan, nothing, facts, (), False, 0, ("the source has no rows",))
        values = dict(zip(self.keys, facts.keys, strict=True))
        partitions, count, within_limit = self._partitions(values)
        usable = self._usable(values, within_limit)
        matcher = self._matcher(usable, partitions)
        complete = self._with_by_source(matcher)
        return MergeFiles(
            narrowed(plan, complete) if plan else choose_files(self.state, complete),
            complete,
            facts,
            matcher.keys if complete is matcher else (),
            bool(partitions),
            count,
            tuple(self._reasons(partitions, count)),
        )

    def _plan_without_values(self) -> FilePlan:
        """The files by the rest of the condition, whose bounds tell which values to measure."""
        first = self._matcher(self._ranges_for_manifests(), {})
        return choose_files(self.state, self._with_by_source(first))

    def _ranges_for_manifests(self) -> dict[SourceKey, KeyValues]:
        """Ranges of the keys, where the table has so many files that skipping manifests pays."""
        if _files_listed(self.state) <= _MANY_FILES:
            return {}
        facts = self.source.measure(self.keys, self.needed)
        return dict(zip(self.keys, facts.keys, strict=True))

    def _matcher(
        self, values: dict[SourceKey, KeyValues], partitions: dict[int, PartitionValues]
    ) -> SourceMatcher:
        """Match files by the ranges of the keys, the rest of the condition, and partitions."""
        required = range_expression(list(values), list(values.values()))
        lowered = all_of([FilePredicate(required, None), self.bound.lowered_on])
        ranges = FileMatcher(lowered, self.state.schema, self.state.metadata.specs())
        ordered = tuple(ranges for key, ranges in values.items() if key.has_order)
        return SourceMatcher(ranges, partitions, ordered)

    def _partitions(
        self, keys: Mapping[SourceKey, KeyValues]
    ) -> tuple[dict[int, PartitionValues], int, bool]:
        """The source's partitions by spec; the count is for the current spec."""
        by_spec: dict[int, PartitionValues] = {}
        count, within_limit = 0, True
        limit = self.options.dpp_max_partitions
        for spec_id, spec in self.state.metadata.specs().items():
            values, spec_count = self.source.partition_values(keys, spec, self.state.schema, limit)
            if values is not None:
                by_spec[spec_id] = values
            if spec_id == self.state.metadata.default_spec_id:
                count, within_limit = spec_count, spec_count <= limit
        return by_spec, count, within_limit

    def _usable(
        self, values: Mapping[SourceKey, KeyValues], within_limit: bool
    ) -> dict[SourceKey, KeyValues]:
        """Keys that may choose files: above the limit, only those that partition nothing."""
        partitioned_by = self._partitioned_by()
        return {
            key: ranges
            for key, ranges in values.items()
            if within_limit or key.field_id not in partitioned_by
        }

    def _partitioned_by(self, transform: type = Transform) -> set[int]:
        """The source columns of the current partition spec, of fields with such a transform."""
        fields = self.state.metadata.spec().fields
        return {field.source_id for field in fields if isinstance(field.transform, transform)}

    def _with_by_source(self, matcher: SourceMatcher) -> Matcher:
        """Match files that by-source clauses may change too."""
        clauses = [clause for _, clause in self.bound.numbered(When.NOT_MATCHED_BY_SOURCE)]
        if not clauses:
            return matcher
        specs = self.state.metadata.specs()
        others = [FileMatcher(c.lowered, self.state.schema, specs) for c in clauses]
        return AnyMatcher((matcher, *others))

    def _reasons(self, partitions: dict[int, PartitionValues], count: int) -> list[str]:
        limit = self.options.dpp_max_partitions
        if count > limit:
            reason = f"the source has {count} partitions, more than dpp_max_partitions ({limit})"
        elif partitions:
            reason = f"the source has {count} partitions: only those are read"
        elif {key.field_id for key in self.keys} & self._partitioned_by(TruncateTransform):
            reason = "a key of the source is in no partition: it is too small for truncate"
        else:
            reason = "no partition column is compared for equality"
        if not self.keys:
            return [reason, "no key chooses files: the condition has no equality of plain columns"]
        return [reason, f"files are chosen by the source's {', '.join(k.name for k in self.keys)}"]


def _files_listed(state: TableState) -> int:
    """The number of data files by the snapshot summary."""
    summary = state.snapshot.summary if state.snapshot else None
    return int((summary.get("total-data-files") if summary else None) or 0)
