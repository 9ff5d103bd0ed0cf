"""PySpark Columns as trees of plain values, read from classic sessions and from Spark Connect.

Nothing is evaluated or decided here. What a tree says is what Spark was given: names as Spark has
split them, literals with their types. Whatever is not understood is `Opaque`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias, cast

from pyspark.sql import Column, SparkSession
from pyspark.sql import types as T

from icefloe.spark.sql_text import SqlText


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A name, of one or more parts."""

    parts: tuple[str, ...]
    children: tuple[ColumnTree, ...] = ()


@dataclass(frozen=True, slots=True)
class TypedLiteral:
    """A constant of a Spark type, which is named as in `DataType.jsonValue`; NULL is of `void`.

    Days and microseconds of dates and timestamps are counted from 1970, in UTC.
    """

    type: str
    value: bool | int | float | str
    children: tuple[ColumnTree, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator by its name in lower case, and its arguments."""

    name: str
    children: tuple[ColumnTree, ...]
    to_type: str = ""  # of a cast


@dataclass(frozen=True, slots=True)
class SqlPart:
    """A text that the server of Spark Connect parses."""

    text: SqlText
    children: tuple[ColumnTree, ...] = ()


@dataclass(frozen=True, slots=True)
class Opaque:
    """Anything else."""

    children: tuple[ColumnTree, ...] = ()
    is_query: bool = False  # reads other rows


ColumnTree: TypeAlias = ColumnPath | TypedLiteral | Call | SqlPart | Opaque

NULL = TypedLiteral("void", "NULL")


class ColumnReader:
    """Reads the Columns of a statement, each once."""

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self.session = session
        self._read: dict[int, tuple[Column, ColumnTree]] = {}  # by identity

    def tree(self, column: Column) -> ColumnTree:
        """The tree of a Column; `Opaque` if it cannot be read. Never raises."""
        if id(column) not in self._read:
            self._read[id(column)] = (column, _read_column(column, self.session))
        return self._read[id(column)][1]

    def is_unbound(self, column: Column) -> bool:
        """Whether it provably has no column of a certain DataFrame, but names alone."""
        return not any(isinstance(node, Opaque) for node in nodes_of(self.tree(column)))


def _read_column(column: Column, session: Callable[[], SparkSession]) -> ColumnTree:
    try:
        if type(column).__module__.startswith("pyspark.sql.connect"):
            return _read_connect(cast(Any, column)._expr)
        return _read_classic(column, session())
    except Exception:  # noqa: BLE001 - Spark decides whether the Column is valid
        return Opaque(is_query=True)  # it may be one


def nodes_of(tree: ColumnTree) -> Iterator[ColumnTree]:
    """Every node; trees may be too deep for a recursion."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node.children)


def names_in(tree: ColumnTree) -> set[str] | None:
    """The parts of all names as they are spelled; None where there may be others."""
    names: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ColumnPath):
            names.update(node.parts)
        elif isinstance(node, SqlPart | Opaque):
            return None
    return names


def has_only_names(tree: ColumnTree, names: Collection[str]) -> bool:
    """Whether every name is one of these, in the same spelling."""
    used = names_in(tree)
    return used is not None and used <= set(names)


# -------------------------------------------------------------------------------------------------
# Classic sessions

_CATALYST = "org.apache.spark.sql.catalyst."
_OPERATORS = {
    "And": "and",
    "Or": "or",
    "Not": "not",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
    "IsNull": "isnull",
    "IsNotNull": "isnotnull",
    "Like": "like",
    "Cast": "cast",
    "UnresolvedExtractValue": "getitem",
}
# Of which the JSON has no exact value; an object is asked for each, which takes two calls.
_ASKED_FOR = ("timestamp",)
_MOST_ASKED = 100
_EPOCH = date(1970, 1, 1)


def _read_classic(column: Column, spark: SparkSession) -> ColumnTree:
    """Read Catalyst's tree as JSON: two calls to the JVM, however large the tree is."""
    expression = cast(Any, spark)._jsparkSession.expression(cast(Any, column)._jc)
    nodes: list[Mapping[str, Any]] = json.loads(expression.toJSON())
    values = _asked_values(expression, nodes)
    has_escape = any(_class_of(node) == "Like" for node in nodes) and _has_escape(column)
    # Nodes come before their children, so that from the end each finds its children on the stack.
    stack: list[ColumnTree] = []
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        count = node["num-children"]
        children = tuple(stack[len(stack) - count :][::-1])
        del stack[len(stack) - count :]
        is_doubtful = has_escape and _class_of(node) == "Like"
        tree = Opaque(children) if is_doubtful else _catalyst(node, children, values.get(number))
        stack.append(tree)
    [root] = stack
    return root


def _class_of(node: Mapping[str, Any]) -> str:
    name = str(node["class"])
    return name.rpartition(".")[2] if name.startswith(_CATALYST) else ""


def _has_escape(column: Column) -> bool:
    """Whether a LIKE may have another escape character, which the JSON leaves out."""
    text = str(column).lower()
    return "escape" in text or "${" in text


def _asked_values(expression: Any, nodes: list[Mapping[str, Any]]) -> dict[int, int]:
    """The values of timestamps by the node's number: JSON has them in a zone, which may repeat."""
    leaves = [number for number, node in enumerate(nodes) if not node["num-children"]]
    asked = [
        (place, number)
        for place, number in enumerate(leaves)
        if _class_of(nodes[number]) == "Literal" and nodes[number]["dataType"] in _ASKED_FOR
    ]
    if not 0 < len(asked) <= _MOST_ASKED:
        return {}
    objects = expression.collectLeaves()
    return {number: objects.apply(place).value() for place, number in asked}


def _catalyst(
    node: Mapping[str, Any], children: tuple[ColumnTree, ...], value: int | None
) -> ColumnTree:
    name = _class_of(node)
    match name:
        case "Literal":
            return _literal(node, value)
        case "UnresolvedAttribute":
            return ColumnPath(tuple(_bare(node["nameParts"]).split(", ")))
        case "UnresolvedFunction":
            function = _bare(node["nameParts"]).lower()
            return Opaque(children) if node["isDistinct"] else Call(function, children)
        case "Cast":
            return Call("cast", children, str(node["dataType"]))
        case _ if name in _OPERATORS:
            return Call(_OPERATORS[name], children)
        case _:
            return Opaque(children, is_query="plan" in node or "query" in node)


def _bare(parts: str) -> str:
    """What stands between the brackets of a list."""
    return parts[1:-1]


def _literal(node: Mapping[str, Any], asked: int | None) -> ColumnTree:
    kind, text = node["dataType"], node["value"]
    if text is None:
        return NULL if kind == "void" else Opaque()
    if kind in _ASKED_FOR:
        return Opaque() if asked is None else TypedLiteral(kind, asked)
    read = _READERS.get(kind.partition("(")[0]) if isinstance(kind, str) else None
    try:
        return Opaque() if read is None else TypedLiteral(kind, read(text))
    except ValueError:  # a year of more than four digits
        return Opaque()


_READERS: Mapping[str, Callable[[str], bool | int | float | str]] = {
    "boolean": lambda text: text == "true",
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "double": float,
    "decimal": str,
    "string": str,
    "date": lambda text: (date.fromisoformat(text) - _EPOCH).days,
    "timestamp_ntz": int,
}


# -------------------------------------------------------------------------------------------------
# Spark Connect

# A name as Spark splits it: parts are bare, or in backticks.
_PART = r"[^.`]+|`[^`]+`"
_NAME = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")


def _read_connect(root: Any) -> ColumnTree:
    """Read an expression of Spark Connect's client, by the names of its classes."""
    order: list[Any] = []
    pending = [root]
    while pending:
        node = pending.pop()
        order.append(node)
        pending += node.children
    trees: dict[int, ColumnTree] = {}
    for node in reversed(order):
        trees[id(node)] = _connect(node, tuple(trees[id(child)] for child in node.children))
    return trees[id(root)]


def _connect(node: Any, children: tuple[ColumnTree, ...]) -> ColumnTree:
    match type(node).__name__:
        case "ColumnReference":
            return _connect_path(node)
        case "LiteralExpression":
            return _connect_literal(node._value, node._dataType)
        case "SQLExpression":
            return SqlPart(SqlText.of(node._expr))
        case "UnresolvedFunction" if not node._is_distinct:
            return Call(node._name.lower(), children)
        case "CastExpression":
            return Call("cast", children, _connect_type(node._data_type))
        case "UnresolvedExtractValue":
            return Call("getitem", children)
        case name:
            return Opaque(children, is_query="Subquery" in name)


def _connect_type(kind: T.DataType | str) -> str:
    """The name of a type; the server decides whether a `timestamp` in a text has a zone."""
    if isinstance(kind, T.DataType):
        return str(kind.jsonValue())
    return "timestamp or timestamp_ntz" if kind.lower() == "timestamp" else kind.lower()


def _connect_path(node: Any) -> ColumnTree:
    """The path of a name; the column of another DataFrame is not one of the table."""
    name = node._unparsed_identifier
    if node._plan_id is not None or node._is_metadata_column or not _NAME.fullmatch(name):
        return Opaque()
    return ColumnPath(tuple(part.strip("`") for part in re.findall(_PART, name)))


def _connect_literal(value: Any, kind: T.DataType) -> ColumnTree:
    if value is None:
        return NULL if isinstance(kind, T.NullType) else Opaque()
    match kind:
        case T.DecimalType():
            return TypedLiteral(_decimal_type(value, kind), f"{value:f}")
        case T.ArrayType() | T.BinaryType() | T.FloatType():
            return Opaque()
        case _:
            return TypedLiteral(str(kind.jsonValue()), value)


def _decimal_type(value: Decimal, declared: T.DecimalType) -> str:
    """The server takes the larger of the declared digits and those of the value."""
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), declared.scale, 0)
    precision = max(len(digits) + max(int(exponent), 0), declared.precision, scale)
    return f"decimal({precision},{scale})"
