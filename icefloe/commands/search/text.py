"""Full text search: the query as tokens, the numbers that scores depend on, and the best rows.

Files with a sidecar are searched by the driver, others by tasks that read their texts, and inline
rows by the driver. All count in the numbers of rows and tokens, deleted rows of files too, until
their file is rewritten: where a row is changes nothing of its score.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from icefloe.commands.search.found_rows import SearchedTable, hits_of
from icefloe.errors import StatementError
from icefloe.indexes.kinds import require
from icefloe.indexes.sidecars import open_sidecar
from icefloe.pruning.candidates import Candidate
from icefloe.storage.locations import spark_uri
from icefloe.tasks.bm25 import TextIndex, tokenizer_of
from icefloe.tasks.messages import TextStatistics
from icefloe.tasks.ranking import Hit, best, first_rows
from icefloe.tasks.sidecars import DamagedSidecarError
from icefloe.tasks.text_search import (
    TextQuery,
    TextSearch,
    best_rows,
    check_phrases,
    index_statistics,
    read_statistics,
    score_texts,
    score_tokens,
    token_statistics,
    total,
)
from icefloe.tasks.tokens import Tokenizer, Tokens, chunks
from icefloe.writing.data_files import run_task

log = logging.getLogger("icefloe")

_THREADS = 16
_CLAUSE = re.compile(r'\s*([+-]?)(?:"([^"]*)"|([^\s"]+))')
_LEAST_CHECKED = 100  # rows whose phrases are looked at, at first
_MORE = 4  # times as many in each further round

R = TypeVar("R")


def search_text(table: SearchedTable, query: object, limit: int) -> list[Hit]:
    """The best rows; their keys are the negative scores."""
    params = dict(table.definition.params)
    if params.get("stem"):
        require("snowballstemmer", f"Index {table.definition.name!r}", "text")
    tokenizer = tokenizer_of(params)
    parsed = parse_query(query, tokenizer)
    return _TextSearcher(table, TextSearch(parsed, params, limit=limit), tokenizer).hits()


# -------------------------------------------------------------------------------------------------
# Queries


@dataclass(slots=True)
class _Clauses:
    """The clauses of a query as they are parsed."""

    terms: Counter[str] = field(default_factory=Counter)
    required: set[str] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    phrases: list[tuple[str, ...]] = field(default_factory=list)
    excluded_phrases: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, sign: str, tokens: Sequence[str], *, quoted: bool) -> None:
        """Add a word or a phrase; a word with a sign that is several tokens is a phrase."""
        if sign == "-":
            if len(tokens) == 1:
                self.excluded.update(tokens)
            elif tokens:
                self.excluded_phrases.append(tuple(tokens))
            return
        self.terms.update(tokens)
        if sign == "+" or quoted:
            self.required.update(tokens)
            if len(tokens) > 1:
                self.phrases.append(tuple(tokens))


def parse_query(query: object, tokenizer: Tokenizer) -> TextQuery:
    """A query's words and phrases; raises StatementError where it has none."""
    example = "such as search(index, 'words +must -not \"a phrase\"')"
    if not isinstance(query, str):
        raise StatementError(
            f"Invalid query {query!r:.80} of a full text search: expected a text, {example}."
        )
    if query.count('"') % 2:
        raise StatementError(f"The query {query!r} has a quote without an end. Close or remove it.")
    clauses = _Clauses()
    for sign, phrase, word in _CLAUSE.findall(query):
        clauses.add(sign, tokenizer.words(phrase or word), quoted=bool(phrase))
    if not clauses.terms:
        raise StatementError(
            f"The query {query!r} has no word to search for. Give at least one word of letters or "
            f"digits that is neither a stop word nor excluded, {example}."
        )
    return TextQuery(
        tuple(clauses.terms),
        tuple(clauses.terms.values()),
        frozenset(clauses.required),
        frozenset(clauses.excluded),
        tuple(clauses.phrases),
        tuple(clauses.excluded_phrases),
    )


# -------------------------------------------------------------------------------------------------
# Search


@dataclass(frozen=True, slots=True)
class _TextSearcher:
    """One search in one state of a table."""

    table: SearchedTable
    search: TextSearch
    tokenizer: Tokenizer

    def hits(self) -> list[Hit]:
        """The best rows of all files and of the inline rows."""
        inline = list(self._inline_tokens())
        statistics, of_sidecars = self._statistics([tokens for _, tokens in inline])
        if not any(statistics.frequencies):
            return []
        search = replace(self.search, statistics=statistics)
        without = {path for path, each in of_sidecars.items() if not any(each.frequencies)}
        files = [c for c in self.table.scan.candidates if c.path not in without]
        # An equality delete may be of any row: Spark finds out which.
        covered = [c for c in files if c.path in of_sidecars and not c.equality_deletes]
        found, damaged = self._search_sidecars(search, covered)
        done = {c.path for c in covered} - damaged
        read = [c for c in files if c.path not in done]
        if read:
            found += hits_of(run_task(self.table.values(read), score_texts(search)))
        for first, tokens in inline:
            scores = score_tokens(search, tokens)
            rows = np.flatnonzero(scores)
            rows = rows[first_rows(-scores[rows], search.limit)]
            found += self.table.inline_hits(rows + first, -scores[rows])
        return best(found, search.limit)

    def _inline_tokens(self) -> Iterator[tuple[int, Tokens]]:
        if self.table.cut is None or not len(self.table.cut.rows):
            return
        for first, texts in chunks(self.table.inline_values.cast(pa.large_string())):
            yield first, self.tokenizer.tokens(texts)

    def _statistics(
        self, inline: Sequence[Tokens]
    ) -> tuple[TextStatistics, dict[str, TextStatistics]]:
        """The numbers of all rows, and those of each file that has a sidecar."""
        query = self.search.query
        candidates = self.table.scan.candidates
        by_file = self._of_sidecars(candidates, lambda _, index: index_statistics(query, index))
        of_sidecars = {
            c.path: each for c, each in zip(candidates, by_file, strict=True) if each is not None
        }
        parts = [*of_sidecars.values(), *(token_statistics(query, tokens) for tokens in inline)]
        missing = [c for c in candidates if c.path not in of_sidecars]
        if missing:
            texts = self.table.values(missing, deleted=True)
            messages = run_task(texts, read_statistics(self.search))
            parts += [each for each in messages if isinstance(each, TextStatistics)]
        return total(parts, len(query.terms)), of_sidecars

    def _search_sidecars(
        self, search: TextSearch, files: Sequence[Candidate]
    ) -> tuple[list[Hit], set[str]]:
        """The best rows of files, and the files whose sidecars turned out to be damaged."""
        damaged: set[str] = set()

        def best_of(limit: int) -> list[Hit]:
            wanted = replace(search, limit=limit)
            # A file that failed once is read by tasks, and its rows must not come twice.
            left = [c for c in files if c.path not in damaged]
            by_file = self._of_sidecars(left, lambda c, index: self._ranked(wanted, c, index))
            damaged.update(c.path for c, hits in zip(left, by_file, strict=True) if hits is None)
            return best((hit for hits in by_file for hit in hits or ()), limit)

        if not search.query.has_phrases:
            return best_of(search.limit), damaged
        return self._with_phrases(search, best_of), damaged

    def _ranked(self, search: TextSearch, candidate: Candidate, index: TextIndex) -> list[Hit]:
        rows, scores = best_rows(search, index, self.table.deleted(candidate))
        uri = spark_uri(candidate.path)
        return [(-s, uri, r) for s, r in zip(scores.tolist(), rows.tolist(), strict=True)]

    def _with_phrases(self, search: TextSearch, best_of: Callable[[int], list[Hit]]) -> list[Hit]:
        """The best rows whose texts have the phrases; as many are looked at as it takes."""
        checked: dict[Hit, bool] = {}
        count = max(_LEAST_CHECKED, _MORE * search.limit)
        while True:
            ranked = best_of(count)
            new = [hit for hit in ranked if hit not in checked]
            if new:
                task = check_phrases(replace(search, limit=len(new)))
                places = {hit[1:] for hit in hits_of(run_task(self.table.values_at(new), task))}
                checked.update((hit, hit[1:] in places) for hit in new)
            kept = [hit for hit in ranked if checked[hit]]
            if len(kept) >= search.limit or len(ranked) < count:
                return kept[: search.limit]
            count *= _MORE

    def _of_sidecars(
        self, files: Sequence[Candidate], read: Callable[[Candidate, TextIndex], R]
    ) -> list[R | None]:
        """What is read of each sidecar; None for a file without one that can be used."""

        def of_file(candidate: Candidate) -> R | None:
            try:
                table = self.table
                with open_sidecar(table.state, table.definition, candidate.live) as sidecar:
                    return read(candidate, TextIndex.of(sidecar))
            except FileNotFoundError:
                return None
            except DamagedSidecarError as error:
                log.warning("A sidecar of %s is not used: %s", candidate.path, error)
                return None

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(of_file, files))
