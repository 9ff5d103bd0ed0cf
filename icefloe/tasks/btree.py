"""The sidecars of btree indexes: the codes of a data file's rows, sorted, with their positions."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tasks.index_codes import (
    Coder,
    Codes,
    choose_coder,
    code_class,
    encode,
    fits,
    is_stored_as,
)
from icefloe.tasks.messages import Positions
from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexedFile,
    IndexToWrite,
    NotIndexableError,
    RowEdits,
    Sidecar,
    SidecarContent,
    SidecarPlace,
    combined,
    indexed_columns,
)

BATCH_ROWS = 16_384
# Sections: the first code of each batch, and the compressed positions of rows without an entry.
FENCES, NULLS = b"fences", b"nulls"
_MAX_NULLS = 1_000_000
_MAX_ROWS = 2**32 - 1
_SCHEMA = pa.schema([pa.field("code", pa.uint64(), False), pa.field("pos", pa.uint32(), False)])

LAST_CODE = 2**64 - 1

RowNumbers = npt.NDArray[np.uint32]


def build_btree(index: IndexToWrite, file: IndexedFile) -> SidecarContent:
    """The content of the sidecar of one data file."""
    if file.rows > _MAX_ROWS:
        raise NotIndexableError(f"it has {file.rows} rows")
    columns = indexed_columns(index, file)
    for column, kind in zip(columns, index.types, strict=True):
        if not is_stored_as(column.type, kind):
            raise NotIndexableError(f"a column of type {kind} is stored as {column.type}")
    valid = np.ones(file.rows, bool)
    for column in columns:
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
    positions = np.flatnonzero(valid).astype(np.uint32)
    nulls = np.flatnonzero(~valid).astype(np.uint32)
    if len(nulls):
        mask = pa.array(valid)
        columns = [column.filter(mask) for column in columns]
    coder = choose_coder(columns)
    codes = encode(columns, coder)
    order = np.argsort(codes, kind="stable")
    return btree_content(codes[order], positions[order], nulls, _header(coder))


def btree_content(
    codes: Codes, positions: RowNumbers, nulls: RowNumbers, header: dict[str, object]
) -> SidecarContent:
    """The content of a sidecar with these sorted codes; `nulls` are rows without a code."""
    starts = range(0, len(codes), BATCH_ROWS)
    batches = [
        pa.record_batch(
            [
                pa.array(codes[start : start + BATCH_ROWS]),
                pa.array(positions[start : start + BATCH_ROWS]),
            ],
            schema=_SCHEMA,
        )
        for start in starts
    ]
    sections = {FENCES: codes[::BATCH_ROWS].astype("<u8").tobytes()}
    if len(nulls) <= _MAX_NULLS:
        sections[NULLS] = zlib.compress(nulls.astype("<u4").tobytes(), 1)
    return SidecarContent(batches, {**header, "entries": len(codes)}, sections)


def remap_btree(
    index: IndexToWrite, old: SidecarPlace, edits: RowEdits, rows: int
) -> SidecarContent | None:
    """The content for a file with the rows of another and some edits; None if it is not certain.

    Codes of rows that stay are those of the other file's sidecar, so no key is read. `rows` is the
    number that must come out. Raises FileNotFoundError or DamagedSidecarError.
    """
    has_new_keys = not edits.values.keys().isdisjoint(index.field_ids) and len(edits.updated) > 0
    if has_new_keys and not edits.values.keys() >= set(index.field_ids):
        return None
    with old.open() as sidecar:
        table = CodeTable.of(sidecar, index.types)
        if table.nulls is None:
            return None
        codes, positions = table.everything()
        nulls = table.nulls
    dropped = [edits.gone, edits.updated] if has_new_keys else [edits.gone]
    for gone in dropped:
        kept = ~np.isin(positions, gone)
        codes, positions = codes[kept], positions[kept]
        nulls = nulls[~np.isin(nulls, gone)]
    if has_new_keys:
        added = _encoded(index, table.coder, edits)
        if added is None:
            return None
        codes = np.concatenate([codes, added[0]])
        positions = np.concatenate([positions, added[1]])
        nulls = np.sort(np.concatenate([nulls, added[2]]))
    if len(codes) + len(nulls) != rows:
        return None
    positions, nulls = (p - np.searchsorted(edits.gone, p) for p in (positions, nulls))
    order = np.lexsort((positions, codes)) if has_new_keys else slice(None)
    return btree_content(
        codes[order],
        positions[order].astype(np.uint32),
        nulls.astype(np.uint32),
        _header(table.coder),
    )


def _encoded(
    index: IndexToWrite, coder: Coder, edits: RowEdits
) -> tuple[Codes, Positions, Positions] | None:
    """Codes and positions of updated rows, and the positions of those that have no code.

    None if the new keys do not fit the coder of the file.
    """
    columns = [combined(edits.values[field_id]) for field_id in index.field_ids]
    if not all(map(is_stored_as, [c.type for c in columns], index.types)):
        return None
    valid = np.ones(len(edits.updated), bool)
    for column in columns:
        valid &= column.is_valid().to_numpy(zero_copy_only=False)
    columns = [column.filter(pa.array(valid)) for column in columns]
    if not fits(columns, coder):
        return None
    return encode(columns, coder), edits.updated[valid], edits.updated[~valid]


def _header(coder: Coder) -> dict[str, object]:
    return {"coder": coder.kind, "prefix": coder.prefix.hex(), "batch_rows": BATCH_ROWS}


# -------------------------------------------------------------------------------------------------
# Look up codes


@dataclass(frozen=True, slots=True)
class CodeTable:
    """The sorted codes of one data file."""

    sidecar: Sidecar
    rows: int  # of the data file
    entries: int
    coder: Coder
    fences: Codes
    nulls: Positions | None  # rows with NULL in an indexed column; None: they are too many

    @staticmethod
    def of(sidecar: Sidecar, types: Iterable[str]) -> CodeTable:
        """Read what a look-up needs of the header; raises DamagedSidecarError.

        `types` are those that the table's columns have now; values of other types have other codes.
        """
        header = sidecar.header
        if list(map(code_class, header["types"])) != list(map(code_class, types)):
            raise DamagedSidecarError(f"{sidecar.path} has codes of other types")
        fences = np.frombuffer(sidecar.sections[FENCES], "<u8")
        if len(fences) != len(sidecar.checksums) or header["batch_rows"] != BATCH_ROWS:
            raise DamagedSidecarError(f"{sidecar.path} lacks batches")
        nulls = None
        if NULLS in sidecar.sections:
            rows = np.frombuffer(zlib.decompress(sidecar.sections[NULLS]), "<u4")
            nulls = _within(sidecar, rows).astype(np.int64)
        return CodeTable(
            sidecar,
            header["rows"],
            header["entries"],
            Coder(header["coder"], bytes.fromhex(header["prefix"])),
            fences,
            nulls,
        )

    def estimate(self, first: int, last: int) -> int:
        """An upper bound of the number of entries with these codes, by the fences alone."""
        start, end = self._batches(first, last)
        return min(self.entries, (end - start) * BATCH_ROWS)

    def between(self, first: int, last: int) -> Positions:
        """The rows with codes in a range, both ends included; in no order."""
        found = [np.empty(0, np.int64)]
        start, end = self._batches(first, last)
        for number in range(start, end):
            codes, positions = self._batch(number)
            left = np.searchsorted(codes, np.uint64(first), side="left")
            right = np.searchsorted(codes, np.uint64(last), side="right")
            found.append(positions[left:right].astype(np.int64))
        return np.concatenate(found)

    def everything(self) -> tuple[Codes, Positions]:
        """All codes, sorted, and the positions of their rows."""
        batches = [self._batch(number) for number in range(len(self.fences))]
        return (
            np.concatenate([np.empty(0, np.uint64), *(codes for codes, _ in batches)]),
            np.concatenate([np.empty(0, np.int64), *(rows for _, rows in batches)]),
        )

    def among(self, wanted: Codes) -> Positions:
        """The rows with one of some codes, which are sorted; in no order."""
        return self.matches(wanted)[1]

    def matches(self, wanted: Codes) -> tuple[npt.NDArray[np.int64], Positions]:
        """The index in `wanted`, which is sorted, and the position of each row with such a code."""
        starts = np.maximum(np.searchsorted(self.fences, wanted, side="left") - 1, 0)
        ends = np.searchsorted(self.fences, wanted, side="right")
        # Code i may be in batches starts[i] to ends[i] - 1: nearly always in one.
        counts = np.maximum(ends - starts, 0)
        indices = np.repeat(np.arange(len(wanted)), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        batches = np.repeat(starts, counts) + np.arange(len(indices)) - first
        order = np.argsort(batches, kind="stable")
        bounds = np.flatnonzero(np.diff(batches[order], prepend=-1, append=-1))
        found_codes, found_positions = [], []
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            of_batch = indices[order[begin:end]]
            codes, positions = self._batch(int(batches[order[begin]]))
            left = np.searchsorted(codes, wanted[of_batch], side="left")
            right = np.searchsorted(codes, wanted[of_batch], side="right")
            hits = right - left
            found_codes.append(np.repeat(of_batch, hits))
            offsets = np.arange(int(hits.sum())) - np.repeat(np.cumsum(hits) - hits, hits)
            found_positions.append(positions[np.repeat(left, hits) + offsets].astype(np.int64))
        empty = np.empty(0, np.int64)
        return (
            np.concatenate([empty, *found_codes]),
            np.concatenate([empty, *found_positions]),
        )

    def _batches(self, first: int, last: int) -> tuple[int, int]:
        """The batches that may have codes in a range: the first, and the one after the last."""
        if first > last or not len(self.fences):
            return 0, 0
        start = max(int(np.searchsorted(self.fences, np.uint64(first), side="left")) - 1, 0)
        end = int(np.searchsorted(self.fences, np.uint64(last), side="right"))
        return start, max(start, end)

    def _batch(self, number: int) -> tuple[Codes, RowNumbers]:
        batch = self.sidecar.batch(number)
        positions = batch.column(1).to_numpy(zero_copy_only=False)
        return batch.column(0).to_numpy(zero_copy_only=False), _within(self.sidecar, positions)


def _within(sidecar: Sidecar, positions: RowNumbers) -> RowNumbers:
    """The positions, if the data file has them; raises DamagedSidecarError."""
    if len(positions) and int(positions.max()) >= sidecar.header["rows"]:
        raise DamagedSidecarError(f"{sidecar.path} has rows past the end of its data file")
    return positions
