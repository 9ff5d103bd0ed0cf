"""What is known about when a condition is TRUE, and how AND and OR combine it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, Or


@dataclass(frozen=True, slots=True)
class Lowered:
    """A SQL condition as PyIceberg expressions, for choosing files only (Spark judges rows).

    `inclusive` is TRUE for every row the condition is TRUE for, and maybe for more; AlwaysTrue when
    nothing is known. `exact` is TRUE for exactly those rows (SQL TRUE, not NULL), None when that
    could not be said. Neither holds a NOT node. `exact` never compares a float or double column:
    bounds leave NaN out, so no file can be proven to match.
    """

    inclusive: BooleanExpression
    exact: BooleanExpression | None


ALWAYS = Lowered(AlwaysTrue(), AlwaysTrue())
NEVER = Lowered(AlwaysFalse(), AlwaysFalse())
UNKNOWN = Lowered(AlwaysTrue(), None)


def all_of(parts: Sequence[Lowered]) -> Lowered:
    """AND: what is known of one part narrows the whole."""
    exacts = [part.exact for part in parts]
    if any(exact is AlwaysFalse() for exact in exacts):
        return NEVER
    known = [exact for exact in exacts if exact is not None]
    return Lowered(
        _balanced(And, [part.inclusive for part in parts]),
        _balanced(And, known) if len(known) == len(exacts) else None,
    )


def any_of(parts: Sequence[Lowered]) -> Lowered:
    """OR: one unknown part makes the whole unknown, unless another is always true."""
    exacts = [part.exact for part in parts]
    if any(exact is AlwaysTrue() for exact in exacts):
        return ALWAYS
    known = [exact for exact in exacts if exact is not None]
    return Lowered(
        _balanced(Or, [part.inclusive for part in parts]),
        _balanced(Or, known) if len(known) == len(exacts) else None,
    )


def _balanced(join: type[And | Or], parts: Sequence[BooleanExpression]) -> BooleanExpression:
    """A tree of logarithmic depth, because PyIceberg's visitors recurse."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(join, parts[:middle]), _balanced(join, parts[middle:]))
