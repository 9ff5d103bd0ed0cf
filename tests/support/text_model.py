"""Full text search by brute force: a model of tokens, scores and results, one row at a time."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

_RUNS = re.compile(r"[぀-ヿ㐀-鿿가-힣]+|[^\W_぀-ヿ㐀-鿿가-힣]+")


def model_tokens(text: str | None) -> list[str]:
    """Words in lower case, and pairs of neighbouring Chinese and Japanese characters."""
    found = []
    for run in _RUNS.findall(unicodedata.normalize("NFKC", text or "").lower()):
        if ord(run[0]) >= 0x3040 and len(run) > 1:
            found += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            found.append(run)
    return found


@dataclass(frozen=True)
class TextModel:
    """Texts by id, of which some are deleted and count all the same."""

    texts: dict[int, str | None]
    deleted: frozenset[int] = frozenset()
    tokens: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens.update((i, model_tokens(text)) for i, text in self.texts.items())

    def scores(
        self,
        words: Sequence[str],
        must: Sequence[str] = (),
        must_not: Sequence[str] = (),
        phrases: Sequence[Sequence[str]] = (),
    ) -> dict[int, float]:
        """The score of every row that is a result; the words of phrases are among `words`."""
        documents = [tokens for tokens in self.tokens.values() if tokens]
        average = sum(map(len, documents)) / max(1, len(documents))
        found = {}
        for number, tokens in self.tokens.items():
            if number in self.deleted or not set(words) & set(tokens):
                continue
            if not set(must) <= set(tokens) or set(must_not) & set(tokens):
                continue
            if not all(_has(tokens, phrase) for phrase in phrases):
                continue
            found[number] = sum(
                _score(tokens.count(word), len(tokens), average, _idf(documents, word))
                for word in words
            )
        return found


def _idf(documents: Sequence[Sequence[str]], word: str) -> float:
    frequency = sum(word in tokens for tokens in documents)
    return math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))


def _score(times: int, length: int, average: float, idf: float) -> float:
    return idf * 2.2 * times / (times + 1.2 * (0.25 + 0.75 * length / average))


def _has(tokens: Sequence[str], phrase: Sequence[str]) -> bool:
    size = len(phrase)
    return any(list(tokens[i : i + size]) == list(phrase) for i in range(len(tokens)))
