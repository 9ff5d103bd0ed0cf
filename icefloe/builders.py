"""Fluent statements: each call adds to the statement, nothing happens before `execute()`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from icefloe.engine import explain, run
from icefloe.errors import StatementError
from icefloe.plan.plan import Plan
from icefloe.publishing import Context
from icefloe.results import DmlResult
from icefloe.spark.expressions import views_dropped
from icefloe.statements import Condition, Expression, RowStatement


@dataclass(frozen=True, slots=True)
class _Builder:
    _context: Context
    _statement: RowStatement

    def where(self, predicate: Condition) -> Self:
        """Change the rows for which `predicate` is true (not NULL); without it, every row."""
        if self._statement.where is not None:
            raise StatementError("where() is given twice. Join the conditions with AND.")
        return self._with(where=predicate)

    def with_options(self, **options: Any) -> Self:
        """Set options of this statement: mode, isolation, retries, branch and so on."""
        return self._with(options=self._statement.options.with_(**options))

    def explain(self) -> Plan:
        """What the statement would do, without doing it."""
        self._check()
        with views_dropped(self._context.spark):
            return explain(self._statement, self._context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        self._check()
        with views_dropped(self._context.spark):
            return run(self._statement, self._context)

    def _with(self, **changes: Any) -> Self:
        return replace(self, _statement=replace(self._statement, **changes))

    def _check(self) -> None:
        """Refuse a statement that is not complete."""


class Delete(_Builder):
    """DELETE: `table.delete().where("id = 7").execute()`."""

    __slots__ = ()


class Update(_Builder):
    """UPDATE: `table.update().set("n", "n + 1").where("id = 7").execute()`."""

    __slots__ = ()

    def set(self, column: str, expression: Expression) -> Self:
        """Give `column` a new value: SQL text, a Column, or a plain value that is not a str."""
        if not isinstance(column, str):
            raise StatementError(f"set() takes the column's name first, not {column!r}.")
        return self._with(assignments=(*self._statement.assignments, (column, expression)))

    def _check(self) -> None:
        if not self._statement.assignments:
            raise StatementError("The UPDATE sets no column. Add .set(column, expression).")
