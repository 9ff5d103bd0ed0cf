"""A MERGE as data: for icefloe's builder, and as the SQL of other engines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clause:
    """`when` is "matched", "not matched" or "not matched by source"; `values` None is `*`."""

    when: str
    condition: str | None
    then: str
    values: dict[str, str] | None = None

    def add_to(self, merge: Any) -> Any:
        kind = getattr(merge, f"when_{self.when.replace(' ', '_')}")(self.condition)
        if self.then == "delete":
            return kind.delete()
        if self.values is None:
            return kind.update_all() if self.then == "update" else kind.insert_all()
        return getattr(kind, self.then)(self.values)

    def sql(self, names: Iterable[str] | None = None, no_condition: str = "") -> str:
        """`names` are the columns that `*` stands for, where an engine does not know it."""
        condition = self.condition or no_condition
        when = self.when.upper() + (f" AND ({condition})" if condition else "")
        return f"WHEN {when} THEN {self._action(names)}"

    def _action(self, names: Iterable[str] | None) -> str:
        if self.then == "delete":
            return "DELETE"
        values = self.values
        if values is None:
            if names is None:
                return "UPDATE SET *" if self.then == "update" else "INSERT *"
            values = {name: f"source.{name}" for name in names}
        if self.then == "update":
            return "UPDATE SET " + ", ".join(f"{k} = {v}" for k, v in values.items())
        return f"INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"


def with_clauses(merge: Any, clauses: Iterable[Clause]) -> Any:
    for clause in clauses:
        merge = clause.add_to(merge)
    return merge


def reachable(clauses: Iterable[Clause]) -> list[Clause]:
    """Without those after an unconditional one of their kind, which are refused."""
    kept: list[Clause] = []
    for clause in clauses:
        if not any(k.when == clause.when and k.condition is None for k in kept):
            kept.append(clause)
    return kept
