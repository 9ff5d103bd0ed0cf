"""Which files a compaction rewrites, and into how many: by partition, sizes and deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from icefloe.metadata.files import PartitionKey
from icefloe.pruning.candidates import Candidate

SMALL = 0.75  # of the target size: a file below it is worth joining with others
LARGE = 1.8  # a file above it is worth splitting
_ROUND_UP = 0.6  # part of a target that is worth a file of its own


@dataclass(frozen=True, slots=True)
class Source:
    """A file to be rewritten, and what its live rows are about."""

    candidate: Candidate
    rows: int  # live, as far as position deletes tell
    bytes: float  # of the live rows


@dataclass(frozen=True, slots=True)
class Pack:
    """Files of one partition whose rows go, in this order, into so many new files."""

    sources: tuple[Source, ...]
    outputs: int

    @property
    def bytes(self) -> float:
        """The size of all live rows."""
        return sum(source.bytes for source in self.sources)


@dataclass(frozen=True, slots=True)
class Packing:
    """What a compaction rewrites: packs of one partition each, or rows that find their partition.

    Rows of files of an old partition spec may belong to any partition of the current one. Where
    there are such files, all that is rewritten goes the second way, so that they meet.
    """

    packs: tuple[Pack, ...] = ()
    moving: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every file that is rewritten."""
        return tuple(s for pack in self.packs for s in pack.sources) + self.moving


def pack_files(
    candidates: Iterable[Candidate],
    live_rows: Callable[[Candidate], int],
    spec_id: int,
    target_bytes: int,
    *,
    partitioned: bool,
) -> Packing:
    """Choose what to rewrite under the spec `spec_id`; rewriting must make something better."""
    sources = [_source(c, live_rows(c)) for c in candidates]
    chosen = [s for s in sources if _is_worth_it(s, spec_id, target_bytes)]
    chosen.sort(key=lambda s: s.candidate.live.sequence_number)  # stable: else as manifests have it
    if partitioned and any(s.candidate.live.spec_id != spec_id for s in chosen):
        return Packing(moving=tuple(chosen))
    groups: dict[PartitionKey, list[Source]] = {}
    for source in chosen:
        key = source.candidate.live.partition_key
        groups.setdefault(key if key[0] == spec_id else (spec_id, ()), []).append(source)
    packs = [Pack(tuple(group), _outputs(group, target_bytes)) for group in groups.values()]
    return Packing(tuple(p for p in packs if _improves(p, spec_id, target_bytes)))


def _source(candidate: Candidate, rows: int) -> Source:
    live = candidate.live
    return Source(candidate, rows, live.size * rows / max(1, live.rows))


def _is_worth_it(source: Source, spec_id: int, target_bytes: int) -> bool:
    live = source.candidate.live
    return (
        _must_go(source, spec_id)
        or live.size < SMALL * target_bytes
        or _is_too_large(source, target_bytes)
    )


def _must_go(source: Source, spec_id: int) -> bool:
    """Whether the file has deletes, or is of an old spec."""
    candidate = source.candidate
    hidden = source.rows < candidate.live.rows or bool(candidate.equality_deletes)
    return hidden or candidate.live.spec_id != spec_id


def _is_too_large(source: Source, target_bytes: int) -> bool:
    return source.candidate.live.size > LARGE * target_bytes and source.rows > 1


def _outputs(group: Sequence[Source], target_bytes: int) -> int:
    """How many files of about the target size; none has to be much smaller."""
    size = sum(source.bytes for source in group)
    rows = sum(source.rows for source in group)
    return max(1, min(int(size / target_bytes + 1 - _ROUND_UP), rows))


def _improves(pack: Pack, spec_id: int, target_bytes: int) -> bool:
    return len(pack.sources) > pack.outputs or any(
        _must_go(source, spec_id) or _is_too_large(source, target_bytes) for source in pack.sources
    )
