"""Rewrite a data file by surgery: what the edits do not touch is copied as bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.parquet.compact import items, value
from icefloe.parquet.fields import Chunk, Group, Meta
from icefloe.parquet.footer import MAGIC, footer_bytes, group_rows
from icefloe.parquet.shape import columns_of
from icefloe.parquet.surgery import GroupChange, Spliced, Surgery, cannot_copy
from icefloe.tasks.arrays import with_values_below_nulls
from icefloe.tasks.edits import Edits
from icefloe.tasks.metrics import NanCounter, column_metrics, split_offsets
from icefloe.tasks.old_file import OldFile
from icefloe.tasks.write import FileLayout, new_name, open_new, refuse_nulls

_LEAST_COPIED = 0.1  # of the file; below it, a plain rewrite costs the same
_MAX_GROUP_BYTES = 512 * 1024 * 1024  # of the columns of a row group that are decoded at once
_MAX_GROUP_ROWS = 64 * 1024 * 1024  # PyArrow writes no larger row group
_MAX_DECODED_BYTES = 512 * 1024 * 1024  # of the rows of a row group, held until they are encoded
_TOO_LARGE = "a row group to encode is too large to be decoded at once"


class CannotOperateError(Exception):
    """The file turned out to be one that has to be written as a whole; nothing was left behind."""


@dataclass(frozen=True)
class Operation:
    """One file, its edits, and what they mean for each of its row groups."""

    file: OldFile
    edits: Edits
    layout: FileLayout
    surgery: Surgery
    changes: tuple[GroupChange, ...]

    @staticmethod
    def of(file: OldFile, edits: Edits, layout: FileLayout) -> Operation:
        """Look what would be copied."""
        updated = frozenset(edits.assigned)
        changes = tuple(
            GroupChange(
                edits.rows_left(start, rows),
                updated if edits.has_updates(start, rows) else frozenset(),
            )
            for start, rows in file.groups
        )
        surgery = Surgery.plan(file.bytes, layout.schema, file.names, layout.parquet)
        return Operation(file, edits, layout, surgery, changes)

    def why_not(self) -> str | None:
        """Why the file has to be, or is better, written as a whole; None when it is not."""
        file = self.file.bytes
        reason = cannot_copy(file)
        if reason:
            return reason
        if is_cut_anew(file.size, self.layout.target_file_bytes):
            return "the file is larger than the table wants its files"
        return too_large(self.file, self.surgery, self.changes) or little_left(
            self.surgery, self.changes
        )

    def run(self) -> list[dict[str, object]]:
        """Write the new file; what it is, for the driver."""
        name = new_name(self.layout)
        path = f"{self.layout.folder}/{name}"
        rows = _Rows(self.file, self.edits)
        sink = open_new(self.layout.filesystem, path)
        try:
            with sink:
                spliced = self.surgery.run(sink, self.changes, rows.of_group)
                if sink.tell() != spliced.size:
                    raise ValueError(f"{path} has {sink.tell()} bytes, not {spliced.size}")
            return [self._result(name, spliced, rows)]
        except BaseException:
            with suppress(OSError):
                self.layout.filesystem.delete_file(path)
            raise

    def _result(self, name: str, spliced: Spliced, rows: _Rows) -> dict[str, object]:
        footer = pq.read_metadata(pa.BufferReader(MAGIC + footer_bytes(spliced.footer)))
        kept = self.surgery.kept(self.changes)
        whole = frozenset.intersection(*kept)
        partly = frozenset.union(*kept) - whole
        nans = [rows.after[name].counts for name in rows.after if name not in partly]
        return {
            "path": f"{self.layout.location}/{name}",
            "partition": (),
            "rows": footer.num_rows,
            "size": spliced.size,
            "columns": {path: vars(metrics) for path, metrics in column_metrics(footer).items()},
            "nans": {path: count for counts in nans for path, count in counts.items()},
            "split_offsets": split_offsets(footer),
            "bytes_copied": spliced.bytes_copied,
            "row_groups_copied": spliced.groups_copied,
            "copied": {
                "whole": whole,
                "partly": {name: rows.nans_added(name) for name in partly},
                "loses_a_group": self._loses_a_group(),
            },
        }

    def _loses_a_group(self) -> bool:
        """Whether a row group goes without being decoded."""
        return any(
            rows and not change.rows
            for change, (_, rows) in zip(self.changes, self.file.groups, strict=True)
        )


@dataclass
class _Rows:
    """Gives the rows to encode, and counts the NaN in each column before and after."""

    file: OldFile
    edits: Edits
    before: dict[str, NanCounter] = field(default_factory=lambda: defaultdict(NanCounter))
    after: dict[str, NanCounter] = field(default_factory=lambda: defaultdict(NanCounter))

    def of_group(self, number: int, names: Sequence[str]) -> pa.Table:
        """Some columns of a row group, with the edits applied."""
        parts: list[pa.Table] = []
        held = 0
        for start, old in self.file.group(number, names):
            new = self.edits.apply(old, start)
            refuse_nulls(new, new.schema)
            new = with_values_below_nulls(new)
            for name in names:
                self.before[name].add(old.select([name]))
                self.after[name].add(new.select([name]))
            parts.append(new)
            held += new.nbytes
            if held > _MAX_DECODED_BYTES:
                raise CannotOperateError(_TOO_LARGE)
        return pa.concat_tables(parts)

    def nans_added(self, name: str) -> dict[str, int]:
        """How many more NaN there are now, by the path of the leaf."""
        before = self.before[name].counts
        return {path: count - before[path] for path, count in self.after[name].counts.items()}


def too_large(file: OldFile, surgery: Surgery, changes: Sequence[GroupChange]) -> str | None:
    """Why a file with such changes has to be written as a whole; None when it has not."""
    to_encode = _to_encode(file, surgery, changes)
    large = any(n > _MAX_GROUP_ROWS or size > _MAX_GROUP_BYTES for n, size in to_encode)
    return _TOO_LARGE if large else None


def little_left(surgery: Surgery, changes: Sequence[GroupChange]) -> str | None:
    """Why a file with such changes is better written as a whole; None when it is not."""
    if surgery.bytes_kept(changes) < _LEAST_COPIED * surgery.file.size:
        return "the changes leave little of the file as it is"
    return None


def _to_encode(
    file: OldFile, surgery: Surgery, changes: Sequence[GroupChange]
) -> Iterator[tuple[int, int]]:
    """Rows of each row group that has columns to encode, and the bytes of these columns."""
    old = {column.name: column.leaves for column in columns_of(file.bytes.footer)}
    leaves = {name: old[there] for name, there in file.names.items()}
    kept = surgery.kept(changes)
    for group, change, copied in zip(file.bytes.groups, changes, kept, strict=True):
        fresh = [p.name for p in surgery.columns if p.name not in copied]
        if change.rows and fresh:
            chunks = items(group, Group.COLUMNS)
            metas = [value(chunks[i], Chunk.META) for name in fresh for i in leaves.get(name, ())]
            yield group_rows(group), sum(value(meta, Meta.UNCOMPRESSED) for meta in metas)


def is_cut_anew(size: int, target: int) -> bool:
    """Whether a file that is rewritten becomes several: it is larger than the table wants them."""
    return size > 2 * target
