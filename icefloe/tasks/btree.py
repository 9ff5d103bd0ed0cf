"""The sidecar of a btree index: the codes of a data file's rows, sorted, with their positions."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tasks.index_codes import Codes, choose_coder, encode, is_stored_as
from icefloe.tasks.sidecars import (
    IndexedFile,
    IndexToWrite,
    NotIndexableError,
    SidecarContent,
    indexed_columns,
)

BATCH_ROWS = 16_384
# Sections: the first code of each batch, and the compressed positions of rows without an entry.
FENCES, NULLS = b"fences", b"nulls"
_MAX_NULLS = 1_000_000
_MAX_ROWS = 2**32 - 1
_SCHEMA = pa.schema([pa.field("code", pa.uint64(), False), pa.field("pos", pa.uint32(), False)])

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
    header = {"coder": coder.kind, "prefix": coder.prefix.hex(), "batch_rows": BATCH_ROWS}
    return btree_content(codes[order], positions[order], nulls, header)


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
