"""Iceberg schemas from every form in which a caller may describe one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pandas as pd
import pyarrow as pa
import pyarrow.types as pt
from pyiceberg import types as ice
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from icefloe.errors import ParseError, StatementError
from icefloe.schema.from_spark import from_spark, unsupported_column
from icefloe.schema.to_spark import spark_schema
from icefloe.spark import columns


def to_iceberg_schema(schema: object) -> Schema:
    """The Iceberg schema that `schema` describes, checked, with fresh field ids.

    `schema` is a DDL string, a Spark StructType or DataFrame, a PyIceberg Schema, or an Arrow
    schema, table, record batch or reader, or a pandas frame. Comments and nullability are kept.
    DDL is parsed by the active session, which the caller must have started.

    Raises ParseError for DDL Spark cannot parse, UnsupportedTableError for a type that Iceberg
    or Spark does not have, StatementError for names that cannot be used.
    """
    struct = _convert(schema)
    _check_names(struct.fields, "")
    _check_defaults(struct)
    identifier_ids = schema.identifier_field_ids if isinstance(schema, Schema) else []
    return assign_fresh_schema_ids(_indexed(struct, identifier_ids))


def _convert(schema: object) -> ice.StructType:
    match schema:
        case str():
            return from_spark(_parse_ddl(schema))
        case StructType():
            return from_spark(schema)
        case DataFrame():
            return from_spark(schema.schema)
        case Schema():
            spark_schema(schema)  # refuses the types Spark cannot read
            return schema.as_struct()
        case pa.Schema():
            return from_arrow(schema)
        case pa.Table() | pa.RecordBatch() | pa.RecordBatchReader():
            return from_arrow(schema.schema)
        case pd.DataFrame():
            return from_arrow(_pandas_schema(schema))
        case _:
            raise StatementError(
                f"Cannot take a schema from {type(schema).__name__}. Give a DDL string such as "
                "'id BIGINT NOT NULL, name STRING', a Spark StructType or DataFrame, a PyIceberg "
                "Schema, an Arrow schema or table, or a pandas frame."
            )


def _parse_ddl(text: str) -> StructType:
    try:
        parsed = DataType.fromDDL(text)
    except ParseException as error:
        # Spark Connect puts the server's stack trace behind the message.
        reason = str(error).split("JVM stacktrace:")[0].strip()
        raise ParseError(f"Cannot read the schema {text!r}: {reason}") from error
    if not isinstance(parsed, StructType):
        raise ParseError(
            f"Cannot read the schema {text!r}: it is one type, not a list of columns. "
            "Name the columns: 'id BIGINT NOT NULL, name STRING'."
        )
    return parsed


def _pandas_schema(frame: pd.DataFrame) -> pa.Schema:
    """The Arrow schema of a pandas frame; reads object columns to find their type."""
    try:
        return pa.Schema.from_pandas(frame, preserve_index=False)
    except (ValueError, TypeError) as error:
        raise StatementError(f"Cannot take a schema from the pandas frame: {error}") from error


def _check_names(fields: Iterable[ice.NestedField], path: str) -> None:
    """Refuse structs without fields and names that are empty, reserved or not unique.

    Names are case-insensitive, as Spark resolves them, and unique per level.
    """
    seen: dict[str, str] = {}
    for field in fields:
        full_name = f"{path}{field.name}"
        if not field.name:
            raise StatementError(f"A column of {path.rstrip('.') or 'the schema'} has no name.")
        if not path and field.name.lower().startswith(columns.PREFIX):
            raise StatementError(
                f"Column {field.name!r} starts with {columns.PREFIX!r}, which icefloe "
                "reserves. Rename the column."
            )
        if field.name.lower() in seen:
            raise StatementError(
                f"Columns {seen[field.name.lower()]!r} and {full_name!r} have the same name: "
                "names are case-insensitive. Rename one of them."
            )
        seen[field.name.lower()] = full_name
        _check_nested(field.field_type, full_name)
    if not seen:
        raise StatementError(
            f"Struct {path.rstrip('.')!r} has no fields. Give it at least one."
            if path
            else "The schema has no columns. Give at least one, such as 'id BIGINT'."
        )


def _check_nested(field_type: ice.IcebergType, path: str) -> None:
    match field_type:
        case ice.StructType():
            _check_names(field_type.fields, f"{path}.")
        case ice.ListType():
            _check_nested(field_type.element_type, f"{path}.element")
        case ice.MapType():
            _check_nested(field_type.key_type, f"{path}.key")
            _check_nested(field_type.value_type, f"{path}.value")


def _check_defaults(struct: ice.StructType) -> None:
    """Refuse default values: format version 2 has none, and fresh ids would drop them."""
    for field in struct.fields:
        if field.initial_default is not None or field.write_default is not None:
            raise StatementError(
                f"Column {field.name!r} has a default value, which is not supported. "
                "Leave the default out and give each row a value."
            )


def _indexed(struct: ice.StructType, identifier_ids: list[int]) -> Schema:
    """The schema; refuses a column `a.b` next to a struct `a` with a field `b`.

    Both would have the full name `a.b`.
    """
    try:
        return Schema(*struct.fields, identifier_field_ids=identifier_ids)
    except ValueError as error:
        raise StatementError(f"{error}. Rename the column that has a dot in its name.") from error


# -------------------------------------------------------------------------------------------------
# Arrow's types as Iceberg's, as far as Spark can read them

_DOC = b"doc"  # key of a column's comment in PyIceberg's Arrow metadata

_PRIMITIVES: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], ice.PrimitiveType], ...] = (
    ((pt.is_boolean,), ice.BooleanType()),
    ((pt.is_int8, pt.is_int16, pt.is_int32, pt.is_uint8, pt.is_uint16), ice.IntegerType()),
    ((pt.is_int64, pt.is_uint32), ice.LongType()),
    ((pt.is_float16, pt.is_float32), ice.FloatType()),
    ((pt.is_float64,), ice.DoubleType()),
    ((pt.is_string, pt.is_large_string, pt.is_string_view), ice.StringType()),
    # Spark has no fixed type and would write a fixed column with the wrong physical type.
    (
        (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary),
        ice.BinaryType(),
    ),
    ((pt.is_date,), ice.DateType()),
)


def from_arrow(schema: pa.Schema) -> ice.StructType:
    """The Iceberg struct of an Arrow schema; ids are unique, but only placeholders.

    Timestamps of any unit become microseconds; a time zone makes them timestamptz. Unsigned
    integers get the next wider type. Raises UnsupportedTableError for what has no counterpart.
    """
    return ice.StructType(*_fields(schema, "", count(1)))


def _fields(fields: Iterable[pa.Field], path: str, ids: Iterator[int]) -> list[ice.NestedField]:
    return [
        ice.NestedField(
            field_id=next(ids),
            name=field.name,
            field_type=_type(field.type, f"{path}{field.name}", ids),
            required=not field.nullable,
            doc=_doc(field),
        )
        for field in fields
    ]


def _doc(field: pa.Field) -> str | None:
    doc = (field.metadata or {}).get(_DOC)
    return doc.decode() if doc is not None else None


def _type(data_type: pa.DataType, path: str, ids: Iterator[int]) -> ice.IcebergType:
    if pt.is_dictionary(data_type):
        return _type(data_type.value_type, path, ids)
    if pt.is_struct(data_type):
        return ice.StructType(*_fields(data_type.fields, f"{path}.", ids))
    if _is_list(data_type):
        element = _type(data_type.value_type, f"{path}.element", ids)
        return ice.ListType(next(ids), element, not data_type.value_field.nullable)
    if pt.is_map(data_type):
        key = _type(data_type.key_type, f"{path}.key", ids)
        value = _type(data_type.item_type, f"{path}.value", ids)
        return ice.MapType(next(ids), key, next(ids), value, not data_type.item_field.nullable)
    return _primitive(data_type, path)


def _is_list(data_type: pa.DataType) -> bool:
    kinds = (
        pt.is_list,
        pt.is_large_list,
        pt.is_fixed_size_list,
        pt.is_list_view,
        pt.is_large_list_view,
    )
    return any(is_kind(data_type) for is_kind in kinds)


def _primitive(data_type: pa.DataType, path: str) -> ice.PrimitiveType:
    if pt.is_timestamp(data_type):
        return ice.TimestampType() if data_type.tz is None else ice.TimestamptzType()
    if pt.is_decimal(data_type) and 0 <= data_type.scale <= data_type.precision <= 38:
        return ice.DecimalType(data_type.precision, data_type.scale)
    for kinds, primitive in _PRIMITIVES:
        if any(is_kind(data_type) for is_kind in kinds):
            return primitive
    raise unsupported_column(path, str(data_type), _advice(data_type))


def _advice(data_type: pa.DataType) -> str:
    if pt.is_null(data_type):
        return "Give the column a type, for example pa.string()."
    if pt.is_uint64(data_type):
        return "Cast it to int64 or decimal128(20, 0)."
    return "Cast it to another type, for example string, or leave the column out."
