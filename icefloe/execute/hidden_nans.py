"""Keep Spark from skipping row groups by bounds that leave NaN out.

Parquet writers leave NaN out of a column's bounds, while Spark takes NaN for the largest number:
a row group of [1.0, NaN] has the upper bound 1.0, and `x > 100` would skip it and lose the NaN.
Conditions on such columns are therefore kept from Spark's Parquet filters.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, StructType
from pyspark.sql import Column
from pyspark.sql import functions as F

from icefloe.spark.columns import quote

_NAN = float("nan")


def may_hide_nans(schema: Schema, files: Sequence[DataFile]) -> set[int]:
    """The top-level columns that may hold NaN in one of the files, as far as metrics tell."""
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
