"""Run CREATE, DROP and ALTER, and parse table properties.

Each statement returns an empty DataFrame, as in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from pyiceberg.schema import Schema
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from icefloe.commands.context import Tables
from icefloe.commands.evolve import add_columns, drop_columns, rename_column, set_properties
from icefloe.errors import (
    ColumnNotFoundError,
    CommitStateUnknownError,
    StatementError,
    TableExistsError,
    TableNotFoundError,
)
from icefloe.indexes.definitions import definitions_of
from icefloe.metadata.table_state import state_of
from icefloe.settings import TABLE_PROPERTIES
from icefloe.spark.tokens import TokenKind
from icefloe.sql.cursor import Cursor, string_value
from icefloe.sql.names import Names, full_name
from icefloe.sql.queries import check_columns, run_query
from icefloe.sql.syntax import (
    AddColumns,
    CreateIndex,
    CreateNamespace,
    CreateTable,
    Ddl,
    DropColumns,
    DropIndex,
    DropTable,
    Name,
    RenameColumn,
    RenameTable,
    SetProperties,
)
from icefloe.table import Table


class SqlLake(Tables, Protocol):
    """The lake as DDL changes it and SHOW lists it."""

    def tables(self, namespace: str | None = None) -> list[str]:
        """Names of the tables, of one namespace or of all."""
        ...

    def create_namespace(self, name: str) -> None:
        """Create a namespace if it does not exist."""
        ...

    def create_table(
        self,
        name: str,
        schema: object,
        *,
        partition_by: Sequence[str] | str = (),
        sort_by: Sequence[str] | str = (),
        properties: Mapping[str, object] | None = None,
        format_version: int = 2,
    ) -> Table:
        """Create a table; raises TableExistsError."""
        ...

    def drop_table(self, name: str, *, purge: bool = False, if_exists: bool = False) -> None:
        """Drop a table."""
        ...

    def rename_table(self, old: str, new: str) -> None:
        """Rename a table."""
        ...


def run_ddl(statement: Ddl, names: Names, lake: SqlLake, whole: str) -> DataFrame:
    """Run a statement that changes no rows."""
    match statement:
        case CreateTable():
            _create(statement, names, lake, whole)
        case CreateNamespace(name, if_not_exists):
            _create_namespace(name, if_not_exists, lake)
        case DropTable(table, if_exists, purge):
            lake.drop_table(full_name(table), purge=purge, if_exists=if_exists)
        case SetProperties(table, properties):
            full = full_name(table)
            context = lake.context(lambda branch: state_of(lake.load(full), full, branch))
            set_properties(context, lake.load(full), properties)
        case CreateIndex() | DropIndex():
            _change_indexes(statement, lake)
        case AddColumns(table, added):
            add_columns(lake.load(full_name(table)), added)
        case DropColumns():
            _drop_columns(statement, lake)
        case RenameColumn(table, old, new):
            iceberg = lake.load(full_name(table))
            rename_column(iceberg, _path(old, iceberg.schema()), new)
        case RenameTable(table, new_name):
            _rename(table, new_name, lake)
    return lake.spark.createDataFrame([], StructType([]))


def _change_indexes(statement: CreateIndex | DropIndex, lake: SqlLake) -> None:
    table, name = Table(lake, full_name(statement.table)), statement.name
    defined = definitions_of(table.iceberg.metadata)
    exists = any(definition.name.lower() == name.lower() for definition in defined)
    match statement:
        case CreateIndex(kind=kind, columns=columns, params=params):
            if not (exists and statement.if_not_exists):
                table.create_index(name, kind, columns, **params)
        case DropIndex(if_exists=if_exists):
            if exists or not if_exists:
                table.drop_index(name)


def _create(create: CreateTable, names: Names, lake: SqlLake, whole: str) -> None:
    full = full_name(create.table)
    properties = dict(create.properties)
    version = properties.pop(FORMAT_VERSION, "2")
    if not version.isdecimal():
        raise StatementError(
            f"Invalid value {version!r} for table property {FORMAT_VERSION!r}: expected 1 or 2."
        )
    if create.columns is not None:
        check_columns(create.columns, whole)
    rows: DataFrame | None = None
    schema: object = create.columns and create.columns.text
    if create.query is not None and lake.catalog.table_exists(full):
        if create.if_not_exists:
            return
        raise TableExistsError(f"Table {full} exists already. Use INSERT INTO, or IF NOT EXISTS.")
    if create.query is not None:
        schema = rows = run_query(create.query, names, whole)
    try:
        table = lake.create_table(
            full,
            schema,
            partition_by=create.partition_by,
            sort_by=create.sort_by,
            properties=properties,
            format_version=int(version),
        )
    except TableExistsError:
        if create.if_not_exists:
            return  # the rows of a query are not for an existing table either
        raise
    if rows is not None:
        _fill(table, rows, lake)


def _fill(table: Table, rows: DataFrame, lake: SqlLake) -> None:
    """Write the rows of the query; if that fails, drop the table that was created for them."""
    created = table.iceberg.metadata.table_uuid
    try:
        table.append(rows)
    except CommitStateUnknownError:
        raise
    except BaseException:
        with suppress(TableNotFoundError):
            if table.iceberg.metadata.table_uuid == created:  # not another of its name
                lake.drop_table(table.name)
        raise


def _create_namespace(name: Name, if_not_exists: bool, lake: SqlLake) -> None:
    full = ".".join(full_name((*name, "t")).split(".")[:-1])
    if not if_not_exists and lake.catalog.namespace_exists(full):
        raise StatementError(f"Namespace {full} exists already. Add IF NOT EXISTS.")
    lake.create_namespace(full)


def _drop_columns(drop: DropColumns, lake: SqlLake) -> None:
    table = lake.load(full_name(drop.table))
    paths = []
    for column in drop.columns:
        try:
            paths.append(_path(column, table.schema()))
        except ColumnNotFoundError:
            if not drop.if_exists:
                raise
    if paths:
        drop_columns(table, paths)


def _rename(old: Name, new: Name, lake: SqlLake) -> None:
    """Rename; a new name without a namespace keeps the namespace of the old one."""
    before = full_name(old)
    lake.rename_table(
        before, full_name((*before.split(".")[:-1], new[0]) if len(new) == 1 else new)
    )


def _path(name: Name, schema: Schema) -> str:
    """The path of a column or struct field in the schema."""
    if len(name) > 1 and any("." in part for part in name):
        raise StatementError(
            f"{'.'.join(name)!r}: struct fields with dots in their names are not supported."
        )
    path, top = ".".join(name), [field.name for field in schema.fields]
    try:
        schema.find_field(path, case_sensitive=False)
    except ValueError:
        raise ColumnNotFoundError(path, top) from None
    if len(name) == 1 and path.lower() not in {column.lower() for column in top}:
        raise ColumnNotFoundError(path, top)  # a dot in backticks is part of the name
    return path


# -------------------------------------------------------------------------------------------------
# Table properties in SQL: quoted names as in Spark, or names with underscores as in Trino

FORMAT_VERSION = "format-version"
_BY_TRINO = {
    name.replace(".", "_").replace("-", "_"): name
    for name in (*(declared.name for declared in TABLE_PROPERTIES), FORMAT_VERSION)
}


def stored_name(name: str) -> str:
    """The Iceberg name of a property, which may be in Trino's spelling."""
    return _BY_TRINO.get(name.lower(), name)


def parse_property(cursor: Cursor) -> tuple[str, str | list[str]]:
    """Read `name = value`; the value is a literal or Trino's ARRAY['…', …]."""
    name = _key(cursor)
    cursor.take("=")
    if cursor.take("ARRAY", "["):
        return name, _array(cursor)
    sign = "-" if cursor.take("-") else ""
    if cursor.done():
        raise cursor.expected("a value")
    token = cursor.tokens[cursor.at]
    if token.kind is TokenKind.STRING and not sign:
        value = string_value(token.text)
    elif token.kind is TokenKind.NUMBER or token.word in ("TRUE", "FALSE"):
        value = sign + token.text.lower()
    else:
        raise cursor.expected("a string, a number, TRUE or FALSE")
    cursor.at += 1
    return name, value


def parse_properties(cursor: Cursor) -> dict[str, str]:
    """Read `('name' = 'value', …)`; returns values by Iceberg name."""
    properties: dict[str, str] = {}
    for part in cursor.parenthesised("a property"):
        inside = cursor.inside(part)
        add_property(properties, *parse_property(inside))
        inside.finish()
    return properties


def add_property(properties: dict[str, str], name: str, value: str | list[str]) -> None:
    """Add a property; refuses duplicates."""
    stored = stored_name(name)
    if isinstance(value, list):
        raise StatementError(f"Table property {name!r} takes one value, not an ARRAY.")
    if stored in properties:
        raise StatementError(f"Table property {stored!r} is given twice.")
    properties[stored] = value


def _key(cursor: Cursor) -> str:
    """Read a property name: a string, or words joined by dots and dashes."""
    if not cursor.done() and cursor.tokens[cursor.at].kind is TokenKind.STRING:
        return cursor.string()
    start = cursor.at
    parts = [*cursor.dotted("a property name")]
    text = ".".join(parts)
    while cursor.word() == "-" and cursor.at > start:
        cursor.at += 1
        text += "-" + ".".join(cursor.dotted("a property name"))
    return text


def _array(cursor: Cursor) -> list[str]:
    values = []
    while cursor.word() != "]":
        values.append(cursor.string())
        if not cursor.take(","):
            break
    cursor.need("]")
    return values
