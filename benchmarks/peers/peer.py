"""What every peer can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.digest import Digest
from benchmarks.statements import BoundStatement, Kind

COPY_ON_WRITE = "copy-on-write"
NOTHING_TO_READ = "copy-on-write leaves no deletes to read: its scan is that of a new table"
_REWRITES = 10  # statements that are worth their time to show it


@dataclass(frozen=True, slots=True)
class Facts:
    """What a peer tells about one statement it ran; None where it doesn't tell."""

    rows_changed: int | None = None
    bytes_read: int | None = None
    told: Mapping[str, object] = field(default_factory=dict)  # its own figures, as they are
    answer: Digest | None = None  # of a scan


def reason_not_to_scan(bound: BoundStatement) -> str | None:
    """Why a scan is left out where every statement before it rewrites files; None to run it."""
    is_scan = bound.statement.kind is Kind.SCAN
    return NOTHING_TO_READ if is_scan and bound.statement.statements_before > _REWRITES else None


class Peer(Protocol):
    """One engine with one table; lives in a process of its own."""

    @property
    def table_folder(self) -> Path:
        """Where the table's files are: what a statement writes is what is new under it."""
        ...

    def setup(self, files: Sequence[Path]) -> None:
        """Make the table from the input: one data file for each input file, rows in order."""
        ...

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        """Why a statement can't be run here; None when it can."""
        ...

    def run(self, bound: BoundStatement) -> Facts:
        """Run a statement. This call is timed, and nothing else."""
        ...

    def settle(self, facts: Facts) -> Facts:
        """Facts that take work to find out, after the clock has stopped."""
        ...

    def restore(self) -> None:
        """Bring the table back to what `setup` made."""
        ...

    def live_files(self) -> frozenset[str] | None:
        """Names of the data files that the table has now, of a peer that rewrites files.

        None where few bytes are left behind by a statement, as by merge-on-read.
        """
        ...

    def digest(self, where: str = "") -> Digest:
        """The digest of all rows or some, as this engine reads them now; a scan is just this."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Versions and settings that the numbers depend on."""
        ...

    def close(self) -> None:
        """Let go of what the peer started."""
        ...
