"""Texts as tokens, for full text search; indexes, queries and texts without an index alike.

A token is a run of letters and digits in lower case, after Unicode's compatibility normalization.
Chinese, Japanese and Korean text has no such words: each pair of neighbouring characters is a
token, and so is a character that stands alone. There is no Python loop over texts or tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TOKENIZER = 1  # changes when texts get other tokens: indexes of another number are not used
_MOST_BYTES = 255  # of a token; longer ones are left out
_CHUNK_BYTES = 4 * 2**20
_CHUNK_ROWS = 2**20
_PAGE = 256  # code points that are classified at a time
_BETWEEN = 0  # the character that separates texts, which ends all that depends on neighbours
_SEPARATOR, _WORD, _PAIRED, _IGNORED = range(4)
_PAIRED_RANGES = (
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303C),
    (0x3041, 0x3096),  # Hiragana
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),  # Katakana
    (0x30FC, 0x30FF),
    (0x3105, 0x312F),  # Bopomofo
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),  # Hangul
    (0xF900, 0xFAFF),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFD),
)
_LOWER = np.arange(256, dtype=np.uint8)
_LOWER[ord("A") : ord("Z") + 1] += 32
_LOWER[[code for code in range(256) if code > 127 or not chr(code).isalnum()]] = 0

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Tokens:
    """The tokens of some rows, in the order of the texts."""

    terms: pa.LargeStringArray  # each token once
    codes: Numbers  # the index in `terms` of each token
    rows: Numbers  # the row of each token, ascending
    count: int  # rows

    def codes_of(self, terms: Sequence[str]) -> list[int]:
        """The code of each term; -1 if no row has it."""
        found = pc.index_in(pa.array(terms, pa.large_string()), value_set=self.terms)
        return [int(code) for code in found.fill_null(-1).to_pylist()]

    def rows_with(self, phrase: Sequence[str]) -> Flags:
        """Which rows have some tokens one after the other."""
        mask = np.zeros(self.count, bool)
        wanted = self.codes_of(phrase)
        places = max(0, len(self.codes) - len(wanted) + 1)
        if -1 in wanted or not places:
            return mask
        hits = self.rows[:places] == self.rows[len(wanted) - 1 :]
        for offset, code in enumerate(wanted):
            hits &= self.codes[offset : offset + places] == code
        mask[self.rows[:places][hits]] = True
        return mask


class Tokenizer:
    """Splits texts into tokens, as the parameters of an index say."""

    def __init__(self, stem: str | None = None, stop_words: Sequence[str] = ()) -> None:
        self._stop_words = pa.array(stop_words, pa.large_string())
        self._stemmer: Any = import_module("snowballstemmer").stemmer(stem) if stem else None
        self._stems: dict[str, str] = {}
        self._classes = np.zeros(0x110000, np.uint8)
        self._has_page = np.zeros(0x110000 // _PAGE, bool)

    def tokens(self, texts: pa.Array) -> Tokens:
        """The tokens of some texts, which may be NULL."""
        texts = texts.cast(pa.large_string()).fill_null("")
        words, rows = self._words(texts)
        encoded = words.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return self._filtered(Tokens(encoded.dictionary, codes, rows, len(texts)))

    def words(self, text: str) -> list[str]:
        """The tokens of one text, in order."""
        tokens = self.tokens(pa.array([text]))
        return [tokens.terms[code].as_py() for code in tokens.codes.tolist()]

    def _words(self, texts: pa.LargeStringArray) -> tuple[pa.LargeStringArray, Numbers]:
        offsets, data = _content(texts)
        if not (data & 0x80).any():
            return _ascii_words(offsets, data)
        text = _normalized(offsets, data)
        characters = np.frombuffer(text.encode("utf-32-le"), "<u4")
        classes = self._classes_of(characters)
        starts = np.append(0, np.flatnonzero(characters == _BETWEEN) + 1)
        if (classes == _IGNORED).any():
            kept = classes != _IGNORED
            starts = _sums(kept)[starts]
            characters, classes = characters[kept], classes[kept]
            text = characters.tobytes().decode("utf-32-le")
        data = np.frombuffer(text.encode(), np.uint8)
        return _unicode_words(starts, classes, data)

    def _classes_of(self, characters: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        used = np.bincount(characters // _PAGE, minlength=len(self._has_page)) > 0
        for page in np.flatnonzero(used & ~self._has_page).tolist():
            first = page * _PAGE
            self._classes[first : first + _PAGE] = [
                _class_of(code) for code in range(first, first + _PAGE)
            ]
            self._has_page[page] = True
        return self._classes[characters]

    def _filtered(self, tokens: Tokens) -> Tokens:
        """Without tokens that are too long and stop words; with stems."""
        terms = tokens.terms
        left_out = pc.greater(pc.binary_length(terms), _MOST_BYTES)
        if len(self._stop_words):
            left_out = pc.or_(left_out, pc.is_in(terms, value_set=self._stop_words))
        codes, rows = tokens.codes, tokens.rows
        if pc.any(left_out).as_py():
            dropped = left_out.to_numpy(zero_copy_only=False)
            new_codes = np.cumsum(~dropped) - 1
            kept = ~dropped[codes]
            codes, rows = new_codes[codes[kept]], rows[kept]
            terms = terms.filter(pc.invert(left_out))
        if self._stemmer is not None:
            stems = pa.array(self._stemmed(terms.to_pylist()), pa.large_string())
            encoded = stems.dictionary_encode()
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)[codes]
            terms = encoded.dictionary
        return Tokens(terms, codes, rows, tokens.count)

    def _stemmed(self, words: list[str]) -> list[str]:
        new = [word for word in words if word not in self._stems]
        self._stems.update(zip(new, self._stemmer.stemWords(new), strict=True))
        return [self._stems[word] for word in words]


def chunks(texts: pa.LargeStringArray) -> Iterator[tuple[int, pa.LargeStringArray]]:
    """Slices of a column that are tokenized at a time, each with its first row."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    first = 0
    while first < len(texts):
        limit = offsets[first] + _CHUNK_BYTES
        end = int(np.searchsorted(offsets, limit, side="right")) - 1
        end = min(max(end, first + 1), first + _CHUNK_ROWS)
        yield first, texts.slice(first, end - first)
        first = end


def _content(texts: pa.LargeStringArray) -> tuple[Numbers, npt.NDArray[np.uint8]]:
    """Where each text starts and ends in the bytes of all of them."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset :][: len(texts) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds - bounds[0], content[bounds[0] : bounds[-1]]


def _normalized(offsets: Numbers, data: npt.NDArray[np.uint8]) -> str:
    """All texts in lower case and normalized, with a separator between two of them.

    PyArrow's normalization leaves characters decomposed. Spark may store any bytes as a string.
    """
    data = np.where(data == _BETWEEN, np.uint8(ord(" ")), data)
    joined = np.insert(data, offsets[1:-1], _BETWEEN).tobytes().decode(errors="replace")
    return unicodedata.normalize("NFKC", joined).lower()


def _is_lead(data: npt.NDArray[np.uint8]) -> Flags:
    """Which bytes of UTF-8 begin a character."""
    leads: Flags = (data & 0xC0) != 0x80
    return leads


def _sums(flags: Flags) -> Numbers:
    """How many are set before each place, and before the end."""
    sums = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=sums[1:])
    return sums


def _class_of(code: int) -> int:
    if any(first <= code <= last for first, last in _PAIRED_RANGES):
        return _PAIRED
    category = unicodedata.category(chr(code))
    if category == "Cf" or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
        return _IGNORED  # invisible: joiners, soft hyphens, variation selectors
    return _WORD if category[0] in "LNM" else _SEPARATOR


# -------------------------------------------------------------------------------------------------
# Runs of characters as strings


def _ascii_words(
    offsets: Numbers, data: npt.NDArray[np.uint8]
) -> tuple[pa.LargeStringArray, Numbers]:
    lower = _LOWER[data]
    inside = lower != 0
    starts, ends = _runs(inside, offsets[:-1])
    return _strings(lower[inside], ends - starts), _rows_of(starts, offsets)


def _runs(inside: Flags, row_starts: Numbers) -> tuple[Numbers, Numbers]:
    """Where runs start and end; a run ends where a row does."""
    padded = np.zeros(len(inside) + 2, bool)
    padded[1:-1] = inside
    is_start = padded[1:] & ~padded[:-1]
    is_end = padded[:-1] & ~padded[1:]
    within = row_starts[(row_starts > 0) & (row_starts < len(inside))]
    joined = within[inside[within] & inside[within - 1]]
    is_start[joined] = True
    is_end[joined] = True
    return np.flatnonzero(is_start), np.flatnonzero(is_end)


def _rows_of(starts: Numbers, offsets: Numbers) -> Numbers:
    """The row of each token, which starts at one of `starts`."""
    counts = np.diff(np.searchsorted(starts, offsets))
    return np.repeat(np.arange(len(offsets) - 1), counts)


def _strings(data: npt.NDArray[np.uint8], lengths: Numbers) -> pa.LargeStringArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(lengths), buffers)


def _unicode_words(
    row_starts: Numbers, classes: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8]
) -> tuple[pa.LargeStringArray, Numbers]:
    """The tokens of characters, whose UTF-8 bytes are `data`."""
    starts, ends = _runs(classes == _WORD, row_starts)
    pair_starts, pair_ends = _runs(classes == _PAIRED, row_starts)
    sizes = pair_ends - pair_starts
    counts = np.maximum(sizes - 1, 1)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = np.repeat(pair_starts, counts) + within
    all_starts = np.concatenate([starts, pairs])
    all_ends = np.concatenate([ends, pairs + np.repeat(np.minimum(sizes, 2), counts)])
    order = np.argsort(all_starts, kind="stable")
    first, last = all_starts[order], all_ends[order]
    places = np.concatenate([np.flatnonzero(_is_lead(data)), [len(data)]])
    lengths = places[last] - places[first]
    gaps = places[first] - (np.cumsum(lengths) - lengths)
    content = data[np.repeat(gaps, lengths) + np.arange(int(lengths.sum()))]
    return _strings(content, lengths), _rows_of(first, np.append(row_starts, len(classes)))
