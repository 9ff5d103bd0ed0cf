"""What the user asked to replace: frozen values that builders make."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from icefloe.errors import InvalidPredicateError, StatementError
from icefloe.statements import Options


class Scope(StrEnum):
    """What a REPLACE WHERE replaces: whole partitions, by metadata, or any rows."""

    PARTITIONS = "partitions"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class ReplaceOptions(Options):
    """How a REPLACE WHERE runs."""

    scope: Scope = Scope.PARTITIONS
    check: bool = True  # new rows must satisfy the predicate

    def _read(self, name: str, value: Any) -> Any:
        return _READERS[name](value) if name in _READERS else Options._read(self, name, value)


@dataclass(frozen=True, slots=True)
class Replacement:
    """Rows that take the place of those a predicate is true for."""

    predicate: str
    rows: object

    def __post_init__(self) -> None:
        given: object = self.predicate
        if not isinstance(given, str):
            kind = type(self.predicate).__name__
            raise InvalidPredicateError(str(self.predicate), f"it is SQL text, not a {kind}")
        if not self.predicate.strip():
            raise InvalidPredicateError(self.predicate, "it is empty: say which rows to replace")


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


@dataclass(frozen=True, slots=True)
class UsingStatement:
    """REPLACE USING: rows that take the place of those with the same values in some columns."""

    columns: tuple[str, ...]
    rows: object
    options: Options = field(default_factory=Options)


def _scope(value: Any) -> Scope:
    try:
        return Scope(str(value).lower())
    except ValueError:
        raise StatementError(
            f"Option 'scope' takes 'partitions' or 'rows', not {value!r}."
        ) from None


def _check(value: Any) -> bool:
    if not isinstance(value, bool):
        raise StatementError(f"Option 'check' takes True or False, not {value!r}.")
    return value


_READERS = {"scope": _scope, "check": _check}
