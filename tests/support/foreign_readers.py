"""A table through other engines' eyes: each reader gives its rows as plain, comparable tuples.

A reader takes the table's files as they are on disk; nothing of icefloe is in the way. What a
reader cannot do is stated beside it, with the error or the answer that was seen.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import chdir
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any
from urllib.parse import unquote, urlparse

import chdb
import daft
import duckdb
import duckdb_extensions
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from daft.exceptions import DaftCoreException
from polars.exceptions import ComputeError
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from icefloe import Table
from support.tables import data_files, delete_files, nulls_first

Row = tuple[Any, ...]

logging.getLogger("daft").setLevel(logging.ERROR)  # advises to filter by partition


def icefloe_rows(table: Table) -> list[Row]:
    """What the others are compared with: `table.scan()`."""
    return comparable(table.iceberg, [row.asDict(recursive=True) for row in table.scan().collect()])


def read_pyiceberg(table: Table) -> list[Row]:
    iceberg = table.iceberg
    return comparable(iceberg, _dicts(iceberg.scan().to_arrow()))


def read_polars(table: Table) -> list[Row]:
    """Polars' own reader; where it refuses, Polars as users call it, which then asks PyIceberg.

    It reads position-delete files of one data file only: "iceberg reader_override='native' failed:
    position delete file not limited to one data file: …-deletes.parquet".
    """
    iceberg = table.iceberg
    override = "native"
    if any(not f.is_equality_delete and f.referenced_path is None for f in delete_files(table)):
        with pytest.raises(ComputeError, match="not limited to one data file"):
            _polars(iceberg, "native")
        override = None
    return comparable(iceberg, _dicts(_polars(iceberg, override).to_arrow()))


def read_duckdb(table: Table) -> list[Row]:
    iceberg = table.iceberg
    # DuckDB takes `%` and `#` in a path as they are.
    found = _duckdb().execute("SELECT * FROM iceberg_scan(?)", [_path(iceberg.metadata_location)])
    return comparable(iceberg, _dicts(found.to_arrow_table()))


def read_clickhouse(table: Table) -> list[Row]:
    """ClickHouse, which reads below the current folder only.

    "Code: 481. DB::Exception: File path … is not inside . (PATH_ACCESS_DENIED)".
    """
    iceberg = table.iceberg
    query = f"SELECT * FROM icebergLocal('{_path(iceberg.location())}')"
    settings = "output_format_arrow_string_as_string = 0"
    with chdir("/"):
        answer = chdb.query(f"{query} SETTINGS {settings}", "Arrow")
    return comparable(iceberg, _dicts(pa.ipc.open_file(pa.BufferReader(answer.bytes())).read_all()))


def read_daft(table: Table) -> list[Row]:
    """Daft, with the columns that it reads: see `misread_by_daft`."""
    iceberg = table.iceberg
    bad = misread_by_daft(table)
    chosen = [field.name for field in iceberg.schema().fields if field.name not in bad]
    found = daft.read_iceberg(iceberg).select(*chosen).to_arrow()
    return comparable(iceberg, _dicts(found), leave_out=bad)


def refused_by_daft(table: Table) -> bool:
    """Whether a live file has no field ids, which Daft says that it cannot read.

    "Tables registered with `add_files` rely on the `schema.name-mapping.default` property, which
    Daft does not apply yet".
    """
    schemas = [pq.read_schema(_path(file.path)) for file in data_files(table)]
    if all(any(_field_ids(column) for column in schema) for schema in schemas):
        return False
    with pytest.raises(DaftCoreException, match=r"carries no parquet field IDs"):
        read_daft(table)
    return True


def misread_by_daft(table: Table) -> set[str]:
    """Columns that come after a dropped one in a live file.

    Daft 0.7 loses its place there, in files of PyIceberg's as well: "DaftError::CorruptFile Failed
    to decode parquet column for …: Parquet error: OffsetBytes::get_read: start 1694 past chunk end
    (local 207 > len 81)", or "External: failed to fill whole buffer".
    """
    schema = table.iceberg.schema()
    known = set(schema.field_ids)
    bad: set[int] = set()
    for file in data_files(table):
        lost = False
        for column in pq.read_schema(_path(file.path)):
            ids = _field_ids(column)
            lost = lost or not ids <= known
            if lost:
                bad |= ids
    return {field.name for field in schema.fields if field.field_id in bad}


READERS: dict[str, Callable[[Table], list[Row]]] = {
    "pyiceberg": read_pyiceberg,
    "polars": read_polars,
    "duckdb": read_duckdb,
    "clickhouse": read_clickhouse,
    "daft": read_daft,
}


def one_in_turn(turn: int) -> list[str]:
    """The name of one reader: over five turns each has one."""
    names = list(READERS)
    return [names[turn % len(names)]]


def disagreements(
    table: Table, expected: list[Row] | None = None, names: Collection[str] = tuple(READERS)
) -> dict[str, Any]:
    """What each reader reads otherwise than `expected` (or icefloe's scan): missing, surplus."""
    wanted = icefloe_rows(table) if expected is None else expected
    schema = table.iceberg.schema()
    found = {}
    readers = {name: READERS[name] for name in names}
    if refused_by_daft(table):
        readers.pop("daft", None)
    for name, read in readers.items():
        seen = wanted
        if name == "clickhouse":
            seen = without_nested_nulls(wanted, schema)
        if name == "daft":
            seen = _without_columns(wanted, schema, misread_by_daft(table))
        rows = read(table)
        if rows != seen:
            found[name] = {
                "missing": [row for row in seen if row not in rows],
                "surplus": [row for row in rows if row not in seen],
                "counts": (len(seen), len(rows)),
            }
    return found


def without_nested_nulls(rows: list[Row], schema: Schema) -> list[Row]:
    """Rows as ClickHouse can have them.

    Its Array and Map have no NULL and read as empty, its Tuple reads as one of NULLs: "Nested type
    Array(String) cannot be inside Nullable type".
    """
    empty = [_empty(field.field_type) for field in schema.fields]
    return [tuple(e if v is None else v for v, e in zip(row, empty, strict=True)) for row in rows]


def _empty(kind: IcebergType) -> Any:
    match kind:
        case StructType():
            return tuple(_empty(field.field_type) for field in kind.fields)
        case ListType():
            return []
        case MapType():
            return ()
        case _:
            return None


def comparable(
    iceberg: IcebergTable, rows: Iterable[Mapping[str, Any]], leave_out: Iterable[str] = ()
) -> list[Row]:
    """Rows as sorted tuples in the table's column order; every column must be there, no other."""
    left_out = set(leave_out)
    fields = [field for field in iceberg.schema().fields if field.name not in left_out]
    names = sorted(field.name for field in fields)
    plain = []
    for row in rows:
        assert sorted(row) == names
        plain.append(tuple(_plain(row[f.name], f.field_type) for f in fields))
    return sorted(plain, key=nulls_first)


def _without_columns(rows: list[Row], schema: Schema, names: set[str]) -> list[Row]:
    kept = [i for i, field in enumerate(schema.fields) if field.name not in names]
    return sorted((tuple(row[i] for i in kept) for row in rows), key=nulls_first)


def _plain(value: Any, kind: IcebergType) -> Any:
    """One value, the same whatever engine it came from."""
    if value is None:
        return None
    match kind:
        case StructType():
            return tuple(_plain(value[f.name], f.field_type) for f in kind.fields)
        case ListType():
            return [_plain(item, kind.element_type) for item in value]
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else value
            found = ((_plain(k, kind.key_type), _plain(v, kind.value_type)) for k, v in pairs)
            return tuple(sorted(found, key=repr))
        case _:
            return _plain_leaf(value, kind)


def _plain_leaf(value: Any, kind: IcebergType) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    match kind:
        case StringType():
            return value.decode() if isinstance(value, bytes) else value
        case BinaryType():
            return bytes(value)
        case DecimalType():
            return Decimal(value)
        case DateType():
            # ClickHouse's Arrow output has days as int32.
            return value if isinstance(value, date) else date(1970, 1, 1) + timedelta(days=value)
        case TimestamptzType():
            return value.astimezone(UTC).isoformat()
        case TimestampType():
            return _naive(value).isoformat()
        case _:
            return value


def _naive(value: datetime) -> datetime:
    """A local timestamp; one that came with a zone came in UTC."""
    return (
        value.replace(tzinfo=None)
        if value.tzinfo is None
        else value.astimezone(UTC).replace(tzinfo=None)
    )


def _dicts(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()


def _polars(iceberg: IcebergTable, override: str | None) -> pl.DataFrame:
    with warnings.catch_warnings():
        # "Iceberg scan planning with the polars_iceberg plugin requires the polars_iceberg package"
        warnings.filterwarnings("ignore", message="Iceberg scan planning")
        return pl.scan_iceberg(iceberg, reader_override=override).collect()


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension)
    connection = duckdb.connect()
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("LOAD avro; LOAD iceberg; SET TimeZone = 'UTC'")
    return connection


def _path(location: str) -> str:
    return unquote(urlparse(location).path) if location.startswith("file:") else location


def _field_ids(column: pa.Field) -> set[int]:
    """The ids of an Arrow field and of what is inside it."""
    own = (column.metadata or {}).get(b"PARQUET:field_id")
    inner = [column.type.field(i) for i in range(column.type.num_fields)]
    ids = {int(own)} if own else set()
    return ids.union(*(_field_ids(child) for child in inner))
