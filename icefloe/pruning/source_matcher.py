"""Which files may hold rows that match a MERGE's source, by its partitions and keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, Or
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.types import PrimitiveType

from icefloe.pruning.comparisons import balanced
from icefloe.pruning.file_matcher import FileMatcher, Matcher, is_plain

Interval = tuple[Any, Any]  # both ends included, as Iceberg stores values


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The source's values of a key column: disjoint intervals, ascending."""

    field_id: int
    type: PrimitiveType
    intervals: tuple[Interval, ...]

    def meets(self, file: DataFile) -> bool:
        """Whether a value may be within the file's bounds; without bounds it may."""
        bounds = self.bounds(file)
        if bounds is None:
            return True
        lower, upper = bounds
        first = bisect_left(self.intervals, lower, key=lambda interval: interval[1])
        return first < len(self.intervals) and bool(self.intervals[first][0] <= upper)

    def bounds(self, file: DataFile) -> Interval | None:
        """The file's bounds of the column; None where they are missing or cannot be read."""
        lower = (file.lower_bounds or {}).get(self.field_id)
        upper = (file.upper_bounds or {}).get(self.field_id)
        if lower is None or upper is None:
            return None
        try:
            return from_bytes(self.type, lower), from_bytes(self.type, upper)
        except Exception:  # noqa: BLE001 - bounds of an older type, or corrupt: doubt
            return None


@dataclass(frozen=True, slots=True)
class PartitionValues:
    """The source's values of some fields of one partition spec."""

    positions: tuple[int, ...]  # of the fields in the spec
    field_count: int  # of the spec
    values: frozenset[tuple[Any, ...]]

    def has(self, file: DataFile) -> bool:
        """Whether a source row may have the file's partition; in doubt it may."""
        if not is_plain(file.partition, self.field_count):
            return True
        return tuple(file.partition[position] for position in self.positions) in self.values


@dataclass(frozen=True, slots=True)
class SourceMatcher:
    """Files that may hold a row that matches a source row."""

    ranges: FileMatcher  # the widest ranges of the keys, and the rest of the condition
    partitions: dict[int, PartitionValues]  # by spec
    keys: tuple[KeyValues, ...]

    @property
    def row_condition(self) -> BooleanExpression:
        """TRUE for every row within the ranges of the keys."""
        return self.ranges.row_condition

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether the ranges allow a matching file."""
        return self.ranges.may_match_manifest(manifest)

    def may_match(self, file: DataFile, spec_id: int) -> bool:
        """Whether the file may hold a matching row."""
        return self.why_not(file, spec_id) is None

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """What rules the file out."""
        partitions = self.partitions.get(spec_id)
        if partitions is not None and not partitions.has(file):
            return "no source row is in its partition"
        reason = self.ranges.why_not(file, spec_id)
        if reason is not None:
            return reason
        if not all(key.meets(file) for key in self.keys):
            return "no source key is within its bounds"
        return None

    def matches_every_row(self, file: DataFile, spec_id: int) -> bool:  # noqa: ARG002
        """Never proven: only the join decides which rows match."""
        return False


@dataclass(frozen=True, slots=True)
class AnyMatcher:
    """Files that one of several matchers cannot rule out."""

    matchers: Sequence[Matcher]

    @property
    def row_condition(self) -> BooleanExpression:
        """TRUE for every row that is of interest to any of them."""
        conditions = [matcher.row_condition for matcher in self.matchers]
        return balanced(Or, conditions) if conditions else AlwaysFalse()

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether any of them may match it."""
        return any(matcher.may_match_manifest(manifest) for matcher in self.matchers)

    def may_match(self, file: DataFile, spec_id: int) -> bool:
        """Whether any of them may match it."""
        return any(matcher.may_match(file, spec_id) for matcher in self.matchers)

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """The reason of the first, if all have one."""
        reasons = [matcher.why_not(file, spec_id) for matcher in self.matchers]
        return None if None in reasons else reasons[0]

    def matches_every_row(self, file: DataFile, spec_id: int) -> bool:  # noqa: ARG002
        """Never proven."""
        return False
