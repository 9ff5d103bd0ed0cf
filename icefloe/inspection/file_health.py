"""Partitions and files by bytes, with the density of their deletes and the health of their sizes.

Aggregates for people: partitions and files beyond the largest are counted together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, floor, log2
from typing import Any

from icefloe.inspection.facts import partition_values
from icefloe.maintenance.packing import LARGE, SMALL
from icefloe.metadata.files import DeleteIndex, LiveFile, PartitionKey, SnapshotFiles
from icefloe.metadata.files import unpartitioned_specs as everywhere_of
from icefloe.metadata.table_state import TableState

MOST_TILES = 400


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A data file with the deletes that apply to it, as far as manifests say."""

    live: LiveFile
    deleted: float  # rows that position deletes delete; estimated where a file has those of several
    has_equality_deletes: bool

    @property
    def live_rows(self) -> int:
        """Rows that are not deleted by position."""
        return max(0, self.live.rows - round(self.deleted))


def file_facts(state: TableState, files: SnapshotFiles) -> list[FileFacts]:
    """Every data file with its deletes.

    The rows of a delete file that is for a whole partition are shared out by the rows of its files.
    """
    index = DeleteIndex.of(files.deletes, everywhere_of(state.metadata))
    members: dict[PartitionKey, list[LiveFile]] = {}
    for live in files.data:
        if live.partition_key in index.by_partition:
            members.setdefault(live.partition_key, []).append(live)
    shares = {
        key: _Shares.of(members.get(key, ()), deletes)
        for key, deletes in index.by_partition.items()
    }
    return [
        FileFacts(live, _deleted(live, index, shares), bool(index.equality_deletes(live)))
        for live in files.data
    ]


def _deleted(live: LiveFile, index: DeleteIndex, shares: Mapping[PartitionKey, _Shares]) -> float:
    own = index.by_path.get(live.path, ())
    deleted = float(sum(d.rows for d in own if d.sequence_number >= live.sequence_number))
    if live.partition_key in shares:
        deleted += live.rows * shares[live.partition_key].fraction(live.sequence_number)
    return min(live.rows, deleted)


@dataclass(frozen=True, slots=True)
class _Shares:
    """The fraction of rows that the delete files of a partition delete in each of its files."""

    numbers: list[int]  # sequence numbers of the delete files, sorted
    fractions: list[float]  # deleted by each of them and all later ones

    @classmethod
    def of(cls, data: Sequence[LiveFile], deletes: Sequence[LiveFile]) -> _Shares:
        by_age = sorted(data, key=lambda live: live.sequence_number)
        ages = [live.sequence_number for live in by_age]
        rows = [0, *accumulate(live.rows for live in by_age)]
        ordered = sorted(deletes, key=lambda delete: delete.sequence_number)
        each = [d.rows / max(1, rows[bisect_right(ages, d.sequence_number)]) for d in ordered]
        return cls([d.sequence_number for d in ordered], [*accumulate(each[::-1])][::-1])

    def fraction(self, sequence_number: int) -> float:
        at = bisect_left(self.numbers, sequence_number)
        return self.fractions[at] if at < len(self.fractions) else 0.0


@dataclass(slots=True)
class _Group:
    label: str
    short: str = ""  # values without the names of the partition fields
    files: int = 0
    bytes: int = 0
    rows: int = 0
    deleted: float = 0.0
    sizes: Counter[str] = field(default_factory=Counter)
    has_equality_deletes: bool = False

    def add(self, facts: FileFacts, target: int) -> None:
        self.files += 1
        self.bytes += facts.live.size
        self.rows += facts.live.rows
        self.deleted += facts.deleted
        self.sizes[size_class(facts.live.size, target)] += 1
        self.has_equality_deletes |= facts.has_equality_deletes

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "short": self.short,
            "files": self.files,
            "bytes": self.bytes,
            "rows": self.rows,
            "deleted": round(self.deleted),
            "small": self.sizes["small"],
            "large": self.sizes["large"],
            "equality": self.has_equality_deletes,
        }


def size_class(size: int, target: int) -> str:
    """`small` and `large` as compaction sees a file."""
    if size < SMALL * target:
        return "small"
    return "large" if size > LARGE * target else "good"


def partition_label(state: TableState, live: LiveFile) -> str:
    """The partition of a file for people; empty for a table without partitions."""
    return _label(partition_values(state, live))


def _label(values: Mapping[str, str | None]) -> str:
    return " / ".join(f"{name}={_shown(value)}" for name, value in values.items())


def _shown(value: str | None) -> str:
    return "NULL" if value is None else value


def file_map(state: TableState, files: SnapshotFiles, facts: Sequence[FileFacts]) -> dict[str, Any]:
    """Partitions by bytes, the totals, and a histogram of file sizes."""
    target = state.settings.target_file_bytes
    groups: dict[PartitionKey, _Group] = {}
    total = _Group("")
    for each in facts:
        key = each.live.partition_key
        if key not in groups:
            values = partition_values(state, each.live)
            groups[key] = _Group(_label(values), " / ".join(map(_shown, values.values())))
        groups[key].add(each, target)
        total.add(each, target)
    by_bytes = sorted(groups.values(), key=lambda group: (-group.bytes, group.label))
    return {
        "target": target,
        "total": total.as_json(),
        "delete_files": len(files.deletes),
        "delete_bytes": sum(file.size for file in files.deletes),
        "partitioned": len(groups) > 1 or bool(by_bytes and by_bytes[0].label),
        "partitions": [group.as_json() for group in by_bytes[:MOST_TILES]],
        "others": _rest(by_bytes[MOST_TILES:]),
        "histogram": _histogram(facts),
    }


def files_of(state: TableState, facts: Iterable[FileFacts], label: str) -> dict[str, Any]:
    """The files of one partition by bytes; of many the largest."""
    target = state.settings.target_file_bytes
    labels: dict[PartitionKey, str] = {}
    members = []
    for each in facts:
        key = each.live.partition_key
        if key not in labels:
            labels[key] = partition_label(state, each.live)
        if labels[key] == label:
            members.append(each)
    members.sort(key=lambda each: (-each.live.size, each.live.path))
    rest = _Group("")
    for each in members[MOST_TILES:]:
        rest.add(each, target)
    return {
        "label": label,
        "files": [_file(each, target) for each in members[:MOST_TILES]],
        "others": rest.as_json() if rest.files else None,
    }


def _file(facts: FileFacts, target: int) -> dict[str, Any]:
    live = facts.live
    return {
        "label": live.path.rpartition("/")[2],
        "path": live.path,
        "files": 1,
        "bytes": live.size,
        "rows": live.rows,
        "deleted": round(facts.deleted),
        "small": int(size_class(live.size, target) == "small"),
        "large": int(size_class(live.size, target) == "large"),
        "equality": facts.has_equality_deletes,
        "snapshot": None if live.snapshot_id is None else str(live.snapshot_id),
    }


def _rest(groups: Sequence[_Group]) -> dict[str, Any] | None:
    if not groups:
        return None
    rest = _Group("")
    for group in groups:
        rest.files += group.files
        rest.bytes += group.bytes
        rest.rows += group.rows
        rest.deleted += group.deleted
        rest.sizes += group.sizes
        rest.has_equality_deletes |= group.has_equality_deletes
    return {**rest.as_json(), "partitions": len(groups)}


def _histogram(facts: Sequence[FileFacts]) -> list[dict[str, int]]:
    """Files by size, in steps of a factor of two."""
    if not facts:
        return []
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for each in facts:
        step = floor(log2(max(1, each.live.size)))
        counts[step] += 1
        sizes[step] += each.live.size
    steps = range(min(counts), max(counts) + 1)
    return [
        {"from": 2**step, "to": ceil(2 ** (step + 1)), "files": counts[step], "bytes": sizes[step]}
        for step in steps
    ]
