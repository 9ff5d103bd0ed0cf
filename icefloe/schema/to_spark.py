"""Iceberg's types as Spark's, and which Spark types a column can store."""

from __future__ import annotations

from pyiceberg import types as ice
from pyiceberg.schema import Schema
from pyspark.sql import types as sp

from icefloe.schema.from_spark import unsupported_column

FIELD_ID = "parquet.field.id"  # the metadata key by which Spark matches Parquet columns to ids

_PRIMITIVES: dict[type[ice.IcebergType], sp.DataType] = {
    ice.BooleanType: sp.BooleanType(),
    ice.IntegerType: sp.IntegerType(),
    ice.LongType: sp.LongType(),
    ice.FloatType: sp.FloatType(),
    ice.DoubleType: sp.DoubleType(),
    ice.StringType: sp.StringType(),
    ice.BinaryType: sp.BinaryType(),
    ice.FixedType: sp.BinaryType(),
    ice.DateType: sp.DateType(),
    ice.TimestampType: sp.TimestampNTZType(),
    ice.TimestamptzType: sp.TimestampType(),
}

# Maximum digits before the decimal point.
_INTEGRAL_DIGITS: dict[type[sp.DataType], int] = {
    sp.ByteType: 3,
    sp.ShortType: 5,
    sp.IntegerType: 10,
    sp.LongType: 19,
}


def spark_schema(schema: Schema, *, with_ids: bool = False) -> sp.StructType:
    """The Spark schema of an Iceberg schema; a doc becomes the field's "comment".

    `with_ids` adds each field's id to its metadata, so that Spark reads Parquet columns by id.
    Raises UnsupportedTableError for a column whose type Spark's Parquet reader lacks.
    """
    return _struct(schema.as_struct(), "", with_ids)


def spark_type(t: ice.IcebergType, *, with_ids: bool = False) -> sp.DataType:
    """The Spark type of an Iceberg type; see `spark_schema`."""
    return _type(t, "", with_ids)


def can_store(source: sp.DataType, target: sp.DataType) -> bool:
    """Whether the types allow to store values of `source` in a column of `target`.

    The rules are those of Spark's ANSI store assignment, except that a fractional type is never
    stored in an integral one, which would drop digits silently. Struct fields are matched by
    case-insensitive name; both sides must have the same ones. Nullability is not checked: only
    the rows show whether a NULL meets a required field.
    """
    match source, target:
        case sp.ArrayType(), sp.ArrayType():
            return can_store(source.elementType, target.elementType)
        case sp.MapType(), sp.MapType():
            return can_store(source.keyType, target.keyType) and can_store(
                source.valueType, target.valueType
            )
        case sp.StructType(), sp.StructType():
            pairs = _paired_fields(source, target)
            return pairs is not None and all(can_store(left, right) for left, right in pairs)
        case _:
            return _can_store_atomic(source, target)


def needs_check(source: sp.DataType, target: sp.DataType) -> bool:
    """Whether a cast that `can_store` allows may overflow, so that each value must be checked.

    Rounding, as from double or int to float, is not an overflow.
    """
    match source, target:
        case sp.ArrayType(), sp.ArrayType():
            return needs_check(source.elementType, target.elementType)
        case sp.MapType(), sp.MapType():
            return needs_check(source.keyType, target.keyType) or needs_check(
                source.valueType, target.valueType
            )
        case sp.StructType(), sp.StructType():
            return any(
                needs_check(left, right) for left, right in _paired_fields(source, target) or ()
            )
        case _:
            return _needs_check_atomic(source, target)


def _struct(struct: ice.StructType, path: str, with_ids: bool) -> sp.StructType:
    return sp.StructType(
        [
            sp.StructField(
                field.name,
                _type(field.field_type, f"{path}{field.name}", with_ids),
                nullable=not field.required,
                metadata=_metadata(field, with_ids),
            )
            for field in struct.fields
        ]
    )


def _metadata(field: ice.NestedField, with_ids: bool) -> dict[str, object]:
    comment: dict[str, object] = {"comment": field.doc} if field.doc is not None else {}
    return {FIELD_ID: field.field_id, **comment} if with_ids else comment


def _type(t: ice.IcebergType, path: str, with_ids: bool) -> sp.DataType:
    prefix = f"{path}." if path else ""
    match t:
        case ice.StructType():
            return _struct(t, prefix, with_ids)
        case ice.ListType():
            element = _type(t.element_type, f"{prefix}element", with_ids)
            return sp.ArrayType(element, containsNull=not t.element_required)
        case ice.MapType():
            key = _type(t.key_type, f"{prefix}key", with_ids)
            value = _type(t.value_type, f"{prefix}value", with_ids)
            return sp.MapType(key, value, valueContainsNull=not t.value_required)
        case ice.DecimalType():
            return sp.DecimalType(t.precision, t.scale)
        case _:
            return _primitive(t, path)


def _primitive(t: ice.IcebergType, path: str) -> sp.DataType:
    primitive = _PRIMITIVES.get(type(t))
    if primitive is None:
        raise unsupported_column(path, str(t), "Use another engine for this column's table.")
    return primitive


def _paired_fields(
    source: sp.StructType, target: sp.StructType
) -> list[tuple[sp.DataType, sp.DataType]] | None:
    """The types of fields of the same name; None if the structs have different names."""
    left = {field.name.lower(): field.dataType for field in source.fields}
    right = {field.name.lower(): field.dataType for field in target.fields}
    if left.keys() != right.keys() or len(source.fields) != len(target.fields):
        return None
    return [(left[name], data_type) for name, data_type in right.items()]


def _can_store_atomic(source: sp.DataType, target: sp.DataType) -> bool:
    match source, target:
        case sp.NullType(), _:
            return True
        case sp.NumericType(), sp.IntegralType():
            return not _is_fractional(source)
        case sp.NumericType(), sp.NumericType():
            return True
        case sp.AtomicType() | sp.CalendarIntervalType(), sp.StringType():
            return True
        case sp.DateType() | sp.TimestampType() | sp.TimestampNTZType(), _:
            return isinstance(target, sp.DateType | sp.TimestampType | sp.TimestampNTZType)
        case _:
            return source == target


def _is_fractional(source: sp.NumericType) -> bool:
    if isinstance(source, sp.DecimalType):
        return source.scale > 0
    return isinstance(source, sp.FractionalType)


def _needs_check_atomic(source: sp.DataType, target: sp.DataType) -> bool:
    if source == target or isinstance(source, sp.NullType):
        return False
    match source, target:
        case sp.NumericType(), sp.DecimalType():
            return _may_overflow_decimal(source, target)
        case sp.IntegralType(), sp.IntegralType():
            return _INTEGRAL_DIGITS[type(source)] > _INTEGRAL_DIGITS[type(target)]
        case sp.DecimalType(), sp.IntegralType():
            # A type of n digits holds every number of n - 1 digits, but not all of n.
            return source.precision - source.scale >= _INTEGRAL_DIGITS[type(target)]
        case sp.FractionalType(), sp.IntegralType():
            return True
        case _:
            return False


def _may_overflow_decimal(source: sp.NumericType, target: sp.DecimalType) -> bool:
    integral_digits = target.precision - target.scale
    if isinstance(source, sp.DecimalType):
        # Rounding may add a digit: 9.95 with one digit after the point is 10.0.
        carry = 1 if target.scale < source.scale else 0
        return integral_digits < source.precision - source.scale + carry
    digits = _INTEGRAL_DIGITS.get(type(source))
    return digits is None or integral_digits < digits
