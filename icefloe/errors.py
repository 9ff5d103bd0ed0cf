"""The exceptions that icefloe raises, grouped by what the caller can do next.

After a `StatementError`, change the statement; after a `ConflictError`, run it again; after a
`CommitStateUnknownError`, look at the table first. Files that a statement wrote are deleted only
under errors that guarantee that nothing was published.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from icefloe.redaction import redacted, redacted_texts, scrub

RESTORE = "Nothing was changed. Restore the file from a backup."  # advice about a damaged file


class IcefloeError(Exception):
    """Base class of the errors that icefloe raises; their texts contain no secrets.

    Examples:
        >>> try:
        ...     orders.delete().where("di = 1").execute()
        ... except icefloe.errors.ColumnNotFoundError as error:
        ...     print(error.column, error.available)
        di ('id', 'region', 'n')
    """

    def __init__(self, *texts: object) -> None:
        super().__init__(*map(redacted_texts, texts))
        if (cause := sys.exception()) is not None:
            scrub(cause)  # a traceback shows it above this error

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, redacted_texts(value))

    def add_note(self, note: str) -> None:
        """Add a line below the message."""
        super().add_note(redacted(note))


class SetupError(IcefloeError):
    """The machine or the Spark session lacks something: Java, PyArrow on the workers, a version."""


class StatementError(IcefloeError):
    """The statement is wrong: change it. Nothing was published."""


class ParseError(StatementError):
    """The text is not valid SQL; the message shows the position.

    `line` and `column` count from 1 in the caller's text; None where the position is unknown.
    """

    def __init__(self, reason: str, text: str = "", place: int | None = None) -> None:
        self.reason = reason
        self.line: int | None = None
        self.column: int | None = None
        if place is None:
            super().__init__(reason)
            return
        start = text.rfind("\n", 0, place) + 1
        end = text.find("\n", place)
        self.line = text.count("\n", 0, place) + 1
        self.column = place - start + 1
        shown = text[start : end if end >= 0 else len(text)].rstrip("\r").replace("\t", " ")
        super().__init__(
            f"Line {self.line}, column {self.column}: {reason}\n  {shown}\n  "
            f"{' ' * (place - start)}^"
        )


class ColumnNotFoundError(StatementError):
    """The statement names a column that the table does not have."""

    def __init__(self, column: str, available: Iterable[str]) -> None:
        self.column = column
        self.available = tuple(available)
        near = get_close_matches(column.lower(), [name.lower() for name in self.available], n=1)
        nearest = next((name for name in self.available if near and name.lower() == near[0]), None)
        hint = f" Did you mean {nearest!r}?" if nearest else ""
        super().__init__(
            f"Column {column!r} is not in the table.{hint} "
            f"Columns are: {', '.join(self.available) or '(none)'}."
        )


class TypeMismatchError(StatementError):
    """A value's type does not fit where it is used."""

    def __init__(self, column: str, expected: str, actual: str, hint: str = "") -> None:
        self.column = column
        self.expected = expected
        self.actual = actual
        advice = hint or f"Cast the value: cast(… as {expected})."
        super().__init__(f"{column!r} expects {expected} but got {actual}. {advice}")


class SchemaMismatchError(StatementError):
    """The rows do not fit the table: columns are missing, extra, or of another type."""


class ColumnTypeMismatchError(TypeMismatchError, SchemaMismatchError):
    """A column of the rows has a type, or a value, that the table's column cannot take."""


class NullabilityError(StatementError):
    """A required column would get a NULL."""

    def __init__(self, column: str) -> None:
        self.column = column
        super().__init__(
            f"Column {column!r} is required (NOT NULL) but a row has NULL in it. "
            "Give every row a value, or filter such rows out."
        )


class CardinalityError(StatementError):
    """Several source rows match one target row that a clause would change."""

    def __init__(self, keys: Iterable[object]) -> None:
        self.keys = tuple(keys)
        shown = ", ".join(str(key) for key in self.keys[:5])
        super().__init__(
            f"More than one source row matches the same target row; keys: {shown}. "
            "Deduplicate the source on its join key, or use duplicates='first'."
        )


class ConstraintError(StatementError):
    """A new row does not satisfy the predicate of the rows that it replaces."""

    def __init__(self, predicate: str, row: str) -> None:
        self.predicate = predicate
        self.row = row
        super().__init__(
            f"A new row does not satisfy the predicate {predicate!r}: {row}. Nothing was changed. "
            "Filter such rows out, widen the predicate, or use check=False to add them anyway."
        )


class ReplaceWhereError(StatementError):
    """A REPLACE WHERE that cannot run as written."""


class NonPartitionedTableError(ReplaceWhereError):
    """The table has no partitions to replace."""

    def __init__(self, table_path: str) -> None:
        self.table_path = table_path
        super().__init__(
            f"replace_where requires a partitioned table, and {table_path} is not partitioned. "
            "Use scope='rows' to replace rows by any predicate."
        )


class InvalidPredicateError(ReplaceWhereError):
    """The predicate cannot be parsed, or does not select whole partitions."""

    def __init__(self, predicate: str, reason: str) -> None:
        self.predicate = predicate
        self.reason = reason
        super().__init__(f"The predicate {predicate!r} cannot be used: {reason}.")


class UnsupportedOperatorError(ReplaceWhereError):
    """The predicate uses an operator that partition matching does not support."""

    def __init__(self, operator: str, predicate: str = "") -> None:
        self.operator = operator
        self.predicate = predicate
        used = f"The predicate {predicate!r} uses" if predicate else "A predicate uses"
        super().__init__(
            f"{used} {operator!r}. Partitions are matched by =, <>, <, <=, >, >=, IN, BETWEEN, "
            "IS NULL, AND, OR and NOT over literals. Use scope='rows' for any other predicate."
        )


class PartitionColumnNotFoundError(ReplaceWhereError):
    """The predicate names a column that is not a partition source."""

    def __init__(self, column: str, available: Iterable[str]) -> None:
        self.column = column
        self.available = tuple(available)
        super().__init__(
            f"The table is not partitioned by {column!r}. Partition columns are: "
            f"{', '.join(self.available)}. Use scope='rows' for predicates on other columns."
        )


class PartitionTypeMismatchError(TypeMismatchError, ReplaceWhereError):
    """A literal of the predicate is not a value of the partition column's type."""


class TableNotFoundError(IcefloeError):
    """No such table."""


class UnknownTableError(TableNotFoundError, StatementError):
    """A query or a subquery names a table that neither the lake nor the session has."""


class TableExistsError(IcefloeError):
    """A table of that name already exists."""


class IndexNotFoundError(IcefloeError):
    """The table has no index of that name."""

    def __init__(self, table: str, name: str, available: Iterable[str]) -> None:
        self.name = name
        self.available = tuple(available)
        shown = ", ".join(self.available) or "none"
        super().__init__(f"{table} has no index {name!r}. Its indexes are: {shown}.")


class UnsupportedTableError(IcefloeError):
    """The table, or a file of it, is of a kind this operation cannot work on."""


class ConflictError(IcefloeError):
    """A concurrent commit conflicts; run the statement again. Nothing was published."""

    def __init__(
        self,
        reason: str,
        *,
        table: str,
        base_snapshot_id: int | None,
        current_snapshot_id: int | None,
        files: Iterable[str] = (),
    ) -> None:
        self.reason = reason
        self.table = table
        self.base_snapshot_id = base_snapshot_id
        self.current_snapshot_id = current_snapshot_id
        self.files = tuple(files)
        shown = f" Files: {', '.join(self.files[:3])}" if self.files else ""
        more = f" and {len(self.files) - 3} more" if len(self.files) > 3 else ""
        super().__init__(
            f"{table}: {reason}. The statement read snapshot {base_snapshot_id}, the table is now "
            f"at {current_snapshot_id}.{shown}{more} Run the statement again, or set retries=n."
        )


class CommitStateUnknownError(IcefloeError):
    """The catalog did not answer: look at the table before a retry. No file was deleted."""


class CommitOutcomeUnknown(CommitStateUnknownError):  # noqa: N818
    """The connection was lost during COMMIT: the caller looks for what the transaction wrote."""


class StorageError(IcefloeError):
    """Reading or writing a file or a database failed; the message names it."""


class StoreBusyError(StorageError):
    """The database of the inline tier was locked for too long. Nothing was changed."""
