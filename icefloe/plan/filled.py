"""Values whose structs lack fields of the column they go into."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T


def filled(
    value: Column, source: T.DataType, target: T.DataType, own: Column | None
) -> tuple[Column, T.DataType]:
    """A value with every struct field of `target`, and its type.

    Missing fields come from `own`, the column as it is, or are NULL; a struct inside a list or a
    map has no `own`.
    """
    match source, target:
        case T.StructType(), T.StructType():
            return _filled_struct(value, source, target, own)
        case T.ArrayType(), T.ArrayType() if _has_struct(target):
            _, element = filled(value, source.elementType, target.elementType, None)
            inner = F.transform(
                value, lambda e: filled(e, source.elementType, target.elementType, None)[0]
            )
            return inner, T.ArrayType(element)
        case T.MapType(), T.MapType() if _has_struct(target):
            _, kind = filled(value, source.valueType, target.valueType, None)
            inner = F.transform_values(
                value, lambda _, v: filled(v, source.valueType, target.valueType, None)[0]
            )
            return inner, T.MapType(source.keyType, kind)
        case _:
            return value, source


def _filled_struct(
    value: Column, source: T.StructType, target: T.StructType, own: Column | None
) -> tuple[Column, T.DataType]:
    given = {field.name.lower(): field for field in source.fields}
    parts, kinds = [], []
    for wanted in target.fields:
        found = given.get(wanted.name.lower())
        before = own.getField(wanted.name) if own is not None else None
        if found is not None:
            inner = value.getField(found.name)
            part, kind = filled(inner, found.dataType, wanted.dataType, before)
        else:
            part = before if before is not None else F.lit(None).cast(wanted.dataType)
            kind = wanted.dataType
        parts.append(part.alias(wanted.name))
        kinds.append(T.StructField(wanted.name, kind))
    return F.when(value.isNotNull(), F.struct(*parts)), T.StructType(kinds)


def _has_struct(kind: T.DataType) -> bool:
    match kind:
        case T.StructType():
            return True
        case T.ArrayType():
            return _has_struct(kind.elementType)
        case T.MapType():
            return _has_struct(kind.valueType)
        case _:
            return False
