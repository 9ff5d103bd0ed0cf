"""Spark's types as Iceberg's, and the error for types that one of them lacks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from pyiceberg import types as ice
from pyspark.sql import types as sp

from icefloe.errors import UnsupportedTableError

_PRIMITIVES: dict[type[sp.DataType], ice.PrimitiveType] = {
    sp.BooleanType: ice.BooleanType(),
    sp.ByteType: ice.IntegerType(),
    sp.ShortType: ice.IntegerType(),
    sp.IntegerType: ice.IntegerType(),
    sp.LongType: ice.LongType(),
    sp.FloatType: ice.FloatType(),
    sp.DoubleType: ice.DoubleType(),
    sp.CharType: ice.StringType(),
    sp.VarcharType: ice.StringType(),
    sp.BinaryType: ice.BinaryType(),
    sp.DateType: ice.DateType(),
    sp.TimestampType: ice.TimestamptzType(),
    sp.TimestampNTZType: ice.TimestampType(),
}


def from_spark(struct: sp.StructType) -> ice.StructType:
    """The Iceberg struct of a Spark schema; ids are unique, but only placeholders.

    Raises UnsupportedTableError for a type that Iceberg's format version 2 does not have.
    """
    return ice.StructType(*_fields(struct, "", count(1)))


def from_spark_type(data_type: sp.DataType, path: str, ids: Iterator[int]) -> ice.IcebergType:
    """The Iceberg type of the column `path`; nested fields take their ids from `ids`."""
    return _type(data_type, path, ids)


def unsupported_column(path: str, type_name: str, advice: str) -> UnsupportedTableError:
    """The error for a type without counterpart; `path` has dots between levels, or is empty."""
    subject = f"Column {path!r} has type {type_name}" if path else f"The type is {type_name}"
    return UnsupportedTableError(
        f"{subject}, which cannot be stored in Iceberg and read back by Spark. {advice}"
    )


def _fields(struct: sp.StructType, path: str, ids: Iterator[int]) -> list[ice.NestedField]:
    return [
        ice.NestedField(
            field_id=next(ids),
            name=field.name,
            field_type=_type(field.dataType, f"{path}{field.name}", ids),
            required=not field.nullable,
            doc=(field.metadata or {}).get("comment"),
        )
        for field in struct.fields
    ]


def _type(data_type: sp.DataType, path: str, ids: Iterator[int]) -> ice.IcebergType:
    match data_type:
        case sp.StructType():
            return ice.StructType(*_fields(data_type, f"{path}.", ids))
        case sp.ArrayType():
            element = _type(data_type.elementType, f"{path}.element", ids)
            return ice.ListType(next(ids), element, not data_type.containsNull)
        case sp.MapType():
            key = _type(data_type.keyType, f"{path}.key", ids)
            value = _type(data_type.valueType, f"{path}.value", ids)
            return ice.MapType(next(ids), key, next(ids), value, not data_type.valueContainsNull)
        case _:
            return _primitive(data_type, path)


def _primitive(data_type: sp.DataType, path: str) -> ice.PrimitiveType:
    if isinstance(data_type, sp.DecimalType):
        return ice.DecimalType(data_type.precision, data_type.scale)
    if isinstance(data_type, sp.StringType):
        return _string(data_type, path)
    primitive = _PRIMITIVES.get(type(data_type))
    if primitive is None:
        raise unsupported_column(path, data_type.simpleString(), _advice(data_type))
    return primitive


def _string(data_type: sp.StringType, path: str) -> ice.StringType:
    # Iceberg has no collations: a case-insensitive column would become case-sensitive.
    if data_type.collation != "UTF8_BINARY":
        raise unsupported_column(
            path, f"string collate {data_type.collation}", "Use STRING without a collation."
        )
    return ice.StringType()


def _advice(data_type: sp.DataType) -> str:
    if isinstance(data_type, sp.NullType):
        return "Give the column a type, for example cast(NULL as string)."
    return "Cast it to another type, for example STRING, or leave the column out."
