"""Kinds of indexes: which columns and parameters they take, and what they are for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import ClassVar

from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icefloe.errors import StatementError
from icefloe.tasks.tokens import Tokenizer
from icefloe.tasks.vectors import METRICS

ON_WRITE = "on_write"  # a parameter of every kind: whether writes of data files write sidecars


class IndexKind(ABC):
    """A kind of index; what its sidecars have is in `tasks`, how they are read beside this file."""

    name: ClassVar[str]
    writes_by_default: ClassVar[bool]
    is_searched: ClassVar[bool]  # by `search`; other indexes answer conditions

    @abstractmethod
    def refusal(self, columns: Sequence[NestedField]) -> str | None:
        """Why columns cannot have such an index; None if they can."""

    def parameters(self, given: Mapping[str, object]) -> dict[str, object]:
        """The parameters with their defaults; raises StatementError for a wrong one."""
        own = self.own_parameters(given)
        unknown = sorted(set(given) - {ON_WRITE, *own})
        if unknown:
            takes = ", ".join(sorted({ON_WRITE, *own}))
            raise StatementError(
                f"An index of kind {self.name} has no parameter {unknown[0]!r}; it takes: {takes}."
            )
        on_write = given.get(ON_WRITE, self.writes_by_default)
        if not isinstance(on_write, bool):
            raise StatementError(
                f"Invalid value {on_write!r} for the parameter {ON_WRITE!r} of an index: expected "
                "True or False."
            )
        return {ON_WRITE: on_write, **own}

    def own_parameters(self, given: Mapping[str, object]) -> dict[str, object]:  # noqa: ARG002
        """The parameters that only this kind has, with their defaults."""
        return {}


class BtreeKind(IndexKind):
    """Values and ranges of values of one column, or equal values of several."""

    name = "btree"
    writes_by_default = True
    is_searched = False
    _TYPES = (
        IntegerType,
        LongType,
        FloatType,
        DoubleType,
        DecimalType,
        DateType,
        TimeType,
        TimestampType,
        TimestamptzType,
        StringType,
        BinaryType,
        FixedType,
        UUIDType,
    )

    def refusal(self, columns: Sequence[NestedField]) -> str | None:
        """Why columns cannot have such an index; None if they can."""
        return next(
            (
                f"column {column.name!r} has type {column.field_type}, which a btree index does "
                "not take"
                for column in columns
                if not self._takes(column.field_type)
            ),
            None,
        )

    def _takes(self, kind: IcebergType) -> bool:
        return isinstance(kind, self._TYPES)


class Bm25Kind(IndexKind):
    """Words and phrases of one column of text, with scores."""

    name = "bm25"
    writes_by_default = False
    is_searched = True

    def refusal(self, columns: Sequence[NestedField]) -> str | None:
        """Why columns cannot have such an index; None if they can."""
        return _refusal_of_one(
            columns, self.name, "string", lambda kind: isinstance(kind, StringType)
        )

    def own_parameters(self, given: Mapping[str, object]) -> dict[str, object]:
        """The language of stems, and words that are left out."""
        stem = given.get("stem")
        if stem is not None:
            _check_stem(stem)
        return {"stem": stem, "stop_words": _stop_words(given.get("stop_words", ()))}


class HnswKind(IndexKind):
    """The nearest vectors of one column of lists of numbers."""

    name = "hnsw"
    writes_by_default = False
    is_searched = True
    _NUMBERS: ClassVar[Mapping[str, int]] = {
        "m": 16,
        "ef_build": 128,
        "ef_search": 128,
        "exact_below": 50_000,
    }

    def refusal(self, columns: Sequence[NestedField]) -> str | None:
        """Why columns cannot have such an index; None if they can."""
        return _refusal_of_one(columns, self.name, "list<float> or list<double>", _is_vector)

    def own_parameters(self, given: Mapping[str, object]) -> dict[str, object]:
        """Metric and dimension, the shape of graphs, and how large files with a graph are."""
        metric = given.get("metric", "l2")
        if metric not in METRICS:
            raise _invalid("metric", metric, f"one of {', '.join(METRICS)}")
        dimension = given.get("dimension")
        if dimension is not None:
            dimension = _natural("dimension", dimension)
        numbers = {
            name: _natural(name, given.get(name, default), 0 if name == "exact_below" else 1)
            for name, default in self._NUMBERS.items()
        }
        require("usearch", "An index of kind hnsw", "vector")
        return {"metric": metric, "dimension": dimension, **numbers}


def _is_vector(kind: IcebergType) -> bool:
    return isinstance(kind, ListType) and isinstance(kind.element_type, FloatType | DoubleType)


def _refusal_of_one(
    columns: Sequence[NestedField], name: str, types: str, takes: Callable[[IcebergType], bool]
) -> str | None:
    """Why a kind that takes one column of some types does not take these."""
    if len(columns) != 1:
        return f"an index of kind {name} has one column, not {len(columns)}"
    [column] = columns
    if takes(column.field_type):
        return None
    return (
        f"column {column.name!r} has type {column.field_type}, and an index of kind {name} takes "
        f"{types}"
    )


def _invalid(name: str, value: object, expected: str) -> StatementError:
    return StatementError(
        f"Invalid value {value!r} for the parameter {name!r} of an index: expected {expected}."
    )


def _natural(name: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _invalid(name, value, f"an integer >= {least}")
    return value


def _stop_words(words: object) -> list[str]:
    """Stop words as tokens, each once."""
    expected = "a list of words, such as ['a', 'the']"
    if isinstance(words, str) or not isinstance(words, Sequence):
        raise _invalid("stop_words", words, expected)
    tokenizer, plain = Tokenizer(), set()
    for word in words:
        tokens = tokenizer.words(word) if isinstance(word, str) else []
        if len(tokens) != 1:
            raise _invalid("stop_words", word, expected)
        plain.update(tokens)
    return sorted(plain)


def _check_stem(stem: object) -> None:
    require("snowballstemmer", "The parameter 'stem' of an index", "text")
    languages = import_module("snowballstemmer").algorithms()
    if stem not in languages:
        raise _invalid("stem", stem, f"one of {', '.join(sorted(languages))}")


def require(package: str, what: str, extra: str) -> None:
    """Refuse what needs a package that is not installed."""
    try:
        import_module(package)
    except ImportError as missing:
        raise StatementError(
            f"{what} needs the package {package!r}, which is not installed here: "
            f"pip install 'icefloe[{extra}]'. Spark's workers need it too."
        ) from missing


KINDS: Mapping[str, IndexKind] = {kind.name: kind for kind in (BtreeKind(), Bm25Kind(), HnswKind())}
