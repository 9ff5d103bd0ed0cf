"""What expiring and looking for orphans did, for people or programs."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from icefloe.cli.output import Format, Output, stdout
from icefloe.cli.records import of_dicts
from icefloe.cli.told import count, size
from icefloe.results import ExpireResult, OrphansResult


def write_expired(result: ExpireResult, output: Output) -> None:
    """`expire: 2 snapshots gone, 1 kept in 0.1 s; 1 data file and 2 manifests deleted, 9.1 kB`."""
    if output.format is not Format.TABLE:
        output.fields(asdict(result))
        return
    snapshots = count(len(result.snapshots_expired), "snapshot")
    parts = [f"expire: {snapshots} gone, {result.snapshots_kept} kept in {result.duration_s:.1f} s"]
    if result.refs_removed:
        parts.append(f"no longer there: {', '.join(result.refs_removed)}")
    kinds = {
        "data file": result.data_files_deleted,
        "delete file": result.delete_files_deleted,
        "manifest": result.manifests_deleted,
        "manifest list": result.manifest_lists_deleted,
        "statistics file": result.statistics_files_deleted,
    }
    files = [count(number, noun) for noun, number in kinds.items() if number]
    if files:
        parts.append(f"{', '.join(files)} deleted, {size(result.bytes_deleted)}")
    if result.files_failed:
        failed = count(len(result.files_failed), "file")
        parts.append(f"{failed} could not be deleted: {', '.join(result.files_failed)}")
    if result.files_kept:
        kept = count(len(result.files_kept), "file")
        parts.append(f"{kept} left, which may not be the table's: {', '.join(result.files_kept)}")
    stdout().print(Text("; ".join(parts)))


def write_orphans(result: OrphansResult, location: str, output: Output) -> None:
    """A table of the files, and whether they are gone."""
    if output.format is not Format.TABLE:
        output.fields(asdict(result))
        return
    failed = set(result.files_failed)
    if result.files:
        output.records(
            of_dicts(
                [
                    {
                        "file": file.removeprefix(f"{location}/"),
                        "deleted": not result.dry_run and file not in failed,
                    }
                    for file in result.files
                ]
            )
        )
    files = f"{count(len(result.files), 'file')}, {size(result.bytes)}"
    if not result.files:
        told = "nothing to remove"
    elif result.dry_run:
        told = f"{files}: listed only, --delete removes them"
    else:
        deleted = f"{count(result.files_deleted, 'file')}, {size(result.bytes_deleted)}"
        told = f"{deleted} deleted"
        told += f"; {count(len(failed), 'file')} could not be" if failed else ""
    if result.files_too_young:
        told += f"; {count(result.files_too_young, 'file')} too young to tell"
    if result.files_unrecognised:
        told += f"; {count(result.files_unrecognised, 'file')} outside the table's location left, "
        told += "which Iceberg writers do not name so: --folder takes them too"
    stdout().print(Text(f"orphans: {told}"))
