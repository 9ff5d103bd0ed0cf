"""Data files without field ids: their columns are found by the table's name mapping.

Only tables with `schema.name-mapping.default` can have such files, so only for those the schemas
of the candidate files are looked at before Spark reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.name_mapping import MappedField, NameMapping, parse_mapping_from_json
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from pyspark.sql import Column
from pyspark.sql import types as T

from icefloe.execute.read_names import nullable
from icefloe.metadata.table_state import TableState
from icefloe.schema.to_spark import spark_type
from icefloe.spark.columns import quoted
from icefloe.storage.files import locate, naming_unreadable_file

_THREADS = 16
_ABSENT = "_icefloe_absent"


@dataclass(frozen=True)
class PhysicalLayout:
    """How a file without field ids is read: its own column names, in the table's order."""

    spark_schema: T.StructType

    def __hash__(self) -> int:
        return hash(self.spark_schema.json())

    def columns(self, schema: Schema) -> list[Column]:
        """The file's columns under the table's names and types."""
        return [
            quoted(stored.name).cast(nullable(spark_type(wanted.field_type))).alias(wanted.name)
            for stored, wanted in zip(self.spark_schema.fields, schema.fields, strict=True)
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
        path: PhysicalLayout(_layout(state.schema, mapping, found))
        for path, found in zip(paths, schemas, strict=True)
        if not _has_ids(found)
    }


def _arrow_schema(state: TableState, path: str) -> pa.Schema:
    place = locate(state.io, path)
    with naming_unreadable_file(path), place.filesystem.open_input_file(place.path) as source:
        return pq.read_schema(source)


def _has_ids(schema: pa.Schema) -> bool:
    return any((field.metadata or {}).get(b"PARQUET:field_id") for field in schema)


def _layout(schema: Schema, mapping: NameMapping, found: pa.Schema) -> T.StructType:
    names = {m.field_id: m for m in mapping.root if m.field_id is not None}
    return T.StructType(
        [_field(field, names.get(field.field_id), list(found)) for field in schema.fields]
    )


def _field(field: NestedField, mapped: MappedField | None, found: list[pa.Field]) -> T.StructField:
    """The stored column of a table field; a name no file has where it is absent."""
    # A MappedField without children is falsy.
    accepted = set(mapped.names) if mapped is not None else set()
    stored = next((f for f in found if f.name in accepted), None)
    if stored is None:
        return T.StructField(f"{_ABSENT}_{field.field_id}", spark_type(field.field_type))
    children = list(mapped.fields) if mapped is not None else []
    return T.StructField(stored.name, _type(field.field_type, children, stored.type))


def _type(wanted: IcebergType, mapped: list[MappedField], stored: pa.DataType) -> T.DataType:
    by_id = {m.field_id: m for m in mapped if m.field_id is not None}
    if isinstance(wanted, StructType) and pa.types.is_struct(stored):
        found = [stored.field(i) for i in range(stored.num_fields)]
        return T.StructType([_field(f, by_id.get(f.field_id), found) for f in wanted.fields])
    if isinstance(wanted, ListType) and (
        pa.types.is_list(stored) or pa.types.is_large_list(stored)
    ):
        inner = by_id.get(wanted.element_id)
        children = list(inner.fields) if inner is not None else []
        return T.ArrayType(_type(wanted.element_type, children, stored.value_type))
    if isinstance(wanted, MapType) and pa.types.is_map(stored):
        key, value = by_id.get(wanted.key_id), by_id.get(wanted.value_id)
        return T.MapType(
            _type(wanted.key_type, list(key.fields) if key is not None else [], stored.key_type),
            _type(
                wanted.value_type, list(value.fields) if value is not None else [], stored.item_type
            ),
        )
    return spark_type(wanted)
