"""The statements that are timed, and their expected outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from benchmarks.digest import Digest
from benchmarks.merges import MERGES, Clause, Merge


class Kind(StrEnum):
    """The kind of a statement."""

    DELETE = "delete"
    UPDATE = "update"  # value = value + 1, or every column but the key
    MERGE = "merge"  # by key, see `merges.py`
    SCAN = "scan"  # after other statements, see `history.py`


class Placement(StrEnum):
    """Where the changed rows are."""

    SPREAD = "spread"  # in every file
    CLUSTERED = "clustered"  # in one file


ASSIGNED_COLUMN = "value"  # of an UPDATE of one column


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The rows whose `column` is at least `low` and below `high`."""

    column: str
    low: int
    high: int

    @property
    def sql(self) -> str:
        """The range as SQL for Spark, DataFusion and PyIceberg."""
        if self.high == self.low + 1:
            return f"{self.column} = {self.low}"
        if self.low == 0:
            return f"{self.column} < {self.high}"
        return f"{self.column} >= {self.low} AND {self.column} < {self.high}"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, for a table with any number of rows."""

    name: str
    kind: Kind
    fraction: float
    placement: Placement
    merge: Merge | None = None
    all_columns: bool = False  # UPDATE: every column but the key, not one
    statements_before: int = 0  # SCAN: how many statements run on the table before

    @property
    def title(self) -> str:
        """The statement in a few words, for tables and plots."""
        if self.merge:
            return self.merge.title
        if self.kind is Kind.SCAN:
            count = self.statements_before
            rows = "all rows" if self.fraction == 1 else "1 % of the rows, in one file"
            return f"scan of {rows}, after {count} statement{'s' if count > 1 else ''}"
        place = "in one file" if self.placement is Placement.CLUSTERED else self.placement
        kind = "update of all columns," if self.all_columns else self.kind
        return f"{kind} {self.fraction:.0%}, {place}".replace("%", " %")

    @property
    def shape(self) -> tuple[Kind, bool, tuple[Clause, ...]]:
        """Statements of one shape warm each other up."""
        return self.kind, self.all_columns, self.merge.clauses if self.merge else ()

    def row_range(self, rows: int) -> ValueRange:
        """The rows that an UPDATE or DELETE changes, or a scan of a part reads."""
        if self.placement is Placement.CLUSTERED:
            first = clustered_start(rows)
            return ValueRange("id", first, first + round(rows * self.fraction))
        buckets = round(100 * self.fraction)
        return ValueRange("bucket", 7, 8) if buckets == 1 else ValueRange("bucket", 0, buckets)


def clustered_start(rows: int) -> int:
    """The first id of clustered rows, in the fourth of eight files (37.5 % to 50 % of the ids)."""
    return rows * 38 // 100


def _statement(kind: Kind, percent: int, placement: Placement) -> Statement:
    return Statement(f"{kind}-{percent}-{placement}", kind, percent / 100, placement)


def _merge(name: str, merge: Merge) -> Statement:
    source = merge.source
    placement = Placement.CLUSTERED if source.clustered else Placement.SPREAD
    fraction = source.changed + source.deleted or source.new
    return Statement(name, Kind.MERGE, fraction, placement, merge)


def _scans(count: int) -> tuple[Statement, Statement]:
    """Scans of all rows, and of 1 % of them in one file."""
    every = Statement(
        f"scan-after-{count}", Kind.SCAN, 1, Placement.SPREAD, statements_before=count
    )
    part = Statement(
        f"scan-part-after-{count}", Kind.SCAN, 0.01, Placement.CLUSTERED, statements_before=count
    )
    return every, part


STATEMENTS = (
    *(
        _statement(kind, percent, placement)
        for kind in (Kind.DELETE, Kind.UPDATE)
        for percent in (1, 10)
        for placement in Placement
    ),
    Statement("update-all-1-spread", Kind.UPDATE, 0.01, Placement.SPREAD, all_columns=True),
    *(_merge(name, merge) for name, merge in MERGES.items()),
    *(scan for count in (1, 10, 50) for scan in _scans(count)),
)


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement on a table of one size, with its expected outcome."""

    statement: Statement
    rows_changed: int  # SCAN: by all statements before it
    after: Digest  # of all rows afterwards; SCAN: of the rows it reads
    where: str = ""  # DELETE, UPDATE, and a scan of a part
    assignments: dict[str, str] = field(default_factory=dict)  # UPDATE: column and expression
    source: str = ""  # MERGE: the name of a Parquet file beside the input, or its path
    source_rows: int = 0
    source_bytes: int = 0

    @property
    def assigned_sql(self) -> str:
        """The assignments of SET."""
        return ", ".join(f"{name} = {value}" for name, value in self.assignments.items())

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, bound: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        fields = bound["statement"]
        statement = Statement(
            fields["name"],
            Kind(fields["kind"]),
            fields["fraction"],
            Placement(fields["placement"]),
            Merge.from_json(fields["merge"]) if fields["merge"] else None,
            fields["all_columns"],
            fields["statements_before"],
        )
        return cls(**{**bound, "statement": statement, "after": Digest(**bound["after"])})
