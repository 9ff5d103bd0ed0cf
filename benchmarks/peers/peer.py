"""The interface of a peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.digest import Digest
from benchmarks.statements import BoundStatement, Kind

COPY_ON_WRITE = "copy-on-write"
NOTHING_TO_READ = "copy-on-write leaves no deletes to read: its scan is that of a new table"
_REWRITES = 10  # a longer history of rewritten files takes long and shows no more


@dataclass(frozen=True, slots=True)
class Facts:
    """What a peer reports about a statement that it ran; None where it does not report it."""

    rows_changed: int | None = None
    bytes_read: int | None = None
    reported: Mapping[str, object] = field(default_factory=dict)  # its own figures
    answer: Digest | None = None  # of a scan


def reason_not_to_scan(bound: BoundStatement) -> str | None:
    """Why a peer that always rewrites files leaves out a scan; None to run it."""
    is_scan = bound.statement.kind is Kind.SCAN
    return NOTHING_TO_READ if is_scan and bound.statement.statements_before > _REWRITES else None


class Peer(Protocol):
    """One engine with one table, in its own process."""

    @property
    def table_folder(self) -> Path:
        """The folder of the table's files; a statement's output is the new files in it."""
        ...

    def setup(self, files: Sequence[Path]) -> None:
        """Create the table from the input: one data file for each input file, rows in order."""
        ...

    def reason_to_leave_out(self, bound: BoundStatement) -> str | None:
        """Why the peer cannot run a statement; None when it can."""
        ...

    def run(self, bound: BoundStatement) -> Facts:
        """Run a statement. Only this call is timed."""
        ...

    def settle(self, facts: Facts) -> Facts:
        """Complete the facts, after the time has been taken."""
        ...

    def restore(self) -> None:
        """Restore the table that `setup` created."""
        ...

    def live_files(self) -> frozenset[str] | None:
        """Names of the table's current data files, for a peer that rewrites files.

        None where statements leave few unused bytes, as in merge-on-read.
        """
        ...

    def digest(self, where: str = "") -> Digest:
        """The digest of all rows, or of those of a condition, as the engine reads them."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Versions and settings that the numbers depend on."""
        ...

    def close(self) -> None:
        """Stop what the peer started."""
        ...
