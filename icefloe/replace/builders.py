"""Fluent replacements: nothing happens before `execute()`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from icefloe.plan.plan import Plan
from icefloe.publishing import Context
from icefloe.replace.statements import Replacement, ReplaceStatement, UsingStatement
from icefloe.replace.using import explain_using, run_using
from icefloe.replace.where import explain_replace, run_replace
from icefloe.results import DmlResult
from icefloe.spark.expressions import views_dropped


@dataclass(frozen=True, slots=True)
class ReplaceWhere:
    """REPLACE WHERE: `table.replace_where("day = DATE '2026-01-31'", rows).execute()`."""

    _context: Context
    _statement: ReplaceStatement

    def and_where(self, predicate: str, rows: object) -> ReplaceWhere:
        """Replace the rows of another predicate too, in the same commit.

        Every predicate is judged on the table as it was, and checks its own new rows.
        """
        added = (*self._statement.replacements, Replacement(predicate, rows))
        return replace(self, _statement=replace(self._statement, replacements=added))

    def with_options(self, **options: Any) -> ReplaceWhere:
        """Set options: scope ("partitions" or "rows"), check, and those of every statement."""
        chosen = self._statement.options.with_(**options)
        return replace(self, _statement=replace(self._statement, options=chosen))

    def explain(self) -> Plan:
        """What the statement would do, without doing it."""
        with views_dropped(self._context.spark):
            return explain_replace(self._statement, self._context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        with views_dropped(self._context.spark):
            return run_replace(self._statement, self._context)


@dataclass(frozen=True, slots=True)
class ReplaceUsing:
    """REPLACE USING: `table.replace_using(["order_id"], rows).execute()`."""

    _context: Context
    _statement: UsingStatement

    def with_options(self, **options: Any) -> ReplaceUsing:
        """Set options of this statement: mode, isolation, retries, branch and so on."""
        chosen = self._statement.options.with_(**options)
        return replace(self, _statement=replace(self._statement, options=chosen))

    def explain(self) -> Plan:
        """What the statement would do, without doing it."""
        return explain_using(self._statement, self._context)

    def execute(self) -> DmlResult:
        """Run the statement and publish it as at most one snapshot."""
        return run_using(self._statement, self._context)
