"""The sidecars of bm25 indexes: for each token of a data file its rows, and how often they have it.

The layout is an Arrow IPC file with a row and a count per token and row, sorted by token and row.
The header has the tokens with the place of their first row, and the number of tokens of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexedFile,
    IndexToWrite,
    NotIndexableError,
    Sidecar,
    SidecarContent,
    indexed_columns,
)
from icefloe.tasks.tokens import TOKENIZER, Numbers, Tokenizer, Tokens, chunks

BATCH_ROWS = 65_536
TERMS, LENGTHS = b"terms", b"lengths"  # sections
_MAX_ROWS = 2**32 - 1
_MOST_TIMES = 2**16 - 1  # that a row counts to have a token
_SCHEMA = pa.schema([pa.field("doc", pa.uint32(), False), pa.field("tf", pa.uint16(), False)])

Counts = npt.NDArray[np.uint16]
Rows = npt.NDArray[np.uint32]
Postings = tuple[Rows, Counts]  # rows, ascending, and how often each has the token


def tokenizer_of(params: object) -> Tokenizer:
    """The tokenizer of an index with these parameters."""
    given = params if isinstance(params, dict) else {}
    return Tokenizer(given.get("stem"), tuple(given.get("stop_words") or ()))


def build_bm25(index: IndexToWrite, file: IndexedFile) -> SidecarContent:
    """The content of the sidecar of one data file."""
    if file.rows > _MAX_ROWS:
        raise NotIndexableError(f"it has {file.rows} rows")
    [texts] = indexed_columns(index, file)
    if not pa.types.is_large_string(texts.type):
        raise NotIndexableError(f"a column of strings is stored as {texts.type}")
    tokenizer = tokenizer_of(dict(index.params))
    lengths = np.zeros(file.rows, np.uint32)
    parts = []
    for first, part in chunks(texts):
        tokens = tokenizer.tokens(part)
        lengths[first : first + len(part)] = np.bincount(tokens.rows, minlength=len(part))
        parts.append(_Part.of(tokens, first))
    return _content(parts, lengths)


def _content(parts: Sequence[_Part], lengths: npt.NDArray[np.uint32]) -> SidecarContent:
    terms, starts, docs, times = _merged(parts)
    batches = [
        pa.record_batch(
            [pa.array(docs[at : at + BATCH_ROWS]), pa.array(times[at : at + BATCH_ROWS])],
            schema=_SCHEMA,
        )
        for at in range(0, len(docs), BATCH_ROWS)
    ]
    narrow = lengths.astype(np.min_scalar_type(int(lengths.max(initial=0))))
    header = {
        "tokenizer": TOKENIZER,
        "batch_rows": BATCH_ROWS,
        "entries": len(docs),
        "documents": int(np.count_nonzero(lengths)),
        "tokens": int(lengths.sum(dtype=np.int64)),
    }
    sections = {
        TERMS: _as_bytes(pa.table({"term": terms, "start": starts}), "zstd"),
        LENGTHS: _as_bytes(pa.table({"tokens": narrow})),
    }
    return SidecarContent(batches, header, sections)


@dataclass(frozen=True)
class _Part:
    """The postings of some rows, sorted by token and row."""

    terms: pa.LargeStringArray  # in no order
    counts: Numbers  # postings of each term
    docs: Rows
    times: Counts

    @staticmethod
    def of(tokens: Tokens, first: int) -> _Part:
        """Count the tokens of rows from position `first`."""
        bits = max(1, int(tokens.count - 1).bit_length())
        size = len(tokens.terms) << bits
        # Half the bytes are sorted in half the time.
        keys = ((tokens.codes << bits) | tokens.rows).astype("<u4" if size <= 2**32 else "<u8")
        keys.sort()
        places = np.flatnonzero(np.diff(keys, prepend=~keys[:1]))
        times = np.diff(places, append=len(keys))
        distinct = keys[places].astype(np.int64)
        docs = ((distinct & ((1 << bits) - 1)) + first).astype(np.uint32)
        codes = distinct >> bits
        counts = np.bincount(codes, minlength=len(tokens.terms))
        return _Part(tokens.terms, counts, docs, np.minimum(times, _MOST_TIMES).astype(np.uint16))


def _merged(
    parts: Sequence[_Part],
) -> tuple[pa.LargeStringArray, Numbers, Rows, Counts]:
    """The terms in order, where the postings of each start, and all postings."""
    all_terms = pa.chunked_array([part.terms for part in parts], pa.large_string())
    encoded = all_terms.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy(zero_copy_only=False)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    numbers = rank[encoded.indices.to_numpy(zero_copy_only=False)]
    counts = [part.counts for part in parts]
    total = np.zeros(len(order), np.int64)
    np.add.at(total, numbers, np.concatenate([np.empty(0, np.int64), *counts]))
    starts = np.cumsum(total) - total
    docs = np.empty(int(total.sum()), np.uint32)
    times = np.empty(len(docs), np.uint16)
    free = starts.copy()  # where the next posting of each term goes
    done = 0
    for part in parts:
        of_part = numbers[done : done + len(part.terms)]
        done += len(part.terms)
        before = np.cumsum(part.counts) - part.counts
        places = np.repeat(free[of_part] - before, part.counts) + np.arange(len(part.docs))
        docs[places] = part.docs
        times[places] = part.times
        free[of_part] += part.counts
    return encoded.dictionary.take(pa.array(order)), starts, docs, times


def _as_bytes(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


# -------------------------------------------------------------------------------------------------
# Read a sidecar


@dataclass(frozen=True)
class TextIndex:
    """The tokens of one data file and their rows."""

    sidecar: Sidecar
    rows: int  # of the data file
    documents: int  # rows with a token
    tokens: int  # of all rows
    terms: pa.LargeStringArray  # in order
    bounds: Numbers  # where the postings of each term start, and where the last ones end

    @staticmethod
    def of(sidecar: Sidecar) -> TextIndex:
        """Read what a search needs of the header; raises DamagedSidecarError."""
        header = sidecar.header
        if header["tokenizer"] != TOKENIZER or header["batch_rows"] != BATCH_ROWS:
            raise DamagedSidecarError(f"{sidecar.path} is of another version")
        table = pa.ipc.open_stream(sidecar.sections[TERMS]).read_all()
        starts = table.column("start").to_numpy()
        return TextIndex(
            sidecar,
            header["rows"],
            header["documents"],
            header["tokens"],
            table.column("term").combine_chunks(),
            np.append(starts, header["entries"]),
        )

    def lengths(self) -> npt.NDArray[np.unsignedinteger]:
        """The number of tokens of each row."""
        table = pa.ipc.open_stream(self.sidecar.sections[LENGTHS]).read_all()
        lengths: npt.NDArray[np.unsignedinteger] = table.column("tokens").to_numpy()
        if len(lengths) != self.rows:
            raise DamagedSidecarError(f"{self.sidecar.path} lacks rows")
        return lengths

    def frequency(self, term: str) -> int:
        """How many rows have a token."""
        first, last = self._range(term)
        return last - first

    def postings(self, term: str) -> Postings:
        """The rows that have a token, and how often each has it."""
        first, last = self._range(term)
        docs, times = [np.empty(0, np.uint32)], [np.empty(0, np.uint16)]
        for number in range(first // BATCH_ROWS, -(-last // BATCH_ROWS) if first < last else 0):
            batch = self.sidecar.batch(number)
            start = number * BATCH_ROWS
            part = slice(max(0, first - start), last - start)
            docs.append(batch.column(0).to_numpy()[part])
            times.append(batch.column(1).to_numpy()[part])
        rows = np.concatenate(docs)
        if len(rows) != last - first or (len(rows) and int(rows[-1]) >= self.rows):
            raise DamagedSidecarError(f"{self.sidecar.path} has rows past the end of its data file")
        return rows, np.concatenate(times)

    def _range(self, term: str) -> tuple[int, int]:
        """Where the postings of a term start and end."""
        low, high = 0, len(self.terms)
        wanted = term.encode()
        while low < high:
            middle = (low + high) // 2
            if self.terms[middle].as_buffer().to_pybytes() < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self.terms) or self.terms[low].as_py() != term:
            return 0, 0
        return int(self.bounds[low]), int(self.bounds[low + 1])
