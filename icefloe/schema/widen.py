"""A table's schema widened so that it holds what a MERGE's source has: columns, fields, types."""

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
    schema: Schema, source: sp.StructType, wanted: Collection[str], last_column_id: int
) -> Schema | None:
    """The schema with the source's `wanted` columns (names in lower case); None if it has all.

    New columns and struct fields are optional and come last; a type is widened where Iceberg
    reads old files under the wider one. Field ids are given anew from `last_column_id` on.
    """
    ids = count(last_column_id + 1)
    given = {f.name.lower(): f.dataType for f in source.fields if f.name.lower() in wanted}
    fields = _merged(schema.fields, given, source, "", ids)
    if fields == schema.fields:
        return None
    return Schema(
        *fields,
        schema_id=schema.schema_id + 1,
        identifier_field_ids=list(schema.identifier_field_ids),
    )


def _merged(
    fields: tuple[ice.NestedField, ...],
    given: dict[str, sp.DataType],
    source: sp.StructType,
    path: str,
    ids: Iterator[int],
) -> tuple[ice.NestedField, ...]:
    known = {field.name.lower() for field in fields}
    widened = [
        field.model_copy(
            update={
                "field_type": _wider(
                    field.field_type, given[field.name.lower()], f"{path}{field.name}", ids
                )
            }
        )
        if field.name.lower() in given
        else field
        for field in fields
    ]
    new = [f for f in source.fields if f.name.lower() in given and f.name.lower() not in known]
    return (*widened, *(_new_field(f, path, ids) for f in new))


def _new_field(field: sp.StructField, path: str, ids: Iterator[int]) -> ice.NestedField:
    if field.name.lower().startswith(columns.PREFIX):
        raise StatementError(f"Column names may not start with {columns.PREFIX!r}: {field.name!r}.")
    kind = from_spark_type(_nullable(field.dataType), f"{path}{field.name}", ids)
    return ice.NestedField(next(ids), field.name, kind, required=False)


def _wider(
    have: ice.IcebergType, source: sp.DataType, path: str, ids: Iterator[int]
) -> ice.IcebergType:
    match have, source:
        case ice.IntegerType(), sp.LongType():
            return ice.LongType()
        case ice.FloatType(), sp.DoubleType():
            return ice.DoubleType()
        case ice.DecimalType(), sp.DecimalType() if (
            have.scale == source.scale and have.precision < source.precision
        ):
            return ice.DecimalType(source.precision, source.scale)
        case ice.StructType(), sp.StructType():
            given = {field.name.lower(): field.dataType for field in source.fields}
            return ice.StructType(*_merged(have.fields, given, source, f"{path}.", ids))
        case ice.ListType(), sp.ArrayType():
            element = _wider(have.element_type, source.elementType, f"{path}.element", ids)
            return ice.ListType(have.element_id, element, have.element_required)
        case ice.MapType(), sp.MapType():
            value = _wider(have.value_type, source.valueType, f"{path}.value", ids)
            return ice.MapType(
                have.key_id, have.key_type, have.value_id, value, have.value_required
            )
        case _:
            return have


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
