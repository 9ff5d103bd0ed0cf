"""Bind the condition and clauses of a MERGE to both sides, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from icefloe.commands.bind import (
    ResolveTables,
    ResolveText,
    analyse,
    analysed_once,
    analysed_values,
    bind_assignments,
    bind_condition,
    filled,
    has_subquery,
    readable,
    refuse_nondeterministic,
    refuse_star,
    store,
)
from icefloe.commands.merge.keys import (
    MergeKey,
    MergeSides,
    Value,
    find_keys,
    is_identical,
    match_name,
)
from icefloe.errors import (
    ColumnNotFoundError,
    NullabilityError,
    SchemaMismatchError,
    StatementError,
)
from icefloe.metadata.table_state import TableState
from icefloe.pruning.comparisons import ALWAYS, UNKNOWN, FilePredicate
from icefloe.pruning.conditions import lower
from icefloe.schema.to_spark import spark_schema
from icefloe.spark import columns
from icefloe.spark.column_trees import ColumnReader
from icefloe.spark.columns import quote
from icefloe.spark.errors import of_one_row, translate_spark_errors
from icefloe.spark.expressions import expression
from icefloe.spark.session import time_zone
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Condition, Expression, MergeClause, MergeStatement, Then, When


@dataclass(frozen=True, slots=True)
class BoundClause:
    """A clause over joined rows; `values` are by column of the table."""

    when: When
    then: Then
    condition: Column | None
    values: Mapping[str, Value]
    lowered: FilePredicate  # what its condition says about rows of the table, for pruning


@dataclass(frozen=True, slots=True)
class BoundMerge:
    """A MERGE whose names and types fit both sides."""

    sides: MergeSides
    on: Column
    keys: tuple[MergeKey, ...]
    lowered_on: FilePredicate  # what the condition requires of rows of the table
    clauses: tuple[BoundClause, ...]
    has_subquery: bool

    def numbered(self, when: When) -> list[tuple[int, BoundClause]]:
        """The clauses for such rows, with their indexes in the statement."""
        return [(i, clause) for i, clause in enumerate(self.clauses) if clause.when is when]

    def numbers(self, then: Then) -> list[int]:
        """The indexes of the clauses with such an action."""
        return [i for i, clause in enumerate(self.clauses) if clause.then is then]

    @property
    def updated_columns(self) -> list[str]:
        """Columns of the table that some clause updates."""
        updates = [clause.values for clause in self.clauses if clause.then is Then.UPDATE]
        return [name for name in self.sides.target.names if any(name in u for u in updates)]


def bind_merge(
    statement: MergeStatement,
    source: DataFrame,
    state: TableState,
    columns: ColumnReader,
    resolve: ResolveTables,
    added: Sequence[str] = (),
) -> BoundMerge:
    """Bind a MERGE; raises a StatementError if it does not fit both sides.

    `added` are the columns of the table's schema that the statement itself adds.
    """
    if not statement.clauses:
        raise StatementError(
            "The MERGE has no clause. Add .when_matched(), .when_not_matched() or "
            ".when_not_matched_by_source() with an action."
        )
    _refuse_unreachable(statement.clauses)
    statement = _analysed(statement)
    binder = _Binder.of(statement, source, state, columns, resolve, added)
    clauses = tuple(binder.clause(clause) for clause in statement.clauses)
    return BoundMerge(
        binder.sides,
        binder.on(statement.on),
        binder.keys,
        binder.lowered(None if isinstance(statement.on, tuple) else statement.on),
        clauses,
        merge_has_subquery(statement, columns),
    )


def merge_has_subquery(statement: MergeStatement, columns: ColumnReader) -> bool:
    """Whether an expression of a MERGE reads other tables or rows."""
    on = statement.on if isinstance(statement.on, str | Column) else None
    expressions = [e for clause in statement.clauses for e in _expressions(clause)]
    return any(has_subquery(expression, columns) for expression in [on, *expressions])


def _analysed(statement: MergeStatement) -> MergeStatement:
    """The statement with its texts as SqlText, so that all steps share their tokens and trees."""
    clauses = tuple(
        replace(
            clause,
            condition=analysed_once(clause.condition),
            assignments=clause.assignments and analysed_values(clause.assignments),
        )
        for clause in statement.clauses
    )
    return replace(statement, on=analysed_once(statement.on), clauses=clauses)


def _expressions(clause: MergeClause) -> list[Expression]:
    return [clause.condition, *(value for _, value in clause.assignments or ())]


@dataclass(frozen=True, slots=True)
class _Binder:
    sides: MergeSides
    state: TableState
    columns: ColumnReader
    target: DataFrame  # no rows, under the target's alias
    source: DataFrame
    resolve: ResolveText
    fills_missing: bool
    keys: tuple[MergeKey, ...]
    same: tuple[MergeKey, ...]  # keys with identical values on both sides of a match

    @classmethod
    def of(
        cls,
        statement: MergeStatement,
        source: DataFrame,
        state: TableState,
        columns: ColumnReader,
        resolve: ResolveTables,
        added: Sequence[str],
    ) -> _Binder:
        names = (statement.target_alias, statement.source_alias)
        if names[0].lower() == names[1].lower():
            raise StatementError(
                f"Both sides of the MERGE are called {names[0]!r}. Choose another alias."
            )
        schema = spark_schema(state.schema)
        with translate_spark_errors():
            source_schema = T.StructType(source.schema.fields[:-1])  # without the row number
        _refuse_names(source_schema)
        sides = MergeSides(*names, schema, source_schema, tuple(added))
        on = columns.tree(statement.on) if isinstance(statement.on, Column) else statement.on
        keys = find_keys(on, sides)
        return cls(
            sides,
            state,
            columns,
            columns.session().createDataFrame([], sides.present).alias(names[0]),
            source.alias(names[1]),
            lambda text: resolve(text, state),
            statement.evolves_schema,
            keys,
            tuple(key for key in keys if is_identical(key, sides)),
        )

    @property
    def available(self) -> list[str]:
        sides = self.sides
        return [
            *(f"{sides.target_alias}.{name}" for name in sides.present.names),
            *(f"{sides.source_alias}.{name}" for name in sides.source.names),
        ]

    def on(self, on: Condition | tuple[str, ...]) -> Column:
        if isinstance(on, tuple):
            return self._equal(on)
        if not isinstance(on, (str, Column)):
            raise StatementError(
                f"A MERGE's condition is SQL text, a Column or a list of column names, not {on!r}."
            )
        if isinstance(on, str) and not on.strip():
            raise StatementError(
                "The MERGE has no condition. Give `on`, as 'target.id = source.id'."
            )
        refuse_star(on, self.target.crossJoin(self.source))
        with translate_spark_errors(self.available):
            condition = expression(self.resolve(SqlText.of(on))) if isinstance(on, str) else on
        refuse_nondeterministic(self.target, self.source, condition, on)
        with translate_spark_errors(self.available), of_one_row(f"The condition {str(on)!r}"):
            analyse(self.target.join(self.source, condition))
        return condition

    def clause(self, clause: MergeClause) -> BoundClause:
        rows, resolve = self._seen_by(clause.when)
        self._refuse_hidden_alias(clause)
        try:
            with translate_spark_errors(self.available):
                condition = bind_condition(clause.condition, rows, self.available, resolve)
                values = self._values(clause, rows, resolve)
                self._refuse_ambiguous(clause, [condition, *values.values()])
        except ColumnNotFoundError as unknown:
            raise self._other_side(clause.when, unknown) from unknown
        on_target = clause.when is When.NOT_MATCHED_BY_SOURCE
        lowered = self.lowered(clause.condition) if on_target else UNKNOWN
        return BoundClause(clause.when, clause.then, condition, values, lowered)

    def lowered(self, condition: Condition | None) -> FilePredicate:
        """What a condition says about rows of the table."""
        if condition is None:
            return ALWAYS
        fields = [f for f in self.state.schema.fields if f.name not in self.sides.added]
        return lower(
            readable(condition, self.columns),
            Schema(*fields),
            time_zone=time_zone(self.columns.session()),
            qualifiers=frozenset({self.sides.target_alias}),
        )

    def _equal(self, names: tuple[str, ...]) -> Column:
        if not names:
            raise StatementError("The MERGE has no condition: its list of columns is empty.")
        condition: Column | None = None
        for name in names:
            for schema in (self.sides.present, self.sides.source):
                if match_name(name, schema) is None:
                    raise ColumnNotFoundError(name, schema.names)
            left = self.sides.target_column(str(match_name(name, self.sides.present)))
            right = self.sides.source_column(str(match_name(name, self.sides.source)))
            condition = left == right if condition is None else condition & (left == right)
        assert condition is not None  # noqa: S101 - there is at least one name
        with translate_spark_errors(self.available):
            analyse(self.target.join(self.source, condition))
        return condition

    def _seen_by(self, when: When) -> tuple[DataFrame, ResolveText]:
        """The rows that a kind of clause sees, and how its texts are resolved on joined rows."""
        sides = self.sides
        match when:
            case When.MATCHED:
                return self.target.crossJoin(self.source), self.resolve
            case When.NOT_MATCHED:
                alias, names, rows = sides.source_alias, sides.source.names, self.source
            case When.NOT_MATCHED_BY_SOURCE:
                alias, names, rows = sides.target_alias, sides.present.names, self.target
        return rows, lambda text: self.resolve(qualify(text, names, alias))

    def _values(
        self, clause: MergeClause, rows: DataFrame, resolve: ResolveText
    ) -> dict[str, Value]:
        if clause.then is Then.DELETE:
            return {}
        values: Mapping[str, Value]
        if clause.assignments is None:
            values = self._by_name(clause)
        elif clause.then is Then.UPDATE:
            own = self.sides.target_column
            values = bind_assignments(clause.assignments, rows, self.sides.target, resolve, own)
        else:
            values = self._inserted(clause.assignments, rows, resolve)
        return dict(values) if clause.then is Then.UPDATE else self._completed(values)

    def _inserted(
        self,
        assignments: tuple[tuple[str, Expression], ...],
        rows: DataFrame,
        resolve: ResolveText,
    ) -> dict[str, Column]:
        for name, _ in assignments:
            if match_name(name, self.sides.target) is None:
                raise ColumnNotFoundError(name, self.sides.target.names)
        return bind_assignments(assignments, rows, self.sides.target, resolve)

    def _completed(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """A value for every column; NULL if the clause has none."""
        for field in self.sides.target.fields:
            if field.name not in values and not field.nullable:
                raise NullabilityError(field.name)
        return {
            field.name: values[field.name]
            if field.name in values
            else F.lit(None).cast(field.dataType)
            for field in self.sides.target.fields
        }

    def _by_name(self, clause: MergeClause) -> dict[str, Value]:
        """`*`: every column of the table from the source's column of that name."""
        pairs = [(name, match_name(name, self.sides.source)) for name in self.sides.target.names]
        missing = [name for name, source in pairs if source is None]
        if missing and not self.fills_missing:
            raise SchemaMismatchError(
                f"The source lacks {', '.join(map(repr, missing))}, which "
                f"'{clause.then.value} *' needs. List the columns one by one, or add "
                ".with_schema_evolution(), which does not update them and inserts NULL."
            )
        return {
            name: self._from_source(name, source, clause.then)
            for name, source in pairs
            if source is not None
            and not (clause.then is Then.UPDATE and self._is_key(name, source))
        }

    def _from_source(self, name: str, source: str, then: Then) -> Value:
        kind, field = self.sides.source[source].dataType, self.sides.target[name]
        if kind.simpleString() == field.dataType.simpleString():
            return self.sides.source_value(source)
        value = self.sides.source_column(source)
        if self.fills_missing:
            own = self.sides.target_column(name) if then is Then.UPDATE else None
            value, kind = filled(value, kind, field.dataType, own)
        return store(value, kind, field, name)

    def _is_key(self, target: str, source: str) -> bool:
        """Whether matched rows have the same value in both columns, so that no update is needed."""
        return any(key.target == target and key.source == source for key in self.same)

    def _refuse_hidden_alias(self, clause: MergeClause) -> None:
        """Refuse a Column such as `source.op` if the table has a nested column `source`.

        A clause that sees one side is evaluated on joined rows. Texts are qualified, Columns cannot
        be.
        """
        sides = self.sides
        alias, schema = {
            When.MATCHED: ("", T.StructType([])),
            When.NOT_MATCHED: (sides.target_alias, sides.source),
            When.NOT_MATCHED_BY_SOURCE: (sides.source_alias, sides.present),
        }[clause.when]
        name = match_name(alias, schema)
        if name is None or isinstance(schema[name].dataType, T.AtomicType):
            return
        if any(isinstance(expression, Column) for expression in _expressions(clause)):
            raise StatementError(
                f"A Column in '{clause}' may mean the nested column {name!r} or the other side of "
                f"the MERGE, which is called {alias!r}. Use SQL text, or choose another alias: "
                "target_alias=… or source_alias=…."
            )

    def _refuse_ambiguous(self, clause: MergeClause, expressions: list[Value | None]) -> None:
        """Refuse a Column that is ambiguous on joined rows, where the clause is evaluated."""
        if clause.when is When.MATCHED or not any(
            isinstance(e, Column) for e in _expressions(clause)
        ):
            return
        both = self.target.crossJoin(self.source)
        given = [e for e in expressions if isinstance(e, Column)]
        analyse(both.select(*(e.alias(f"e{i}") for i, e in enumerate(given))))

    def _other_side(self, when: When, unknown: ColumnNotFoundError) -> StatementError:
        other, seen = {
            When.MATCHED: ("", ""),
            When.NOT_MATCHED: (self.sides.target_alias, "the source"),
            When.NOT_MATCHED_BY_SOURCE: (self.sides.source_alias, "the target"),
        }[when]
        if other and unknown.column.lower().startswith(f"{other.lower()}."):
            return StatementError(
                f"{unknown.column} cannot be used in a clause for rows {when.value}: such a row "
                f"has the columns of {seen} only."
            )
        return unknown


def _refuse_unreachable(clauses: Sequence[MergeClause]) -> None:
    """Refuse a clause after one of its kind without a condition: it never applies."""
    unconditional: dict[When, MergeClause] = {}
    for clause in clauses:
        if earlier := unconditional.get(clause.when):
            raise StatementError(
                f"The clause '{clause}' can never apply: '{earlier}' before it has no condition. "
                "Give that one a condition, or make it the last of its kind."
            )
        if clause.condition is None:
            unconditional[clause.when] = clause


def _refuse_names(source: T.StructType) -> None:
    seen: set[str] = set()
    for field in source.fields:
        if field.name.lower().startswith(columns.PREFIX):
            raise StatementError(f"The source has a column {field.name!r}; rename it.")
        if field.name.lower() in seen:
            raise StatementError(f"The source has the column {field.name!r} twice.")
        seen.add(field.name.lower())


# -------------------------------------------------------------------------------------------------
# Unqualified columns


def qualify(text: SqlText, names: Collection[str], alias: str) -> SqlText:
    """Qualify the unqualified columns of `names` with `alias`.

    A clause that sees one side only may leave its columns unqualified, but it is evaluated on
    joined rows, which may have columns of the same name from the other side.

    As in Spark, a prefix that may be the alias is the alias: `a.b` is the column `b` if `a` is the
    alias, and a field of the column `a` only if there is no column `b`. Names in subqueries and
    parameters of lambdas are not changed.
    """
    tree = text.tree
    if tree is None:
        return text
    columns_of_side = {name.lower() for name in names}
    positions = sorted(
        {
            column.parts[0].meta["start"]
            for column in tree.find_all(exp.Column)
            if (first := column.parts[0].name.lower()) in columns_of_side
            and not _is_qualified(
                [part.name.lower() for part in column.parts], alias, columns_of_side
            )
            and "start" in column.parts[0].meta
            and not _is_local(column, first)
        },
        reverse=True,
    )
    qualified = str(text)
    for start in positions:
        qualified = f"{qualified[:start]}{quote(alias)}.{qualified[start:]}"
    return SqlText(qualified) if positions else text


def _is_qualified(parts: list[str], alias: str, names: Collection[str]) -> bool:
    return len(parts) > 1 and parts[0] == alias.lower() and parts[1] in names


def _is_local(column: exp.Column, first: str) -> bool:
    if column.find_ancestor(exp.Select) is not None:
        return True
    scope = column.find_ancestor(exp.Lambda)
    while scope is not None:
        if any(argument.name.lower() == first for argument in scope.expressions):
            return True
        scope = scope.find_ancestor(exp.Lambda)
    return False
