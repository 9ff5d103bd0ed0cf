"""The names under which columns are read from data files.

Spark finds Parquet columns by field id, but then takes a column's type from the field of the read
schema that has the *name* the file uses. A file from before a rename may use a name that means
another column now: it fails to be read, or worse. So where a column was ever renamed, or a name
used again, columns are read under names that no file has; Spark then goes by id alone. Elsewhere
a column has one name in all files, and is found whichever way Spark looks for it.
"""

from __future__ import annotations

from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.types import NestedField, PrimitiveType
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from icefloe.metadata.table_state import TableState
from icefloe.schema.to_spark import FIELD_ID, spark_schema, spark_type
from icefloe.spark import columns


def names_may_be_reused(state: TableState) -> bool:
    """Whether a file's names may differ from the schema's, in their case too.

    Schemas are numbered from 0: where one is missing, nobody knows what it called its columns.
    """
    schemas = state.metadata.schemas
    numbers = {schema.schema_id for schema in schemas}
    if numbers != set(range(len(schemas))) or state.metadata.current_schema_id != max(numbers):
        return True
    names = {(i, name) for schema in schemas for i, name in index_name_by_id(schema).items()}
    ids, spellings = {i for i, _ in names}, {name.lower() for _, name in names}
    return min(len(ids), len(spellings)) < len(names)


def by_id_alone(schema: Schema) -> T.StructType:
    """The Spark schema with ids, under names made of them."""
    renamed = _renamed(spark_schema(schema, with_ids=True))
    assert isinstance(renamed, T.StructType)  # noqa: S101 - a struct stays one
    return renamed


def under_own_name(field: NestedField) -> Column:
    """A column read by `by_id_alone`, under the table's names again."""
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
    """The type as Spark reads it from files, where everything may be NULL."""
    return kind.toNullable() if isinstance(kind, (T.StructType, T.ArrayType, T.MapType)) else kind
