"""Look up codes in the sidecars of btree indexes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from icefloe.deletes.row_positions import as_bitmap
from icefloe.indexes.sidecars import DamagedSidecarError, Sidecar
from icefloe.tasks.btree import BATCH_ROWS, FENCES, NULLS
from icefloe.tasks.index_codes import Coder, Codes

LAST_CODE = 2**64 - 1
_Positions = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class CodeTable:
    """The sorted codes of one data file."""

    sidecar: Sidecar
    rows: int  # of the data file
    entries: int
    types: tuple[str, ...]
    coder: Coder
    fences: Codes
    nulls: BitMap64 | None  # rows with NULL in an indexed column; None: they are too many

    @staticmethod
    def of(sidecar: Sidecar) -> CodeTable:
        """Read what a look-up needs of the header; raises DamagedSidecarError."""
        header = sidecar.header
        fences = np.frombuffer(sidecar.sections[FENCES], "<u8")
        if len(fences) != len(sidecar.checksums) or header["batch_rows"] != BATCH_ROWS:
            raise DamagedSidecarError("it lacks batches")
        nulls = None
        if NULLS in sidecar.sections:
            rows = np.frombuffer(zlib.decompress(sidecar.sections[NULLS]), "<u4")
            nulls = as_bitmap(rows.astype(np.int64))
        return CodeTable(
            sidecar,
            header["rows"],
            header["entries"],
            tuple(header["types"]),
            Coder(header["coder"], bytes.fromhex(header["prefix"])),
            fences,
            nulls,
        )

    def estimate(self, first: int, last: int) -> int:
        """An upper bound of the number of entries with these codes, by the fences alone."""
        start, end = self._batches(first, last)
        return min(self.entries, (end - start) * BATCH_ROWS)

    def between(self, first: int, last: int) -> BitMap64:
        """The rows with codes in a range, both ends included."""
        found = BitMap64()
        start, end = self._batches(first, last)
        for number in range(start, end):
            codes, positions = self._batch(number)
            left = np.searchsorted(codes, np.uint64(first), side="left")
            right = np.searchsorted(codes, np.uint64(last), side="right")
            found |= as_bitmap(positions[left:right].astype(np.int64))
        return found

    def among(self, wanted: Codes) -> BitMap64:
        """The rows with one of some codes, which are sorted."""
        _, positions = self.matches(wanted)
        return as_bitmap(positions)

    def matches(self, wanted: Codes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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

    def _batch(self, number: int) -> tuple[Codes, _Positions]:
        batch = self.sidecar.batch(number)
        return (
            batch.column(0).to_numpy(zero_copy_only=False),
            batch.column(1).to_numpy(zero_copy_only=False),
        )
