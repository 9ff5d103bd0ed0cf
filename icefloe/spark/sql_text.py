"""A user's SQL text, analysed once: its tokens, its syntax tree, the tables that it names.

Texts are edited by replacing slices, so that the rest reaches Spark as it was written, to the
letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp, parse_one

from icefloe.errors import StatementError
from icefloe.spark.columns import quote
from icefloe.spark.table_names import DEFAULT_NAMESPACE, TableName, find_tables
from icefloe.spark.tokens import Token, tokenize


class SqlText(str):
    """A SQL text with what was computed from it; the same object is passed from step to step.

    The tree is shared as well: read it, do not change it.
    """

    @classmethod
    def of(cls, text: str) -> SqlText:
        """The text itself if it is a SqlText already."""
        return text if isinstance(text, SqlText) else cls(text)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens, without spaces and comments."""
        return tuple(tokenize(str(self)))

    @cached_property
    def tree(self) -> exp.Expr | None:
        """Sqlglot's tree of an expression; None if sqlglot cannot parse it. Spark may accept it.

        On some texts sqlglot fails with an error of its own code (`map(1)`: IndexError).
        """
        try:
            return parse_one(str(self), read="spark", into=exp.Condition)
        except Exception:  # noqa: BLE001 - Spark decides whether the text is valid
            return None

    @cached_property
    def tables(self) -> tuple[TableName, ...]:
        """The tables that the subqueries of an expression name."""
        return find_tables(self.tokens, self, is_query=False)

    @cached_property
    def query_tables(self) -> tuple[TableName, ...]:
        """The tables that a query names."""
        return find_tables(self.tokens, self, is_query=True)


# -------------------------------------------------------------------------------------------------
# Edits


@dataclass(frozen=True, slots=True)
class EditedText:
    """A text with some of its slices replaced; maps positions back to the original text."""

    text: SqlText
    edits: tuple[tuple[int, int, str], ...] = ()  # start, end in the original; the new slice

    def origin(self, position: int) -> int:
        """The position in the original text of a position in the edited one."""
        shift = 0
        for start, end, new in self.edits:
            if position < start + shift:
                break
            if position < start + shift + len(new):
                return start
            shift += len(new) - (end - start)
        return position - shift


def rename_tables(text: SqlText, renamed: Sequence[tuple[TableName, str]]) -> EditedText:
    """Replace the names of tables; columns may still be qualified with the old names."""
    edits: list[tuple[int, int, str]] = []
    for name, new in renamed:
        edits.append((name.start, name.end, new))
        if name.alias_at is not None:
            edits.append((name.alias_at, name.alias_at, f" AS {quote(name.parts[-1])}"))
    visible = [name.parts for name, _ in renamed if name.alias_at is not None]
    return _edit(text, [*edits, *_qualifier_edits(text, visible)])


def unqualified(text: SqlText, names: Iterable[tuple[str, ...]]) -> SqlText:
    """`namespace.table.column` as `table.column`, for tables of these names."""
    return _edit(text, _qualifier_edits(text, list(names))).text


def _edit(text: SqlText, edits: Iterable[tuple[int, int, str]]) -> EditedText:
    ordered = tuple(sorted(edits))
    if not ordered:
        return EditedText(text)
    pieces, position = [], 0
    for start, end, new in ordered:
        pieces += [text[position:start], new]
        position = end
    return EditedText(SqlText("".join([*pieces, text[position:]])), ordered)


def _qualifier_edits(text: SqlText, names: Sequence[tuple[str, ...]]) -> list[tuple[int, int, str]]:
    """Edits that shorten `namespace.table.` before a column to `table.`."""
    qualified = {_lower(name) for name in names if len(name) > 1}
    if not qualified:
        return []
    tokens, tables = text.tokens, text.query_tables
    edits = []
    for name in qualified:
        width = 2 * len(name)
        for i in range(len(tokens) - width):
            run = tokens[i : i + width]
            if (
                _lower([t.name or "" for t in run[::2]]) == name
                and all(t.word == "." for t in run[1::2])
                and (i == 0 or tokens[i - 1].word != ".")
                and not any(table.start <= run[0].start < table.end for table in tables)
            ):
                _refuse_ambiguous(name, names, text)
                edits.append((run[0].start, run[-2].start, ""))
    return edits


def _refuse_ambiguous(
    name: tuple[str, ...], names: Iterable[tuple[str, ...]], text: SqlText
) -> None:
    """Refuse `namespace.table.column` where `table` may also mean something else."""
    visible = [_lower(t.parts) for t in text.query_tables if t.alias_at is not None]
    others = {_full(other) for other in (*visible, *map(_lower, names)) if other[-1] == name[-1]}
    if others - {_full(name)} or _is_used_alone(name[-1], text):
        raise StatementError(
            f"{'.'.join(name)} before a column is ambiguous: {name[-1]!r} also names something "
            "else. Give each table an alias and qualify its columns with the alias."
        )


def _is_used_alone(last: str, text: SqlText) -> bool:
    """Whether the name occurs without dots outside table names: an alias, or a name of a WITH."""
    tokens, tables = text.tokens, text.query_tables
    for i, token in enumerate(tokens):
        dotted = any(0 <= j < len(tokens) and tokens[j].word == "." for j in (i - 1, i + 1))
        inside = any(table.start <= token.start < table.end for table in tables)
        if (token.name or "").lower() == last and not dotted and not inside:
            return True
    return False


def _lower(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.lower() for part in parts)


def _full(parts: tuple[str, ...]) -> tuple[str, ...]:
    return parts if len(parts) > 1 else (DEFAULT_NAMESPACE, *parts)
