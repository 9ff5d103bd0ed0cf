"""Schema evolution of MERGE: the table's schema with the source's new columns and wider types."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count

from pyiceberg import types as ice
from pyiceberg.schema import Schema
from pyspark.sql import types as sp

from icefloe.errors import StatementError
from icefloe.schema.from_spark import from_spark_type
from icefloe.spark import columns


def merged_schema(
    schema: Schema, source: sp.StructType, names: Collection[str], last_column_id: int
) -> Schema | None:
    """The schema with the source's columns of `names` (in lower case); None if nothing changes.

    New columns and struct fields are optional and come last; a type is widened if Iceberg can
    read old files as the wider type. New fields get ids above `last_column_id`.
    """
    ids = count(last_column_id + 1)
    types = {f.name.lower(): f.dataType for f in source.fields if f.name.lower() in names}
    fields = _merged(schema.fields, types, source, "", ids)
    if fields == schema.fields:
        return None
    return Schema(
        *fields,
        schema_id=schema.schema_id + 1,
        identifier_field_ids=list(schema.identifier_field_ids),
    )


def _merged(
    fields: tuple[ice.NestedField, ...],
    types: dict[str, sp.DataType],
    source: sp.StructType,
    path: str,
    ids: Iterator[int],
) -> tuple[ice.NestedField, ...]:
    existing = {field.name.lower() for field in fields}
    widened = [
        field.model_copy(
            update={
                "field_type": _wider(
                    field.field_type, types[field.name.lower()], f"{path}{field.name}", ids
                )
            }
        )
        if field.name.lower() in types
        else field
        for field in fields
    ]
    new = [f for f in source.fields if f.name.lower() in types.keys() - existing]
    return (*widened, *(_new_field(f, path, ids) for f in new))


def _new_field(field: sp.StructField, path: str, ids: Iterator[int]) -> ice.NestedField:
    if field.name.lower().startswith(columns.PREFIX):
        raise StatementError(f"Column names may not start with {columns.PREFIX!r}: {field.name!r}.")
    kind = from_spark_type(_nullable(field.dataType), f"{path}{field.name}", ids)
    return ice.NestedField(next(ids), field.name, kind, required=False)


def _wider(
    current: ice.IcebergType, source: sp.DataType, path: str, ids: Iterator[int]
) -> ice.IcebergType:
    match current, source:
        case ice.IntegerType(), sp.LongType():
            return ice.LongType()
        case ice.FloatType(), sp.DoubleType():
            return ice.DoubleType()
        case ice.DecimalType(), sp.DecimalType() if (
            current.scale == source.scale and current.precision < source.precision
        ):
            return ice.DecimalType(source.precision, source.scale)
        case ice.StructType(), sp.StructType():
            types = {field.name.lower(): field.dataType for field in source.fields}
            return ice.StructType(*_merged(current.fields, types, source, f"{path}.", ids))
        case ice.ListType(), sp.ArrayType():
            element = _wider(current.element_type, source.elementType, f"{path}.element", ids)
            return ice.ListType(current.element_id, element, current.element_required)
        case ice.MapType(), sp.MapType():
            value = _wider(current.value_type, source.valueType, f"{path}.value", ids)
            return ice.MapType(
                current.key_id, current.key_type, current.value_id, value, current.value_required
            )
        case _:
            return current


def _nullable(kind: sp.DataType) -> sp.DataType:
    match kind:
        case sp.StructType():
            return sp.StructType([sp.StructField(f.name, _nullable(f.dataType)) for f in kind])
        case sp.ArrayType():
            return sp.ArrayType(_nullable(kind.elementType))
        case sp.MapType():
            return sp.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case _:
            return kind
