"""Which snapshots and refs of a table have expired, by Iceberg's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from icefloe.metadata.table_state import MAIN, ancestors
from icefloe.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """How old, and how many: what a call asks for over the table's own settings."""

    now_ms: int
    older_than_ms: int  # snapshots from before this moment go
    retain_last: int  # on each branch so many stay, however old
    max_ref_age_ms: int | None

    @classmethod
    def of(
        cls, settings: Settings, now_ms: int, older_than_ms: int | None, retain_last: int
    ) -> Limits:
        """The limits of a call; the table's least number of snapshots holds in any case."""
        if older_than_ms is None:
            older_than_ms = now_ms - settings.max_snapshot_age_ms
        return cls(
            now_ms,
            older_than_ms,
            max(retain_last, settings.min_snapshots_to_keep),
            settings.max_ref_age_ms,
        )


@dataclass(frozen=True, slots=True)
class Expired:
    """What goes from a table's metadata."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.refs)


def expired(metadata: TableMetadata, limits: Limits) -> Expired:
    """The snapshots that nothing keeps: no branch, no tag, no young age."""
    refs = {
        name: ref
        for name, ref in metadata.refs.items()
        if name == MAIN or _is_kept(ref, metadata, limits)
    }
    kept = {ref.snapshot_id for ref in refs.values()}
    if metadata.current_snapshot_id is not None:
        kept.add(metadata.current_snapshot_id)
    in_line = set(kept)
    for ref in refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            line = list(ancestors(metadata, metadata.snapshot_by_id(ref.snapshot_id)))
            in_line |= {snapshot.snapshot_id for snapshot in line}
            kept |= {snapshot.snapshot_id for snapshot in _kept_of(line, ref, limits)}
    for snapshot in metadata.snapshots:
        # Rolled back, or staged: no branch tells its age limit.
        if snapshot.snapshot_id not in in_line and snapshot.timestamp_ms >= limits.older_than_ms:
            kept.add(snapshot.snapshot_id)
    return Expired(
        tuple(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept),
        tuple(name for name in metadata.refs if name not in refs),
    )


def _is_kept(ref: SnapshotRef, metadata: TableMetadata, limits: Limits) -> bool:
    limit = ref.max_ref_age_ms or limits.max_ref_age_ms
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    return limit is None or snapshot is None or limits.now_ms - snapshot.timestamp_ms <= limit


def _kept_of(line: list[Snapshot], ref: SnapshotRef, limits: Limits) -> Iterator[Snapshot]:
    """The newest snapshots of a branch, by its own limits where it has some."""
    oldest_ms = limits.older_than_ms
    if ref.max_snapshot_age_ms is not None:
        oldest_ms = limits.now_ms - ref.max_snapshot_age_ms
    least = max(limits.retain_last, ref.min_snapshots_to_keep or 1)
    for number, snapshot in enumerate(line):
        if number >= least and snapshot.timestamp_ms < oldest_ms:
            return
        yield snapshot
