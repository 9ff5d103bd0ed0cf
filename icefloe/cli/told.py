"""The result of a statement in one line, for people."""

from __future__ import annotations

from icefloe.results import DmlResult


def told(result: DmlResult) -> str:
    """`merge: 3 inserted, 2 updated in 0.9 s; 2 of 8 files read; 1 data file added; …`."""
    parts = [f"{result.operation}: {rows_told(result)} in {result.duration_s:.1f} s"]
    known = result.files_scanned + result.files_skipped
    if known:
        parts.append(f"{result.files_scanned:,} of {count(known, 'file')} read")
    parts += [text for text in (files_told(result),) if text]
    if result.bytes_written:
        parts.append(f"{size(result.bytes_written)} written")
    if result.snapshot_id is not None:
        parts.append(f"snapshot {result.snapshot_id}")
    return "; ".join(parts)


def rows_told(result: DmlResult) -> str:
    """How many rows were inserted, updated and deleted."""
    counts = {
        "inserted": result.rows_inserted,
        "updated": result.rows_updated,
        "deleted": result.rows_deleted,
    }
    found = [f"{number:,} {what}" for what, number in counts.items() if number]
    if result.operation == "compact" and result.snapshot_id is not None:
        found = [f"{count(result.rows_copied, 'row')} rewritten"]
    return ", ".join(found) or "nothing to change"


def files_told(result: DmlResult) -> str:
    """How many files were added and removed; empty when none."""
    added = _files(result.data_files_added, result.delete_files_added)
    removed = _files(result.data_files_removed, result.delete_files_removed)
    return ", ".join(
        f"{files} {what}" for files, what in ((added, "added"), (removed, "removed")) if files
    )


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _files(data: int, deletes: int) -> str:
    kinds = ((data, "data file"), (deletes, "delete file"))
    return " and ".join(count(number, noun) for number, noun in kinds if number)
