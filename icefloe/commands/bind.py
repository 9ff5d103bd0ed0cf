"""Bind the names, types and assignments of a statement to the table, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from icefloe.errors import (
    ColumnNotFoundError,
    NullabilityError,
    StatementError,
    TypeMismatchError,
)
from icefloe.metadata.table_state import TableState
from icefloe.pruning.comparisons import FilePredicate
from icefloe.pruning.conditions import lower
from icefloe.schema.to_spark import can_store, needs_check, spark_schema
from icefloe.spark.column_trees import ColumnReader, ColumnTree, Opaque, SqlPart, names_in, nodes_of
from icefloe.spark.columns import PREFIX, quoted
from icefloe.spark.errors import of_one_row, translate_spark_errors
from icefloe.spark.expressions import expression
from icefloe.spark.session import time_zone
from icefloe.spark.sql_text import SqlText
from icefloe.statements import Condition, Expression, RowStatement

# Replaces the tables that a text names by views of the session; the table of the state is read in
# that state.
ResolveTables = Callable[[SqlText, TableState], SqlText]

ResolveText = Callable[[SqlText], SqlText]  # for one state of the table

_PROBE = f"{PREFIX}probe"


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement whose names and types fit the table."""

    condition: Column | None
    assigned: Mapping[str, Column]
    lowered: FilePredicate  # for choosing files
    has_subquery: bool  # reads rows other than those it changes
    named: Sequence[str] | None = None  # the columns that its expressions may name; None: all


def bind_statement(
    statement: RowStatement, state: TableState, columns: ColumnReader, resolve: ResolveTables
) -> Bound:
    """Bind a statement; raises a StatementError if it does not fit the table."""
    schema = spark_schema(state.schema)
    no_rows = columns.session().createDataFrame([], schema).alias(state.alias)

    def resolved(text: SqlText) -> SqlText:
        return resolve(text, state)

    where, assignments = analysed_once(statement.where), analysed_values(statement.assignments)
    return Bound(
        bind_condition(where, no_rows, schema.names, resolved),
        bind_assignments(assignments, no_rows, schema, resolved),
        lower_condition(where, state, columns),
        _any_subquery(where, assignments, columns),
        columns_named(
            [where, *(part for pair in assignments for part in pair)], schema.names, columns
        ),
    )


def row_statement_has_subquery(statement: RowStatement, columns: ColumnReader) -> bool:
    """Whether an expression of an UPDATE or DELETE reads other tables or rows."""
    return _any_subquery(statement.where, statement.assignments, columns)


def _any_subquery(
    where: Condition | None, assignments: Sequence[tuple[str, Expression]], columns: ColumnReader
) -> bool:
    expressions = [where, *(value for _, value in assignments)]
    return any(has_subquery(expression, columns) for expression in expressions)


def analysed_once(value: Expression) -> Expression:
    """A text as SqlText, so that all steps share its tokens and tree; other values unchanged."""
    return SqlText.of(value) if isinstance(value, str) else value


def analysed_values(
    assignments: Sequence[tuple[str, Expression]],
) -> tuple[tuple[str, Expression], ...]:
    """Assignments with texts as SqlText."""
    return tuple((name, analysed_once(value)) for name, value in assignments)


def lower_condition(
    where: Condition | None, state: TableState, columns: ColumnReader
) -> FilePredicate:
    """What a condition says about files."""
    return lower(
        readable(where, columns),
        state.schema,
        time_zone=time_zone(columns.session()),
        qualifiers=frozenset({state.alias.lower()}),
    )


def readable(where: Condition | None, columns: ColumnReader) -> str | ColumnTree | None:
    """A condition in the form that can be lowered: text, or the tree of a Column."""
    return columns.tree(where) if isinstance(where, Column) else where


def has_subquery(text: Expression | None, columns: ColumnReader) -> bool:
    """Whether an expression reads other tables or rows."""
    if isinstance(text, Column):
        return any(_is_query(node, columns) for node in nodes_of(columns.tree(text)))
    if not isinstance(text, str):
        return False
    tree = SqlText.of(text).tree
    if tree is None:
        return "select" in text.lower()
    return tree.find(exp.Select, exp.Table) is not None


def _is_query(node: ColumnTree, columns: ColumnReader) -> bool:
    match node:
        case Opaque():
            return node.is_query
        case SqlPart(text):
            return has_subquery(text, columns)
        case _:
            return False


# In a text they may stand for columns that it does not spell.
_INDIRECT = ("*", "${", "\\", "identifier")


def columns_named(
    expressions: Iterable[Expression | None], names: Sequence[str], columns: ColumnReader
) -> list[str] | None:
    """The columns that expressions may name, some of which they may not; None: all."""
    given = [each for each in expressions if each is not None]
    text = "\n".join(each.lower() for each in given if isinstance(each, str))
    if not text.isascii() or any(sign in text for sign in _INDIRECT):
        return None
    if any(not name.isascii() or "`" in name or "," in name for name in names):
        return None
    in_columns: set[str] = set()
    for each in given:
        parts = names_in(columns.tree(each)) if isinstance(each, Column) else set()
        if parts is None or not all(part.isascii() for part in parts):
            return None
        in_columns |= {part.lower() for part in parts}
    return [name for name in names if name.lower() in text or name.lower() in in_columns]


def bind_condition(
    where: Condition | None, rows: DataFrame, names: Iterable[str], resolve: ResolveText
) -> Column | None:
    """A condition on `rows`; refuses one that is not boolean or not deterministic."""
    if where is None:
        return None
    if not isinstance(where, (str, Column)):
        raise StatementError(
            f"A condition is SQL text or a Column, not {type(where).__name__} {where!r}."
        )
    refuse_star(where, rows)
    if isinstance(where, str) and not where.strip():
        raise StatementError("The condition is empty. Omit it to select every row.")
    with translate_spark_errors(names), of_one_row(f"The condition {str(where)!r}"):
        condition = expression(resolve(SqlText.of(where))) if isinstance(where, str) else where
        analyse(rows.filter(condition))
    other = rows.sparkSession.range(0).select(F.col("id").alias(_PROBE))
    refuse_nondeterministic(rows, other, condition, where)
    return condition


def refuse_star(value: Expression, rows: DataFrame) -> None:
    """Refuse `struct(*)`: it would include the columns that icefloe adds to rows."""
    if _has_column_star(value, rows) if isinstance(value, Column) else _has_star(value):
        raise StatementError(f"{str(value)!r} contains a star. Name the columns instead.")


def _has_star(value: Expression) -> bool:
    tree = SqlText.of(value).tree if isinstance(value, str) and "*" in value else None
    stars = tree.find_all(exp.Star) if tree is not None else ()
    return any(star.find_ancestor(exp.Select, exp.Count) is None for star in stars)


def _has_column_star(value: Column, rows: DataFrame) -> bool:
    """Whether a Column contains a star: its name then lists all columns, the probe as well."""
    try:
        schema = analyse(rows.select(F.lit(0).alias(_PROBE), "*").select(value))
    except PySparkException:
        return False  # binding reports what is wrong with it
    return any(_PROBE in field.name for field in schema.fields)


def refuse_nondeterministic(
    left: DataFrame, right: DataFrame, condition: Column, where: Condition
) -> None:
    """Refuse a condition that Spark refuses in a join because it is not deterministic."""
    with translate_spark_errors():
        try:
            analyse(left.join(right, condition))
        except PySparkException as error:
            if "NON_DETERMINISTIC" in (error.getCondition() or ""):
                raise StatementError(
                    f"The condition {str(where)!r} is not deterministic: it may select other rows "
                    "each time it runs. Store its value in a column or a table first."
                ) from error


def bind_assignments(
    assignments: tuple[tuple[str, Expression], ...],
    rows: DataFrame,
    schema: T.StructType,
    resolve: ResolveText,
    own: Callable[[str], Column] = quoted,
) -> dict[str, Column]:
    """New values by column name, cast to the type of the column; expressions are over `rows`.

    `own` returns the table's column of a name in `rows`.
    """
    if not assignments:
        return {}
    for _, value in assignments:
        refuse_star(value, rows)
    targets = [_target(name, schema) for name, _ in assignments]
    _refuse_twice(assignments, targets)
    with translate_spark_errors(schema.names):
        values = [_as_column(value, resolve) for _, value in assignments]
        types = _types_of(rows, assignments, values)
    new: dict[str, Column] = {}
    nested: dict[str, dict[tuple[str, ...], Column]] = {}
    for (_, path), value, source, kind in zip(
        targets, values, types, [t[0] for t in targets], strict=True
    ):
        stored = store(value, source, kind, ".".join(path))
        top = path[0]
        if len(path) == 1:
            new[top] = stored
        else:
            nested.setdefault(top, {})[path[1:]] = stored
    for top, fields in nested.items():
        new[top] = _with_fields(own(top), schema[top].dataType, fields)
    return new


def _types_of(
    rows: DataFrame, assignments: tuple[tuple[str, Expression], ...], values: list[Column]
) -> list[T.DataType]:
    """The types of the values; refuses generators and aggregates.

    Spark accepts these functions in a SELECT and refuses them in a WHERE.
    """
    all_set = reduce(lambda a, b: a & b, (value.isNotNull() for value in values))
    try:
        new = rows.filter(all_set).select(*(v.alias(f"v{i}") for i, v in enumerate(values)))
        return [field.dataType for field in analyse(new).fields]
    except PySparkException:
        for (name, written), value in zip(assignments, values, strict=True):
            with of_one_row(f"The value {str(written)!r} of column {name!r}"):
                analyse(rows.filter(value.isNotNull()))
        raise


def _with_fields(
    value: Column, kind: T.DataType, fields: Mapping[tuple[str, ...], Column]
) -> Column:
    """A struct with some fields replaced; the other fields of a NULL struct are NULL."""
    assert isinstance(kind, T.StructType)  # noqa: S101 - it has fields
    parts = []
    for field in kind.fields:
        part = value.getField(field.name)
        deeper = {path[1:]: new for path, new in fields.items() if path[0] == field.name}
        if () in deeper:
            part = deeper[()]
        elif deeper:
            part = _with_fields(part, field.dataType, deeper)
        parts.append(part.alias(field.name))
    return F.struct(*parts)


def store(value: Column, source: T.DataType, field: T.StructField, name: str) -> Column:
    """A value cast for a column by ANSI store assignment; overflow is an error."""
    target = field.dataType
    if isinstance(source, T.NullType) and not field.nullable:
        raise NullabilityError(name)
    if not can_store(source, target):
        raise TypeMismatchError(name, target.simpleString(), source.simpleString())
    return _fitted(value, source, target, name)


def _fitted(value: Column, source: T.DataType, target: T.DataType, name: str) -> Column:
    """A value cast to the target type: struct fields by name, overflow checked at every level."""
    if source.simpleString() == target.simpleString():
        return value
    match source, target:
        case T.StructType(), T.StructType():
            return _fitted_struct(value, source, target, name)
        case T.ArrayType(), T.ArrayType():
            inner = f"{name}.element"
            return F.transform(
                value, lambda e: _fitted(e, source.elementType, target.elementType, inner)
            )
        case T.MapType(), T.MapType():
            keyed = F.transform_keys(
                value, lambda k, _: _fitted(k, source.keyType, target.keyType, f"{name}.key")
            )
            return F.transform_values(
                keyed, lambda _, v: _fitted(v, source.valueType, target.valueType, f"{name}.value")
            )
    return _fitted_atom(value, source, target, name)


def _fitted_struct(value: Column, source: T.StructType, target: T.StructType, name: str) -> Column:
    """Reorder the fields first: Spark casts structs by position."""
    by_name = {field.name.lower(): field for field in source.fields}
    parts = []
    for field in target.fields:
        old = by_name[field.name.lower()]
        inner = value.getField(old.name)
        path = f"{name}.{field.name}"
        parts.append(_fitted(inner, old.dataType, field.dataType, path).alias(field.name))
    return F.when(value.isNotNull(), F.struct(*parts))


def _fitted_atom(value: Column, source: T.DataType, target: T.DataType, name: str) -> Column:
    if not needs_check(source, target):
        return value.cast(target)
    fitted = value.try_cast(target)
    facts = f"{name}|{target.simpleString()}|{source.simpleString()}"
    overflow = F.raise_error(F.lit(f"<icefloe-overflow>{facts}</icefloe-overflow>"))
    return F.when(value.isNotNull() & fitted.isNull(), overflow).otherwise(fitted)


def _target(name: str, schema: T.StructType) -> tuple[T.StructField, tuple[str, ...]]:
    """The column or struct field of an assignment, and its path in the table's spelling."""
    field = _find(name, schema)
    if field is not None:
        return field, (field.name,)
    fields, path = schema, []
    for part in name.split("."):
        field = _find(part, fields)
        if field is None:
            raise ColumnNotFoundError(name, schema.names)
        path.append(field.name)
        fields = field.dataType if isinstance(field.dataType, T.StructType) else T.StructType([])
    if field is None:
        raise ColumnNotFoundError(name, schema.names)
    return field, tuple(path)


def _find(name: str, schema: T.StructType) -> T.StructField | None:
    exact = [f for f in schema.fields if f.name == name]
    same = exact or [f for f in schema.fields if f.name.lower() == name.strip("`").lower()]
    return same[0] if len(same) == 1 else None


def _refuse_twice(
    assignments: tuple[tuple[str, Expression], ...],
    targets: list[tuple[T.StructField, tuple[str, ...]]],
) -> None:
    paths = [path for _, path in targets]
    for (name, _), path in zip(assignments, paths, strict=True):
        clashes = [p for p in paths if p[: len(path)] == path]
        if len(clashes) > 1:
            raise StatementError(f"Column {name!r} is assigned more than once.")


def _as_column(value: Expression, resolve: ResolveText) -> Column:
    if isinstance(value, Column):
        return value
    return expression(resolve(SqlText.of(value))) if isinstance(value, str) else F.lit(value)


def analyse(frame: DataFrame) -> T.StructType:
    """The schema of a DataFrame; makes Spark Connect analyse it now."""
    return frame.schema


# -------------------------------------------------------------------------------------------------
# Struct values without some fields of their column


def filled(
    value: Column, source: T.DataType, target: T.DataType, own: Column | None
) -> tuple[Column, T.DataType]:
    """A value with every struct field of `target`, and its type.

    Missing fields are those of `own`, the old value of the column, or NULL. Structs in lists and
    maps have no old value.
    """
    match source, target:
        case T.StructType(), T.StructType():
            return _filled_struct(value, source, target, own)
        case T.ArrayType(), T.ArrayType() if _has_struct(target):
            _, element = filled(value, source.elementType, target.elementType, None)
            inner = F.transform(
                value, lambda e: filled(e, source.elementType, target.elementType, None)[0]
            )
            return inner, T.ArrayType(element)
        case T.MapType(), T.MapType() if _has_struct(target):
            _, kind = filled(value, source.valueType, target.valueType, None)
            inner = F.transform_values(
                value, lambda _, v: filled(v, source.valueType, target.valueType, None)[0]
            )
            return inner, T.MapType(source.keyType, kind)
        case _:
            return value, source


def _filled_struct(
    value: Column, source: T.StructType, target: T.StructType, own: Column | None
) -> tuple[Column, T.DataType]:
    by_name = {field.name.lower(): field for field in source.fields}
    parts, kinds = [], []
    for field in target.fields:
        new = by_name.get(field.name.lower())
        old = own.getField(field.name) if own is not None else None
        if new is not None:
            inner = value.getField(new.name)
            part, kind = filled(inner, new.dataType, field.dataType, old)
        else:
            part = old if old is not None else F.lit(None).cast(field.dataType)
            kind = field.dataType
        parts.append(part.alias(field.name))
        kinds.append(T.StructField(field.name, kind))
    return F.when(value.isNotNull(), F.struct(*parts)), T.StructType(kinds)


def _has_struct(kind: T.DataType) -> bool:
    match kind:
        case T.StructType():
            return True
        case T.ArrayType():
            return _has_struct(kind.elementType)
        case T.MapType():
            return _has_struct(kind.valueType)
        case _:
            return False
