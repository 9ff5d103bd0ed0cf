"""Statements as frozen values: what builders and SQL make, and what commands run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from icefloe.errors import InvalidPredicateError, StatementError
from icefloe.metadata.table_state import MAIN
from icefloe.redaction import masked_repr
from icefloe.settings import Isolation, UpdateKind, UpdateMode

Condition: TypeAlias = str | Column
Expression: TypeAlias = Any  # SQL text, a Column, or a plain Python value that is not a str


@masked_repr
@dataclass(frozen=True, slots=True)
class Options:
    """How a statement runs; None means as the table properties say."""

    mode: UpdateMode | None = None
    isolation: Isolation | None = None
    retries: int = 0
    branch: str = MAIN
    summary: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None

    def with_(self, **options: Any) -> Self:
        """The same options with some replaced; unknown names and invalid values are refused."""
        names = [option.name for option in fields(self)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise StatementError(
                f"Unknown option {unknown[0]!r}. Options are: {', '.join(sorted(names))}."
            )
        return replace(self, **{name: self._read(name, value) for name, value in options.items()})

    def _read(self, name: str, value: Any) -> Any:
        return _READERS[name](value)


@masked_repr
@dataclass(frozen=True, slots=True)
class RowStatement:
    """UPDATE or DELETE: the rows where `where` is true, and their new values."""

    kind: UpdateKind
    where: Condition | None = None
    assignments: tuple[tuple[str, Expression], ...] = ()
    options: Options = Options()


class When(StrEnum):
    """Which rows a clause of a MERGE applies to."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class Then(StrEnum):
    """What a clause of a MERGE does."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@masked_repr
@dataclass(frozen=True, slots=True)
class MergeClause:
    """WHEN … [AND condition] THEN …; assignments of None mean every column, by name."""

    when: When
    then: Then
    condition: Condition | None = None
    assignments: tuple[tuple[str, Expression], ...] | None = ()

    def __str__(self) -> str:
        condition = "" if self.condition is None else f" and {self.condition}"
        return f"when {self.when.value}{condition} then {self.then.value}{self._shown()}"

    def _shown(self) -> str:
        if self.assignments is None:
            return " *"
        return "".join(f" {name} = {value}" for name, value in self.assignments)


class Duplicates(StrEnum):
    """What to do when several source rows match one target row that a clause would change."""

    ERROR = "error"
    FIRST = "first"


@masked_repr
@dataclass(frozen=True, slots=True)
class MergeOptions(Options):
    """How a MERGE runs."""

    enable_dpp: bool = True
    dpp_max_partitions: int = 1000
    duplicates: Duplicates = Duplicates.ERROR


@masked_repr
@dataclass(frozen=True, slots=True)
class MergeStatement:
    """MERGE: rows of `source` matched with rows of the table, and the action for each."""

    source: DataFrame
    on: Condition | tuple[str, ...]
    target_alias: str = "target"
    source_alias: str = "source"
    clauses: tuple[MergeClause, ...] = ()
    evolves_schema: bool = False
    options: MergeOptions = MergeOptions()
    source_reads_target: bool = False  # by name, in SQL; unknown for DataFrames
    local: pa.Table | None = field(default=None, repr=False)  # the source's rows, if held here

    @property
    def columns(self) -> list[Column]:
        """The expressions that are Columns."""
        values = [value for clause in self.clauses for _, value in clause.assignments or ()]
        conditions = [clause.condition for clause in self.clauses]
        return [value for value in (self.on, *conditions, *values) if isinstance(value, Column)]

    def has(self, when: When) -> bool:
        """Whether a clause applies to such rows."""
        return any(clause.when is when for clause in self.clauses)


class WriteKind(StrEnum):
    """How whole sets of rows are written."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    OVERWRITE_PARTITIONS = "overwrite_partitions"
    TRUNCATE = "truncate"


@masked_repr
@dataclass(frozen=True, slots=True)
class WriteStatement:
    """Rows to add, and what they replace; `rows` have been fitted to the table.

    Rows in an Arrow table are few, and written by the driver.
    """

    kind: WriteKind
    rows: DataFrame | pa.Table | None = None
    options: Options = Options()


def _mode(value: Any) -> UpdateMode | None:
    return None if value is None else UpdateMode.parse(str(value))


def _isolation(value: Any) -> Isolation | None:
    return None if value is None else Isolation.parse(str(value))


def _retries(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StatementError(f"Option 'retries' must be an integer >= 0, not {value!r}.")
    return value


def _branch(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise StatementError(f"Option 'branch' must be a branch name, not {value!r}.")
    return value


def _summary(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise StatementError(f"Option 'summary' must be a dict, not {value!r}.")
    if "operation" in value:
        raise StatementError("Option 'summary' must not set 'operation', which Iceberg defines.")
    return {str(key): str(text) for key, text in value.items()}


def _key(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise StatementError(f"Option 'idempotency_key' must be a non-empty str, not {value!r}.")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise StatementError(f"Option 'enable_dpp' must be True or False, not {value!r}.")
    return value


def _limit(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StatementError(f"Option 'dpp_max_partitions' must be an integer >= 0, not {value!r}.")
    return value


def _duplicates(value: Any) -> Duplicates:
    try:
        return Duplicates(str(value).lower())
    except ValueError:
        raise StatementError(
            f"Option 'duplicates' must be 'error' or 'first', not {value!r}."
        ) from None


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "mode": _mode,
    "isolation": _isolation,
    "retries": _retries,
    "branch": _branch,
    "summary": _summary,
    "idempotency_key": _key,
    "enable_dpp": _flag,
    "dpp_max_partitions": _limit,
    "duplicates": _duplicates,
}


# -------------------------------------------------------------------------------------------------
# REPLACE WHERE and REPLACE USING


class Scope(StrEnum):
    """What a REPLACE WHERE replaces: whole partitions, by metadata, or any rows."""

    PARTITIONS = "partitions"
    ROWS = "rows"


@masked_repr
@dataclass(frozen=True, slots=True)
class ReplaceOptions(Options):
    """How a REPLACE WHERE runs."""

    scope: Scope = Scope.PARTITIONS
    check: bool = True  # new rows must satisfy the predicate

    def _read(self, name: str, value: Any) -> Any:
        return (
            _REPLACE_READERS[name](value)
            if name in _REPLACE_READERS
            else Options._read(self, name, value)
        )


@masked_repr
@dataclass(frozen=True, slots=True)
class Replacement:
    """Rows that replace those for which a predicate is true."""

    predicate: str
    rows: object

    def __post_init__(self) -> None:
        predicate: object = self.predicate
        if not isinstance(predicate, str):
            kind = type(self.predicate).__name__
            raise InvalidPredicateError(str(self.predicate), f"it must be SQL text, not a {kind}")
        if not self.predicate.strip():
            raise InvalidPredicateError(self.predicate, "it is empty: state which rows to replace")


@masked_repr
@dataclass(frozen=True, slots=True)
class ReplaceStatement:
    """REPLACE WHERE: one or more replacements in one commit."""

    replacements: tuple[Replacement, ...]
    options: ReplaceOptions = ReplaceOptions()

    @property
    def text(self) -> str:
        """The predicate of the whole statement."""
        texts = [replacement.predicate for replacement in self.replacements]
        return texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts)


@masked_repr
@dataclass(frozen=True, slots=True)
class UsingStatement:
    """REPLACE USING: rows that replace those with the same values in some columns."""

    columns: tuple[str, ...]
    rows: object
    options: Options = field(default_factory=Options)


def _scope(value: Any) -> Scope:
    try:
        return Scope(str(value).lower())
    except ValueError:
        raise StatementError(
            f"Option 'scope' must be 'partitions' or 'rows', not {value!r}."
        ) from None


def _check(value: Any) -> bool:
    if not isinstance(value, bool):
        raise StatementError(f"Option 'check' must be True or False, not {value!r}.")
    return value


_REPLACE_READERS = {"scope": _scope, "check": _check}
