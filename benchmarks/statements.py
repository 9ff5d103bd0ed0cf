"""The statements that are timed, and what each must do to the rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from benchmarks.digest import Digest


class Kind(StrEnum):
    """What a statement does to the rows of its predicate."""

    DELETE = "delete"
    UPDATE = "update"  # one column: value = value + 1


class Placement(StrEnum):
    """Where the rows of the predicate lie."""

    SPREAD = "spread"  # in every file
    CLUSTERED = "clustered"  # in one file


ASSIGNED_COLUMN = "value"
ASSIGNED_EXPRESSION = "value + 1"


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The rows whose `column` is at least `low` and below `high`."""

    column: str
    low: int
    high: int

    @property
    def sql(self) -> str:
        """The range in words that Spark, DataFusion and PyIceberg all take."""
        if self.high == self.low + 1:
            return f"{self.column} = {self.low}"
        if self.low == 0:
            return f"{self.column} < {self.high}"
        return f"{self.column} >= {self.low} AND {self.column} < {self.high}"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, without regard to how many rows the table has."""

    name: str
    kind: Kind
    fraction: float
    placement: Placement

    def chosen(self, rows: int) -> ValueRange:
        """Which of the table's rows the statement changes."""
        if self.placement is Placement.CLUSTERED:
            # The fourth of eight files holds the ids from 37.5 % to 50 % of all.
            first = rows * 38 // 100
            return ValueRange("id", first, first + round(rows * self.fraction))
        buckets = round(100 * self.fraction)
        return ValueRange("bucket", 7, 8) if buckets == 1 else ValueRange("bucket", 0, buckets)


def _statement(kind: Kind, percent: int, placement: Placement) -> Statement:
    return Statement(f"{kind}-{percent}-{placement}", kind, percent / 100, placement)


STATEMENTS = tuple(
    _statement(kind, percent, placement)
    for kind in Kind
    for percent in (1, 10)
    for placement in Placement
)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement on rows of a known number, with what must come out of it."""

    statement: Statement
    where: str
    rows_changed: int
    after: Digest

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """From what `to_json` gave."""
        fields = given["statement"]
        statement = Statement(
            fields["name"],
            Kind(fields["kind"]),
            fields["fraction"],
            Placement(fields["placement"]),
        )
        return cls(statement, given["where"], given["rows_changed"], Digest(**given["after"]))
