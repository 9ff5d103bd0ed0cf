"""How the columns of data files are read.

Columns with NaN are kept from Spark's Parquet filters, and zeros from those by dictionaries.
Columns are read by field id, under names of their own where a name may have been reused; files
without field ids follow the name mapping.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table import TableProperties
from pyiceberg.table.name_mapping import MappedField, NameMapping, parse_mapping_from_json
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.metadata.table_state import TableState
from icefloe.schema.to_spark import FIELD_ID, spark_schema, spark_type
from icefloe.spark import columns
from icefloe.spark.columns import quote, quoted
from icefloe.storage.files import open_input

# -------------------------------------------------------------------------------------------------
# Columns that may have NaN
#
# Parquet writers leave NaN out of a column's bounds, while Spark takes NaN for the largest number:
# a row group of [1.0, NaN] has the upper bound 1.0, and `x > 100` would skip it and lose the NaN.
# Conditions on such columns must not become Parquet filters.

_NAN = float("nan")


def may_hide_nans(schema: Schema, files: Sequence[DataFile]) -> set[int]:
    """The top-level columns that may have NaN in one of the files, by their metrics."""
    return {
        field.field_id
        for field in schema.fields
        if any(_may_have_nan(leaf, file) for leaf in _float_leaves(field) for file in files)
    }


def guarded(column: Column, field: NestedField) -> Column:
    """The same values, in a form that Spark does not turn into a Parquet filter."""
    return _guarded(column, field.field_type)


def _guarded(column: Column, kind: IcebergType) -> Column:
    if isinstance(kind, (FloatType, DoubleType)):
        same = F.nanvl(column, F.lit(_NAN))
        return same.cast("float") if isinstance(kind, FloatType) else same
    if isinstance(kind, StructType):
        for field in kind.fields:
            if _float_leaves(field):
                inner = _guarded(column.getField(field.name), field.field_type)
                column = column.withField(quote(field.name), inner)
    return column


def _float_leaves(field: NestedField) -> list[int]:
    """Ids of the float and double fields that a condition can reach through structs."""
    if isinstance(field.field_type, (FloatType, DoubleType)):
        return [field.field_id]
    if isinstance(field.field_type, StructType):
        return [leaf for child in field.field_type.fields for leaf in _float_leaves(child)]
    return []


def _may_have_nan(field_id: int, file: DataFile) -> bool:
    return (file.nan_value_counts or {}).get(field_id) != 0


# -------------------------------------------------------------------------------------------------
# Columns that may have zeros
#
# -0.0 and 0.0 are equal for Spark, and two values in a dictionary: a Parquet filter `x = 0.0` or
# `x >= 0.0` skips a row group whose dictionary has -0.0 alone. Bounds do not differ by the sign.

DICTIONARY_FILTER = "parquet.filter.dictionary.enabled"


def may_have_zeros(schema: Schema, files: Sequence[DataFile]) -> bool:
    """Whether a float or double column of one of the files may have zeros, by its bounds."""
    leaves = [leaf for field in schema.fields for leaf in _float_leaves(field)]
    return any(_may_have_zero(leaf, file) for leaf in leaves for file in files)


def _may_have_zero(field_id: int, file: DataFile) -> bool:
    lower = (file.lower_bounds or {}).get(field_id)
    upper = (file.upper_bounds or {}).get(field_id)
    return not ((lower and _number(lower) > 0) or (upper and _number(upper) < 0))


def _number(bound: bytes) -> float:
    """A bound of a double, or of a float that the column may have been."""
    [number] = struct.unpack("<f" if len(bound) == 4 else "<d", bound)
    return float(number)


# -------------------------------------------------------------------------------------------------
# Names under which columns are read


def names_may_be_reused(state: TableState) -> bool:
    """Whether a file's column names may differ from the schema's, in their case too.

    Schemas are numbered from 0; the column names of a missing one are unknown.
    """
    schemas = state.metadata.schemas
    numbers = {schema.schema_id for schema in schemas}
    if numbers != set(range(len(schemas))) or state.metadata.current_schema_id != max(numbers):
        return True
    names = {(i, name) for schema in schemas for i, name in index_name_by_id(schema).items()}
    ids, spellings = {i for i, _ in names}, {name.lower() for _, name in names}
    return min(len(ids), len(spellings)) < len(names)


def by_id_alone(schema: Schema) -> T.StructType:
    """The Spark schema with ids, in which columns are named by their ids."""
    renamed = _renamed(spark_schema(schema, with_ids=True))
    assert isinstance(renamed, T.StructType)  # noqa: S101 - a struct stays one
    return renamed


def under_own_name(field: NestedField) -> Column:
    """A column that was read with `by_id_alone`, under the table's name."""
    column = F.col(columns.read_as(field.field_id))
    if not isinstance(field.field_type, PrimitiveType):
        column = column.cast(nullable(spark_type(field.field_type)))
    return column.alias(field.name, metadata={})


def _renamed(kind: T.DataType) -> T.DataType:
    match kind:
        case T.StructType():
            return T.StructType(
                [
                    T.StructField(
                        columns.read_as(f.metadata[FIELD_ID]),
                        _renamed(f.dataType),
                        f.nullable,
                        f.metadata,
                    )
                    for f in kind.fields
                ]
            )
        case T.ArrayType():
            return T.ArrayType(_renamed(kind.elementType), kind.containsNull)
        case T.MapType():
            return T.MapType(
                _renamed(kind.keyType), _renamed(kind.valueType), kind.valueContainsNull
            )
        case _:
            return kind


def nullable(kind: T.DataType) -> T.DataType:
    """The type as Spark reads it from files, where every value may be NULL."""
    return kind.toNullable() if isinstance(kind, (T.StructType, T.ArrayType, T.MapType)) else kind


# -------------------------------------------------------------------------------------------------
# Data files without field ids, read by the table's name mapping

_THREADS = 16
_ABSENT = "_icefloe_absent"


@dataclass(frozen=True)
class PhysicalLayout:
    """The column names of a file without field ids, in the table's order."""

    spark_schema: T.StructType

    def __hash__(self) -> int:
        return hash(self.spark_schema.json())

    def columns(self, schema: Schema) -> list[Column]:
        """The file's columns under the table's names and types."""
        return [
            quoted(stored.name).cast(nullable(spark_type(column.field_type))).alias(column.name)
            for stored, column in zip(self.spark_schema.fields, schema.fields, strict=True)
        ]


def physical_layouts(state: TableState, paths: Sequence[str]) -> dict[str, PhysicalLayout]:
    """The layout of each file that has no field ids."""
    text = state.metadata.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
    if text is None:
        return {}
    mapping = parse_mapping_from_json(text)
    with ThreadPoolExecutor(_THREADS) as pool:
        schemas = list(pool.map(lambda path: _arrow_schema(state, path), paths))
    return {
        path: PhysicalLayout(_layout(state.schema, mapping, stored))
        for path, stored in zip(paths, schemas, strict=True)
        if not _has_ids(stored)
    }


def _arrow_schema(state: TableState, path: str) -> pa.Schema:
    with open_input(state.io, path) as source:
        return pq.read_schema(source)


def _has_ids(schema: pa.Schema) -> bool:
    return any((field.metadata or {}).get(b"PARQUET:field_id") for field in schema)


def _layout(schema: Schema, mapping: NameMapping, stored: pa.Schema) -> T.StructType:
    names = {m.field_id: m for m in mapping.root if m.field_id is not None}
    return T.StructType(
        [_field(field, names.get(field.field_id), list(stored)) for field in schema.fields]
    )


def _field(
    field: NestedField, mapped: MappedField | None, candidates: list[pa.Field]
) -> T.StructField:
    """The stored column of a table field; one under a name that no file has if it is absent."""
    # A MappedField without children is falsy.
    accepted = set(mapped.names) if mapped is not None else set()
    stored = next((f for f in candidates if f.name in accepted), None)
    if stored is None:
        return T.StructField(f"{_ABSENT}_{field.field_id}", spark_type(field.field_type))
    children = list(mapped.fields) if mapped is not None else []
    return T.StructField(stored.name, _type(field.field_type, children, stored.type))


def _type(kind: IcebergType, mapped: list[MappedField], stored: pa.DataType) -> T.DataType:
    by_id = {m.field_id: m for m in mapped if m.field_id is not None}
    if isinstance(kind, StructType) and pa.types.is_struct(stored):
        fields = [stored.field(i) for i in range(stored.num_fields)]
        return T.StructType([_field(f, by_id.get(f.field_id), fields) for f in kind.fields])
    if isinstance(kind, ListType) and (pa.types.is_list(stored) or pa.types.is_large_list(stored)):
        inner = by_id.get(kind.element_id)
        children = list(inner.fields) if inner is not None else []
        return T.ArrayType(_type(kind.element_type, children, stored.value_type))
    if isinstance(kind, MapType) and pa.types.is_map(stored):
        key, value = by_id.get(kind.key_id), by_id.get(kind.value_id)
        return T.MapType(
            _type(kind.key_type, list(key.fields) if key is not None else [], stored.key_type),
            _type(
                kind.value_type, list(value.fields) if value is not None else [], stored.item_type
            ),
        )
    return spark_type(kind)
