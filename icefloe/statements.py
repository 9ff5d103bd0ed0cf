"""What the user asked for: frozen values that builders make and the engine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame

from icefloe.errors import StatementError
from icefloe.metadata.state import MAIN
from icefloe.settings import Isolation, UpdateKind, UpdateMode

Condition: TypeAlias = str | Column
Expression: TypeAlias = Any  # SQL text, a Column, or a plain Python value that is not a str


@dataclass(frozen=True, slots=True)
class Options:
    """How a statement runs; None means as the table's properties say."""

    mode: UpdateMode | None = None
    isolation: Isolation | None = None
    retries: int = 0
    branch: str = MAIN
    summary: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None

    def with_(self, **options: Any) -> Options:
        """The same options with some replaced; unknown names and bad values are refused."""
        known: dict[str, Any] = {
            name: _READERS[name](value) for name, value in options.items() if name in _READERS
        }
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise StatementError(
                f"Unknown option {unknown[0]!r}. Options are: {', '.join(sorted(_READERS))}."
            )
        return replace(self, **known)


@dataclass(frozen=True, slots=True)
class RowStatement:
    """UPDATE or DELETE: the rows where `where` is true, and their new values."""

    kind: UpdateKind
    where: Condition | None = None
    assignments: tuple[tuple[str, Expression], ...] = ()
    options: Options = Options()


class WriteKind(StrEnum):
    """How whole sets of rows are written."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    OVERWRITE_PARTITIONS = "overwrite_partitions"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class WriteStatement:
    """Rows to add, and what they replace; `rows` fit the table already."""

    kind: WriteKind
    rows: DataFrame | None = None
    options: Options = Options()


def _mode(value: Any) -> UpdateMode | None:
    return None if value is None else UpdateMode.parse(str(value))


def _isolation(value: Any) -> Isolation | None:
    return None if value is None else Isolation.parse(str(value))


def _retries(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StatementError(f"Option 'retries' takes a whole number from 0, not {value!r}.")
    return value


def _branch(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise StatementError(f"Option 'branch' takes a branch name, not {value!r}.")
    return value


def _summary(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise StatementError(f"Option 'summary' takes a dict, not {value!r}.")
    if "operation" in value:
        raise StatementError("Option 'summary' may not set 'operation': Iceberg gives it.")
    return {str(key): str(text) for key, text in value.items()}


def _key(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise StatementError(f"Option 'idempotency_key' takes a text, not {value!r}.")
    return value


_READERS = {
    "mode": _mode,
    "isolation": _isolation,
    "retries": _retries,
    "branch": _branch,
    "summary": _summary,
    "idempotency_key": _key,
}
