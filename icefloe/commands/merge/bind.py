"""The condition and clauses of a MERGE, checked against both sides before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyspark.sql import Column, DataFrame, SparkSession
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
    refuse_nondeterministic,
    refuse_star,
    store,
)
from icefloe.commands.merge.keys import MergeKey, MergeSides, find_keys, is_identical, match_name
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
from icefloe.spark.columns import quote
from icefloe.spark.errors import of_one_row, translate_spark_errors
from icefloe.spark.expressions import expression
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Condition, Expression, MergeClause, MergeStatement, Then, When

# -------------------------------------------------------------------------------------------------
# Bare column names in a text, told which side of a MERGE they belong to.


def qualify(text: SqlText, names: Collection[str], alias: str) -> SqlText:
    """Put `alias` before each name of `names` that does not follow it; change nothing else.

    As in Spark, what may be the alias is the alias: `a.b` is the column `b` where `a` is the alias,
    and a field of the column `a` only where there is no such column.

    A clause that sees one side only may name its columns bare, but is evaluated where the other
    side's columns of the same name are at hand too. Names inside subqueries and names that a
    lambda binds are left alone.
    """
    tree = text.tree
    if tree is None:
        return text
    known = {name.lower() for name in names}
    places = sorted(
        {
            column.parts[0].meta["start"]
            for column in tree.find_all(exp.Column)
            if (first := column.parts[0].name.lower()) in known
            and not _is_qualified([part.name.lower() for part in column.parts], alias, known)
            and "start" in column.parts[0].meta
            and not _is_local(column, first)
        },
        reverse=True,
    )
    qualified = str(text)
    for start in places:
        qualified = f"{qualified[:start]}{quote(alias)}.{qualified[start:]}"
    return SqlText(qualified) if places else text


def _is_qualified(parts: list[str], alias: str, known: Collection[str]) -> bool:
    return len(parts) > 1 and parts[0] == alias.lower() and parts[1] in known


def _is_local(column: exp.Column, first: str) -> bool:
    if column.find_ancestor(exp.Select) is not None:
        return True
    scope = column.find_ancestor(exp.Lambda)
    while scope is not None:
        if any(argument.name.lower() == first for argument in scope.expressions):
            return True
        scope = scope.find_ancestor(exp.Lambda)
    return False


@dataclass(frozen=True, slots=True)
class BoundClause:
    """A clause over the joined rows; `values` are by table column."""

    when: When
    then: Then
    condition: Column | None
    values: Mapping[str, Column]
    lowered: FilePredicate  # what its condition says about the table's rows, for choosing files


@dataclass(frozen=True, slots=True)
class BoundMerge:
    """A MERGE whose every name and type is known to fit both sides."""

    sides: MergeSides
    on: Column
    keys: tuple[MergeKey, ...]
    lowered_on: FilePredicate  # what the condition demands of the table's rows alone
    clauses: tuple[BoundClause, ...]
    source_columns: Mapping[str, Column]  # as `*` takes them
    has_subquery: bool

    def numbered(self, when: When) -> list[tuple[int, BoundClause]]:
        """The clauses for such rows, with their places in the statement."""
        return [(i, clause) for i, clause in enumerate(self.clauses) if clause.when is when]

    def numbers(self, then: Then) -> list[int]:
        """The places of the clauses that do such a thing."""
        return [i for i, clause in enumerate(self.clauses) if clause.then is then]

    @property
    def updated_columns(self) -> list[str]:
        """Table columns that some clause gives a new value to."""
        updates = [clause.values for clause in self.clauses if clause.then is Then.UPDATE]
        return [name for name in self.sides.target.names if any(name in u for u in updates)]


def bind_merge(
    statement: MergeStatement,
    source: DataFrame,
    state: TableState,
    spark: SparkSession,
    resolve: ResolveTables,
    added: Sequence[str] = (),
) -> BoundMerge:
    """Check a MERGE; raises StatementError (or a kind of it) where it does not fit.

    `added` are the columns of the table's schema that the statement itself adds.
    """
    if not statement.clauses:
        raise StatementError(
            "The MERGE has no clause. Add .when_matched(), .when_not_matched() or "
            ".when_not_matched_by_source() with what to do."
        )
    _refuse_unreachable(statement.clauses)
    statement = _analysed(statement)
    binder = _Binder.of(statement, source, state, spark, resolve, added)
    expressions = [e for clause in statement.clauses for e in _expressions(clause)]
    clauses = tuple(binder.clause(clause) for clause in statement.clauses)
    return BoundMerge(
        binder.sides,
        binder.on(statement.on),
        binder.keys,
        binder.lowered(statement.on if isinstance(statement.on, str) else None),
        clauses,
        binder.source_columns,
        any(map(has_subquery, [statement.on, *expressions])),
    )


def _analysed(statement: MergeStatement) -> MergeStatement:
    """The statement with texts that are tokenized and parsed once, however many steps need it."""
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
    spark: SparkSession
    target: DataFrame  # no rows, under the target's alias
    source: DataFrame
    resolve: ResolveText
    fills_missing: bool
    keys: tuple[MergeKey, ...]
    same: tuple[MergeKey, ...]  # keys whose two sides are identical where rows match
    source_columns: Mapping[str, Column]

    @classmethod
    def of(
        cls,
        statement: MergeStatement,
        source: DataFrame,
        state: TableState,
        spark: SparkSession,
        resolve: ResolveTables,
        added: Sequence[str],
    ) -> _Binder:
        names = (statement.target_alias, statement.source_alias)
        if names[0].lower() == names[1].lower():
            raise StatementError(f"Both sides of the MERGE are called {names[0]!r}.")
        schema = spark_schema(state.schema)
        with translate_spark_errors():
            given = T.StructType(source.schema.fields[:-1])  # the last one numbers the rows
        _refuse_names(given)
        sides = MergeSides(*names, schema, given, tuple(added))
        keys = find_keys(statement.on, sides)
        return cls(
            sides,
            state,
            spark,
            spark.createDataFrame([], sides.present).alias(names[0]),
            source.alias(names[1]),
            lambda text: resolve(text, state),
            statement.evolves_schema,
            keys,
            tuple(key for key in keys if is_identical(key, sides)),
            {name: sides.source_column(name) for name in given.names},
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
        """What a condition says about the table's rows; one that is not text says nothing."""
        if condition is None:
            return ALWAYS
        if isinstance(condition, Column):
            return UNKNOWN
        fields = [f for f in self.state.schema.fields if f.name not in self.sides.added]
        return lower(
            condition,
            Schema(*fields),
            time_zone=str(self.spark.conf.get("spark.sql.session.timeZone")),
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
        """The rows that a kind of clause sees, and how its texts are read over joined rows."""
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
    ) -> dict[str, Column]:
        if clause.then is Then.DELETE:
            return {}
        if clause.assignments is None:
            given = self._by_name(clause)
        elif clause.then is Then.UPDATE:
            own = self.sides.target_column
            given = bind_assignments(clause.assignments, rows, self.sides.target, resolve, own)
        else:
            given = self._inserted(clause.assignments, rows, resolve)
        return given if clause.then is Then.UPDATE else self._completed(given)

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

    def _completed(self, values: Mapping[str, Column]) -> dict[str, Column]:
        """A value for every column: NULL where none is given."""
        for field in self.sides.target.fields:
            if field.name not in values and not field.nullable:
                raise NullabilityError(field.name)
        return {
            field.name: values[field.name]
            if field.name in values
            else F.lit(None).cast(field.dataType)
            for field in self.sides.target.fields
        }

    def _by_name(self, clause: MergeClause) -> dict[str, Column]:
        """`*`: every column of the table from the source's column of that name."""
        pairs = [(name, match_name(name, self.sides.source)) for name in self.sides.target.names]
        missing = [name for name, found in pairs if found is None]
        if missing and not self.fills_missing:
            raise SchemaMismatchError(
                f"The source lacks {', '.join(map(repr, missing))}, which "
                f"'{clause.then.value} *' needs. Give the columns one by one, or add "
                ".with_schema_evolution(), which leaves them as they are and inserts NULL."
            )
        return {
            name: self._from_source(name, found, clause.then)
            for name, found in pairs
            if found is not None and not (clause.then is Then.UPDATE and self._is_key(name, found))
        }

    def _from_source(self, name: str, found: str, then: Then) -> Column:
        value, given = self.source_columns[found], self.sides.source[found].dataType
        field = self.sides.target[name]
        if self.fills_missing:
            own = self.sides.target_column(name) if then is Then.UPDATE else None
            value, given = filled(value, given, field.dataType, own)
        return store(value, given, field, name)

    def _is_key(self, target: str, source: str) -> bool:
        """Whether matched rows have the same value in both columns, so that nothing is set."""
        return any(key.target == target and key.source == source for key in self.same)

    def _refuse_hidden_alias(self, clause: MergeClause) -> None:
        """A Column `source.op` must not mean a field of the table's own column `source`.

        A clause that sees one side is evaluated over both. Texts are qualified, Columns cannot be.
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
                f"the MERGE, which is called {alias!r}. Give SQL text, or choose another alias: "
                "target_alias=… or source_alias=…."
            )

    def _refuse_ambiguous(self, clause: MergeClause, expressions: list[Column | None]) -> None:
        """A Column of a clause that sees one side only is evaluated where both are at hand."""
        if clause.when is When.MATCHED or not any(
            isinstance(e, Column) for e in _expressions(clause)
        ):
            return
        both = self.target.crossJoin(self.source)
        analyse(
            both.select(*(e.alias(f"e{i}") for i, e in enumerate(expressions) if e is not None))
        )

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
    """A clause after one of its kind that has no condition never applies."""
    without: dict[When, MergeClause] = {}
    for clause in clauses:
        if earlier := without.get(clause.when):
            raise StatementError(
                f"The clause '{clause}' can never apply: '{earlier}' before it has no condition. "
                "Give that one a condition, or make it the last of its kind."
            )
        if clause.condition is None:
            without[clause.when] = clause


def _refuse_names(source: T.StructType) -> None:
    seen: set[str] = set()
    for field in source.fields:
        if field.name.lower().startswith(columns.PREFIX):
            raise StatementError(f"The source has a column {field.name!r}; rename it.")
        if field.name.lower() in seen:
            raise StatementError(f"The source has the column {field.name!r} twice.")
        seen.add(field.name.lower())
