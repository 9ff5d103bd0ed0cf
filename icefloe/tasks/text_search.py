"""BM25: the scores of rows for a query, from sidecars and from texts without one.

Scores are Lucene's: k1 1.2, b 0.75, and `ln(1 + (N - df + 0.5) / (df + 0.5))` as the weight of a
token, with the numbers of rows and tokens over all that is searched. They are summed in the order
of the query's tokens, so that a row has the same score wherever it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.tasks.bm25 import Postings, Rows, TextIndex, tokenizer_of
from icefloe.tasks.messages import Positions, Task, TextStatistics, as_batch
from icefloe.tasks.ranking import BestRows, first_rows
from icefloe.tasks.tokens import Tokens, chunks

K1, B = 1.2, 0.75
_BLOCK_ROWS = 2**16  # that are scored at a time

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TextQuery:
    """What a search looks for, as tokens."""

    terms: tuple[str, ...]  # those that add to the score, each once
    weights: tuple[int, ...]  # how often each is in the query
    required: frozenset[str]  # terms that every result has
    excluded: frozenset[str]  # tokens that no result has
    phrases: tuple[tuple[str, ...], ...] = ()  # tokens that every result has one after the other
    excluded_phrases: tuple[tuple[str, ...], ...] = ()

    @property
    def has_phrases(self) -> bool:
        """Whether texts have to be read: tokens of a row in an index have no order."""
        return bool(self.phrases or self.excluded_phrases)


@dataclass(frozen=True)
class TextSearch:
    """What tasks need to score texts."""

    query: TextQuery
    params: Mapping[str, object]  # of the index
    statistics: TextStatistics = field(default_factory=TextStatistics)
    limit: int = 0

    def weight(self, number: int) -> float:
        """How much a term of the query counts."""
        frequency = self.statistics.frequencies[number]
        others = self.statistics.documents - frequency
        return self.query.weights[number] * math.log1p((others + 0.5) / (frequency + 0.5))


# -------------------------------------------------------------------------------------------------
# Scores


def _score(
    search: TextSearch,
    postings: Sequence[Postings],
    excluded: Sequence[Rows],
    lengths: npt.NDArray[np.unsignedinteger],
) -> Scores:
    """The score of each row; 0 for rows that are no results."""
    query, statistics = search.query, search.statistics
    scores = np.zeros(len(lengths))
    found = np.zeros(len(lengths), np.uint16) if query.required else None
    average = statistics.tokens / max(1, statistics.documents)
    norms = K1 * (1 - B + B * (lengths / average)) if len(postings) else lengths
    for number, (rows, times) in enumerate(postings):
        if not len(rows):
            continue
        share = (K1 + 1) * times
        share /= times + norms[rows]
        share *= search.weight(number)
        scores[rows] += share
        if found is not None and query.terms[number] in query.required:
            found[rows] += 1
    if found is not None:
        scores[found < len(query.required)] = 0
    for rows in excluded:
        scores[rows] = 0
    return scores


def score_tokens(search: TextSearch, tokens: Tokens) -> Scores:
    """The scores of rows whose texts have been read."""
    query = search.query
    postings = _postings(tokens, query.terms)
    excluded = [rows for rows, _ in _postings(tokens, sorted(query.excluded))]
    lengths = np.bincount(tokens.rows, minlength=tokens.count).astype(np.uint32)
    scores = _score(search, postings, excluded, lengths)
    if scores.any():
        scores[~matches_phrases(query, tokens)] = 0
    return scores


def matches_phrases(query: TextQuery, tokens: Tokens) -> npt.NDArray[np.bool_]:
    """Which rows have all phrases of a query, and none that it excludes."""
    matches = np.ones(tokens.count, bool)
    for phrase in query.phrases:
        matches &= tokens.rows_with(phrase)
    for phrase in query.excluded_phrases:
        matches &= ~tokens.rows_with(phrase)
    return matches


def _postings(tokens: Tokens, terms: Sequence[str]) -> list[Postings]:
    """The rows with each term, and how often they have it."""
    if not terms:
        return []
    codes = np.array(tokens.codes_of(terms))
    numbers = np.full(len(tokens.terms) + 1, -1)
    numbers[codes] = np.arange(len(terms))  # -1, of absent terms, is the last place
    numbers[-1] = -1
    of_tokens = numbers[tokens.codes]
    among = of_tokens >= 0
    found = []
    for number in range(len(terms)):
        rows = tokens.rows[among & (of_tokens == number)]
        counts = np.bincount(rows, minlength=0)
        present = np.flatnonzero(counts)
        found.append(
            (present.astype(np.uint32), np.minimum(counts[present], 2**16 - 1).astype(np.uint16))
        )
    return found


def best_rows(search: TextSearch, index: TextIndex, deleted: Positions) -> tuple[Positions, Scores]:
    """The best live rows of a file, by its sidecar; phrases are not looked at."""
    query = search.query
    if any(not index.frequency(term) for term in query.required):
        return np.empty(0, np.int64), np.empty(0)
    postings = [index.postings(term) for term in query.terms]
    excluded = [index.postings(term)[0] for term in sorted(query.excluded)]
    lengths = index.lengths()
    positions, scores = np.empty(0, np.int64), np.empty(0)
    for start in range(0, index.rows, _BLOCK_ROWS):
        end, first = min(start + _BLOCK_ROWS, index.rows), np.uint32(start)
        part = [_within(rows, start, end) for rows, _ in postings]
        if not any(cut.start < cut.stop for cut in part):
            continue
        block = _score(
            search,
            [(r[cut] - first, t[cut]) for (r, t), cut in zip(postings, part, strict=True)],
            [rows[_within(rows, start, end)] - first for rows in excluded],
            lengths[start:end],
        )
        block[deleted[_within(deleted, start, end)] - start] = 0
        # Of equal scores the first row counts: later ones have to be better than the last hit.
        least = scores.min() if len(scores) >= search.limit else 0
        rows = np.flatnonzero(block > least)
        rows = rows[first_rows(-block[rows], search.limit)]
        positions = np.concatenate([positions, rows + start])
        scores = np.concatenate([scores, block[rows]])
        order = first_rows(-scores, search.limit)
        positions, scores = positions[order], scores[order]
    return positions, scores


def _within(rows: Rows | Positions, start: int, end: int) -> slice:
    # Bounds of another type would have all rows converted.
    low, high = np.searchsorted(rows, np.array([start, end], rows.dtype))
    return slice(int(low), int(high))


# -------------------------------------------------------------------------------------------------
# Statistics


def index_statistics(query: TextQuery, index: TextIndex) -> TextStatistics:
    """What a file adds to the numbers that scores depend on, by its sidecar."""
    frequencies = tuple(index.frequency(term) for term in query.terms)
    return TextStatistics(index.documents, index.tokens, frequencies)


def token_statistics(query: TextQuery, tokens: Tokens) -> TextStatistics:
    """What some rows add to the numbers that scores depend on."""
    frequencies = tuple(len(rows) for rows, _ in _postings(tokens, query.terms))
    return TextStatistics(len(np.unique(tokens.rows)), len(tokens.rows), frequencies)


def total(parts: Sequence[TextStatistics], terms: int) -> TextStatistics:
    """The sum of the numbers of files and rows."""
    frequencies = np.zeros(terms, np.int64)
    for part in parts:
        frequencies += np.array(part.frequencies, np.int64)
    return TextStatistics(
        sum(part.documents for part in parts),
        sum(part.tokens for part in parts),
        tuple(frequencies.tolist()),
    )


# -------------------------------------------------------------------------------------------------
# Tasks; their rows have a text, a file and a position


def read_statistics(search: TextSearch) -> Task:
    """A task that reports the statistics of its texts."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tokenizer = tokenizer_of(search.params)
        parts = [
            token_statistics(search.query, tokenizer.tokens(texts))
            for batch in batches
            for _, texts in chunks(batch.column(0).cast(pa.large_string()))
        ]
        yield as_batch([total(parts, len(search.query.terms))])

    return task


def score_texts(search: TextSearch) -> Task:
    """A task that reports its best rows."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tokenizer = tokenizer_of(search.params)
        found = BestRows(search.limit)
        for batch in batches:
            for first, texts in chunks(batch.column(0).cast(pa.large_string())):
                scores = score_tokens(search, tokenizer.tokens(texts))
                rows = np.flatnonzero(scores)
                part = batch.slice(first, len(texts))
                found.add(part.column(1), part.column(2), rows, -scores[rows])
        yield as_batch([found.message()])

    return task


def check_phrases(search: TextSearch) -> Task:
    """A task that reports the rows that have the phrases, without scores."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tokenizer = tokenizer_of(search.params)
        found = BestRows(search.limit)
        for batch in batches:
            for first, texts in chunks(batch.column(0).cast(pa.large_string())):
                matches = matches_phrases(search.query, tokenizer.tokens(texts))
                rows = np.flatnonzero(matches)
                part = batch.slice(first, len(texts))
                found.add(part.column(1), part.column(2), rows, np.zeros(len(rows)))
        yield as_batch([found.message()])

    return task
