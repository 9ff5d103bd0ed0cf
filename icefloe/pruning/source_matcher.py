"""Which files may hold rows that match a MERGE's source, by its partitions and key values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.types import PrimitiveType

from icefloe.pruning.file_matcher import FileMatcher, Matcher, is_plain

Interval = tuple[Any, Any]  # both ends included, as Iceberg keeps values


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Where the source's values of a key column lie: disjoint intervals, ascending."""

    field_id: int
    type: PrimitiveType
    intervals: tuple[Interval, ...]

    def meets(self, file: DataFile) -> bool:
        """Whether a value may lie within the file's bounds; without bounds it may."""
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
        except Exception:  # noqa: BLE001 - bounds of an older type, or damaged: doubt
            return None


@dataclass(frozen=True, slots=True)
class PartitionValues:
    """The source's values of some fields of one partition spec."""

    places: tuple[int, ...]  # of the fields in the spec
    fields: int  # how many the spec has
    values: frozenset[tuple[Any, ...]]

    def has(self, file: DataFile) -> bool:
        """Whether a source row has the file's partition; a tuple that cannot be read may be."""
        if not is_plain(file.partition, self.fields):
            return True
        return tuple(file.partition[place] for place in self.places) in self.values


@dataclass(frozen=True, slots=True)
class SourceMatcher:
    """Files that may hold a row that matches a source row."""

    ranges: FileMatcher  # the widest ranges of the keys, and what the condition says besides
    partitions: dict[int, PartitionValues]  # by spec
    keys: tuple[KeyValues, ...]

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether the ranges leave room for a matching file."""
        return self.ranges.may_match_manifest(manifest)

    def may_match(self, file: DataFile, spec_id: int) -> bool:
        """Whether the file may hold a matching row."""
        return self.why_not(file, spec_id) is None

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """What rules the file out."""
        known = self.partitions.get(spec_id)
        if known is not None and not known.has(file):
            return "no source row is of its partition"
        reason = self.ranges.why_not(file, spec_id)
        if reason is not None:
            return reason
        if not all(key.meets(file) for key in self.keys):
            return "no source key is within its bounds"
        return None

    def surely_matches(self, file: DataFile, spec_id: int) -> bool:  # noqa: ARG002
        """Never known: which rows match is for the join to find out."""
        return False


@dataclass(frozen=True, slots=True)
class AnyMatcher:
    """Files that one of several matchers cannot rule out."""

    matchers: Sequence[Matcher]

    def may_match_manifest(self, manifest: ManifestFile) -> bool:
        """Whether any of them may find something in it."""
        return any(matcher.may_match_manifest(manifest) for matcher in self.matchers)

    def may_match(self, file: DataFile, spec_id: int) -> bool:
        """Whether any of them may find something in it."""
        return any(matcher.may_match(file, spec_id) for matcher in self.matchers)

    def why_not(self, file: DataFile, spec_id: int) -> str | None:
        """The first one's reason, where all have one."""
        reasons = [matcher.why_not(file, spec_id) for matcher in self.matchers]
        return None if None in reasons else reasons[0]

    def surely_matches(self, file: DataFile, spec_id: int) -> bool:  # noqa: ARG002
        """Never known."""
        return False
