"""The MERGE statements: their clauses, and the rows of their sources."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self
from zlib import crc32

KEY = "id"
ON = f"target.{KEY} = source.{KEY}"
OPERATION = "op"  # the column of a change feed that the table does not have


class When(StrEnum):
    """Which rows a clause applies to."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class Action(StrEnum):
    """What a clause does to these rows; columns are matched by name."""

    UPDATE_ALL = "update set *"
    INSERT_ALL = "insert *"
    DELETE = "delete"


class Condition(StrEnum):
    """Conditions as SQL for both Spark and DataFusion; `sources.py` evaluates them."""

    IS_DELETE = f"source.{OPERATION} = 'D'"
    IS_NO_DELETE = f"source.{OPERATION} <> 'D'"
    VALUE_DIFFERS = "target.value <> source.value"
    IN_BUCKET = "target.bucket = 7"  # 1 % of the rows, in all files


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN … THEN."""

    when: When
    action: Action
    condition: Condition | None = None

    @property
    def sql(self) -> str:
        """The clause in SQL."""
        condition = f" AND {self.condition}" if self.condition else ""
        return f"WHEN {self.when.upper()}{condition} THEN {self.action.upper()}"


@dataclass(frozen=True, slots=True)
class SourceShape:
    """The source's rows, as fractions of the number of rows in the table."""

    changed: float = 0  # ids of the table, with new values in the columns of the digest
    same: float = 0  # unchanged rows of the table
    deleted: float = 0  # ids of the table, with operation D
    new: float = 0  # ids above those of the table
    unknown_deleted: float = 0  # the same, with operation D: they must change nothing
    operations: bool = False  # whether there is an operation column: I, U or D
    clustered: bool = False  # ids of the table are taken from one file, not from all

    @property
    def fingerprint(self) -> str:
        """A different text for each shape."""
        return f"{crc32(repr(self).encode()):08x}"


@dataclass(frozen=True, slots=True)
class Merge:
    """One MERGE of a source into the table, by key."""

    title: str
    clauses: tuple[Clause, ...]
    source: SourceShape

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        clauses = tuple(
            Clause(
                When(clause["when"]),
                Action(clause["action"]),
                Condition(clause["condition"]) if clause["condition"] else None,
            )
            for clause in fields["clauses"]
        )
        return cls(fields["title"], clauses, SourceShape(**fields["source"]))


_UPDATE = Clause(When.MATCHED, Action.UPDATE_ALL)
_INSERT = Clause(When.NOT_MATCHED, Action.INSERT_ALL)
UPSERT = (_UPDATE, _INSERT)
INSERT_ONLY = (_INSERT,)
_CHANGE_FEED = (
    Clause(When.MATCHED, Action.DELETE, Condition.IS_DELETE),
    _UPDATE,
    Clause(When.NOT_MATCHED, Action.INSERT_ALL, Condition.IS_NO_DELETE),
)
# The source has all rows of one bucket: rows of it that the source lacks are deleted.
_BY_SOURCE = (_UPDATE, Clause(When.NOT_MATCHED_BY_SOURCE, Action.DELETE, Condition.IN_BUCKET))
# The source has all rows: rows that differ are updated, rows that it lacks are deleted.
_SYNC = (
    Clause(When.MATCHED, Action.UPDATE_ALL, Condition.VALUE_DIFFERS),
    Clause(When.NOT_MATCHED_BY_SOURCE, Action.DELETE),
)

MERGES = {
    "merge-upsert-1-spread": Merge(
        "merge: upsert 1 % + 0.1 % new, spread", UPSERT, SourceShape(changed=0.01, new=0.001)
    ),
    "merge-upsert-1-clustered": Merge(
        "merge: upsert 1 % + 0.1 % new, in one file",
        UPSERT,
        SourceShape(changed=0.01, new=0.001, clustered=True),
    ),
    "merge-insert-1": Merge("merge: insert only, 1 % new", INSERT_ONLY, SourceShape(new=0.01)),
    "merge-insert-1-known": Merge(
        "merge: insert only, 1 % new, 1 % known",
        INSERT_ONLY,
        SourceShape(changed=0.01, new=0.01),
    ),
    "merge-cdc-1-spread": Merge(
        "merge: change feed of 1 % (0.7 % U, 0.2 % D, 0.1 % I), spread",
        _CHANGE_FEED,
        SourceShape(
            changed=0.007, deleted=0.002, new=0.001, unknown_deleted=0.0002, operations=True
        ),
    ),
    "merge-upsert-50-spread": Merge(
        "merge: upsert 50 % + 0.1 % new, spread", UPSERT, SourceShape(changed=0.5, new=0.001)
    ),
    "merge-by-source-1": Merge(
        "merge: update 1 %, delete 1 % by source with a condition, spread",
        _BY_SOURCE,
        SourceShape(changed=0.01),
    ),
    "merge-sync-1": Merge(
        "merge: source of 99 % of the rows, 1 % updated, 1 % deleted by source",
        _SYNC,
        SourceShape(changed=0.01, same=0.98),
    ),
}
