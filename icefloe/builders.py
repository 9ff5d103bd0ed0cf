"""Statement builders: each call adds to the statement, nothing runs before `execute()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from icefloe.commands.context import Context
from icefloe.commands.plan import Plan
from icefloe.commands.run import explain, run
from icefloe.errors import StatementError
from icefloe.redaction import masked_repr
from icefloe.results import DmlResult
from icefloe.statements import (
    Condition,
    Expression,
    MergeClause,
    MergeStatement,
    Replacement,
    ReplaceStatement,
    RowStatement,
    Then,
    UsingStatement,
    When,
)


@masked_repr
@dataclass(frozen=True, slots=True)
class _Builder:
    _context: Context
    _statement: RowStatement

    def where(self, predicate: Condition) -> Self:
        """Change the rows for which `predicate` is true (not NULL); without it, every row."""
        if self._statement.where is not None:
            raise StatementError("where() was called twice. Combine the conditions with AND.")
        return self._with(where=predicate)

    def with_options(self, **options: Any) -> Self:
        """Set options of this statement: mode, isolation, retries, branch and others."""
        return self._with(options=self._statement.options.with_(**options))

    def explain(self) -> Plan:
        """What the statement would do, without doing it."""
        self._check()
        with self._context.temp_views() as context:
            return explain(self._statement, context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        self._check()
        with self._context.temp_views() as context:
            return run(self._statement, context)

    def _with(self, **changes: Any) -> Self:
        return replace(self, _statement=replace(self._statement, **changes))

    def _check(self) -> None:
        """Refuse a statement that is not complete."""


class Delete(_Builder):
    """DELETE: `table.delete().where("id = 7").execute()`.

    Examples:
        >>> delete = orders.delete().where("region = 'eu'")
        >>> delete.explain().files_scanned  # the whole partition: by metadata alone
        0
        >>> delete.execute().rows_deleted
        1
    """

    __slots__ = ()


class Update(_Builder):
    """UPDATE: `table.update().set("n", "n + 1").where("id = 7").execute()`.

    Every expression sees the row as it was, so two columns can be swapped.

    Examples:
        >>> result = orders.update().set("n", 0).where("id IN (1, 3)").execute()
        >>> result.rows_updated, result.total_affected
        (2, 2)
    """

    __slots__ = ()

    def set(self, column: str, expression: Expression) -> Self:
        """Assign a value to `column`: SQL text, a Column, or a plain value that is not a str."""
        if not isinstance(column, str):
            raise StatementError(f"set() takes a column name first, not {column!r}.")
        return self._with(assignments=(*self._statement.assignments, (column, expression)))

    def _check(self) -> None:
        if not self._statement.assignments:
            raise StatementError("The UPDATE sets no column. Add .set(column, expression).")


# -------------------------------------------------------------------------------------------------
# MERGE


@masked_repr
@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE: `table.merge(changes, on="target.id = source.id").when_matched()…`.

    Clauses of one kind are evaluated in order; the first whose condition is true applies.

    Examples:
        >>> changes = [{"id": 1, "op": "D"}, {"id": 2, "op": "U"}, {"id": 9, "op": "I"}]
        >>> result = (
        ...     orders.merge(changes, on="target.id = source.id")
        ...     .when_matched("source.op = 'D'")
        ...     .delete()
        ...     .when_matched()
        ...     .update({"n": "target.n + 1"})
        ...     .when_not_matched()
        ...     .insert({"id": "id", "n": 0})
        ...     .execute()
        ... )
        >>> result.rows_deleted, result.rows_updated, result.rows_inserted
        (1, 1, 1)
    """

    _context: Context
    _statement: MergeStatement

    def when_matched(self, condition: Condition | None = None) -> WhenMatched:
        """For matching rows: update or delete the table's row."""
        return WhenMatched(self, When.MATCHED, condition)

    def when_not_matched(self, condition: Condition | None = None) -> WhenNotMatched:
        """For source rows that match no row of the table: insert."""
        return WhenNotMatched(self, When.NOT_MATCHED, condition)

    def when_not_matched_by_source(
        self, condition: Condition | None = None
    ) -> WhenNotMatchedBySource:
        """For rows of the table that no source row matches: update or delete them."""
        return WhenNotMatchedBySource(self, When.NOT_MATCHED_BY_SOURCE, condition)

    def with_schema_evolution(self) -> Merge:
        """Allow the source to add columns and widen types, in the same commit."""
        return self._with(evolves_schema=True)

    def with_options(self, **options: Any) -> Merge:
        """Set options: those of every statement, enable_dpp, dpp_max_partitions, duplicates."""
        return self._with(options=self._statement.options.with_(**options))

    def explain(self) -> Plan:
        """What the statement would do; reads the source, but no row of the table."""
        with self._context.temp_views(self._statement.source.sparkSession) as context:
            return explain(self._statement, context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        with self._context.temp_views(self._statement.source.sparkSession) as context:
            return run(self._statement, context)

    def _add(self, clause: MergeClause) -> Merge:
        return self._with(clauses=(*self._statement.clauses, clause))

    def _with(self, **changes: Any) -> Merge:
        return replace(self, _statement=replace(self._statement, **changes))


@masked_repr
@dataclass(frozen=True, slots=True)
class _Clause:
    _merge: Merge
    _when: When
    _condition: Condition | None

    def _then(
        self, then: Then, assignments: Mapping[str, Expression] | tuple[()] | None = ()
    ) -> Merge:
        pairs: tuple[tuple[str, Expression], ...] | None = None
        if assignments is not None:
            pairs = tuple(assignments.items()) if isinstance(assignments, Mapping) else ()
        return self._merge._add(MergeClause(self._when, then, self._condition, pairs))


class WhenNotMatchedBySource(_Clause):
    """The action for rows of the table that no source row matches."""

    __slots__ = ()

    def update(self, assignments: Mapping[str, Expression]) -> Merge:
        """Assign new values to columns: SQL text, a Column, or a plain value that is not a str."""
        return self._then(Then.UPDATE, _checked(assignments))

    def delete(self) -> Merge:
        """Delete the row."""
        return self._then(Then.DELETE)


class WhenMatched(WhenNotMatchedBySource):
    """The action for rows of the table that a source row matches."""

    __slots__ = ()

    def update_all(self) -> Merge:
        """Assign every column the value of the source column of the same name."""
        return self._then(Then.UPDATE, None)


class WhenNotMatched(_Clause):
    """The action for source rows that match no row of the table."""

    __slots__ = ()

    def insert(self, values: Mapping[str, Expression]) -> Merge:
        """Insert a row; columns that are not named are NULL."""
        return self._then(Then.INSERT, _checked(values))

    def insert_all(self) -> Merge:
        """Insert a row with the source's columns, by name."""
        return self._then(Then.INSERT, None)


def _checked(assignments: Mapping[str, Expression]) -> Mapping[str, Expression]:
    if not isinstance(assignments, Mapping) or not assignments:
        raise StatementError(
            f"A clause takes a dict of column name to expression, not {assignments!r}."
        )
    for name in assignments:
        if not isinstance(name, str):
            raise StatementError(f"A column name must be a str, not {name!r}.")
    return assignments


# -------------------------------------------------------------------------------------------------
# REPLACE WHERE and REPLACE USING


@masked_repr
@dataclass(frozen=True, slots=True)
class ReplaceWhere:
    """REPLACE WHERE: `table.replace_where("day = DATE '2026-01-31'", rows).execute()`.

    Examples:
        >>> rows = [{"id": 5, "region": "us", "n": 50}]
        >>> result = orders.replace_where("region = 'us'", rows).execute()
        >>> result.rows_deleted, result.rows_inserted
        (2, 1)
    """

    _context: Context
    _statement: ReplaceStatement

    def and_where(self, predicate: str, rows: object) -> ReplaceWhere:
        """Replace the rows of another predicate too, in the same commit.

        Every predicate is evaluated on the table as it was, and checks its own new rows.
        """
        added = (*self._statement.replacements, Replacement(predicate, rows))
        return replace(self, _statement=replace(self._statement, replacements=added))

    def with_options(self, **options: Any) -> ReplaceWhere:
        """Set options: scope ("partitions" or "rows"), check, and those of every statement."""
        updated = self._statement.options.with_(**options)
        return replace(self, _statement=replace(self._statement, options=updated))

    def explain(self) -> Plan:
        """What the statement would do, without doing it."""
        with self._context.temp_views() as context:
            return explain(self._statement, context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        with self._context.temp_views() as context:
            return run(self._statement, context)


@masked_repr
@dataclass(frozen=True, slots=True)
class ReplaceUsing:
    """REPLACE USING: `table.replace_using(["order_id"], rows).execute()`.

    Examples:
        >>> rows = [{"id": 1, "region": "us", "n": 11}, {"id": 1, "region": "us", "n": 12}]
        >>> result = orders.replace_using("id", rows).execute()
        >>> result.rows_deleted, result.rows_inserted
        (1, 2)
    """

    _context: Context
    _statement: UsingStatement

    def with_options(self, **options: Any) -> ReplaceUsing:
        """Set options of this statement: mode, isolation, retries, branch and others."""
        updated = self._statement.options.with_(**options)
        return replace(self, _statement=replace(self._statement, options=updated))

    def explain(self) -> Plan:
        """What the statement would do, without doing it."""
        return explain(self._statement, self._context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        return run(self._statement, self._context)
