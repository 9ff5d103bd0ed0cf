"""Run DESCRIBE and SHOW; results have Spark's columns."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.types import NestedField
from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import TableNotFoundError
from icefloe.redaction import shown_properties
from icefloe.schema.partition_spec import partition_by_text
from icefloe.schema.to_spark import spark_type
from icefloe.spark.columns import quote
from icefloe.spark.frames import frame_of
from icefloe.sql.cursor import string_literal
from icefloe.sql.ddl import SqlLake
from icefloe.sql.names import full_name
from icefloe.sql.syntax import (
    Describe,
    Name,
    Show,
    ShowCreateTable,
    ShowIndexes,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
)
from icefloe.table import Table

_PLAIN = re.compile(r"[A-Za-z_]\w*")


def run_show(statement: Show, lake: SqlLake) -> DataFrame:
    """Run DESCRIBE or SHOW."""
    match statement:
        case Describe():
            return _describe(statement, lake)
        case ShowTables(namespace, like):
            return _tables(namespace, like, lake)
        case ShowNamespaces(like):
            spaces = [".".join(space) for space in lake.catalog.list_namespaces()]
            return text_frame("namespace", _matching(sorted(spaces), like), lake.spark)
        case ShowCreateTable(table):
            return text_frame("createtab_stmt", [_create_text(full_name(table), lake)], lake.spark)
        case ShowProperties(table):
            properties = shown_properties(lake.load(full_name(table)).properties)
            return _frame(("key", "value"), list(properties.items()), lake.spark)
        case ShowIndexes(table):
            return Table(lake, full_name(table)).indexes()


def text_frame(name: str, values: Sequence[str], spark: SparkSession) -> DataFrame:
    """A DataFrame with one string column."""
    return _frame((name,), [(value,) for value in values], spark)


def _frame(
    names: Sequence[str], rows: Sequence[tuple[str | bool | None, ...]], spark: SparkSession
) -> DataFrame:
    types = {"isTemporary": pa.bool_()}
    columns = [
        pa.array([row[i] for row in rows], types.get(name, pa.string()))
        for i, name in enumerate(names)
    ]
    return frame_of(spark, pa.table(columns, names=list(names)))


def _tables(namespace: Name | None, like: str | None, lake: SqlLake) -> DataFrame:
    """The tables of one namespace or of all."""
    space = None if namespace is None else full_name((*namespace, "t")).rpartition(".")[0]
    if space is not None and not lake.catalog.namespace_exists(space):
        raise TableNotFoundError(f"There is no namespace {space!r}.")
    pairs = [name.rpartition(".")[::2] for name in lake.tables(space)]
    rows = [(space, name, False) for space, name in pairs if _matching([name], like)]
    return _frame(("namespace", "tableName", "isTemporary"), rows, lake.spark)


def _matching(names: list[str], like: str | None) -> list[str]:
    """Names that match a pattern with `*` and `|`, as in Spark's SHOW … LIKE."""
    if like is None:
        return names
    patterns = [part.strip().lower() for part in like.split("|")]
    return [n for n in names if any(fnmatch.fnmatchcase(n.lower(), p) for p in patterns)]


def _describe(statement: Describe, lake: SqlLake) -> DataFrame:
    full = full_name(statement.table)
    iceberg = lake.load(full)
    rows: list[tuple[str, str, str | None]] = [
        (field.name, spark_type(field.field_type).simpleString(), field.doc)
        for field in iceberg.schema().fields
    ]
    parts = partition_by_text(iceberg.spec(), iceberg.schema())
    if parts:
        rows += [("# Partitioning", "", "")]
        rows += [(f"Part {i}", part, "") for i, part in enumerate(parts)]
    if statement.extended:
        rows += [
            ("", "", ""),
            ("# Detailed Table Information", "", ""),
            ("Name", full, ""),
            ("Location", iceberg.location(), ""),
            ("Provider", "iceberg", ""),
            ("Format version", str(iceberg.metadata.format_version), ""),
            ("Current snapshot", str(iceberg.metadata.current_snapshot_id), ""),
        ]
        rows += [(key, value, "") for key, value in shown_properties(iceberg.properties).items()]
    return _frame(("col_name", "data_type", "comment"), rows, lake.spark)


def _create_text(full: str, lake: SqlLake) -> str:
    """A CREATE TABLE for `lake.sql` that creates a table like this one."""
    iceberg = lake.load(full)
    columns = ",\n".join(f"  {_column(field)}" for field in iceberg.schema().fields)
    text = [f"CREATE TABLE {'.'.join(map(_name, full.split('.')))} (\n{columns})", "USING iceberg"]
    if parts := partition_by_text(iceberg.spec(), iceberg.schema()):
        text.append(f"PARTITIONED BY ({', '.join(parts)})")
    version = {"format-version": str(iceberg.metadata.format_version)}
    properties = shown_properties({**iceberg.properties, **version}).items()
    listed = ",\n".join(
        f"  {string_literal(key)} = {string_literal(value)}" for key, value in properties
    )
    return "\n".join([*text, f"TBLPROPERTIES (\n{listed})"])


def _column(field: NestedField) -> str:
    kind = spark_type(field.field_type).simpleString()
    not_null = " NOT NULL" if field.required else ""
    comment = f" COMMENT {string_literal(field.doc)}" if field.doc else ""
    return f"{_name(field.name)} {kind}{not_null}{comment}"


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name)
