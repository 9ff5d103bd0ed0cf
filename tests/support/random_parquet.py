"""Random Parquet files and changes to them, and how several readers read a file."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import chdb
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from icefloe.parquet.footer import ParquetBytes, group_rows, open_parquet
from icefloe.parquet.partial_rewrite import GroupChange, PartialRewrite, SplicedFile

PLENTY = settings(
    max_examples=400,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
FEW = settings(PLENTY, max_examples=6, derandomize=True)

INNER = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
TYPES: tuple[pa.DataType, ...] = (
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.decimal128(9, 2),
    pa.decimal128(18, 4),
    pa.decimal128(30, 3),
    INNER,
    pa.struct([pa.field("inner", INNER), pa.field("many", pa.list_(pa.int64()))]),
    pa.list_(pa.float64()),
    pa.list_(INNER),
    pa.map_(pa.string(), pa.int64()),
)
PROMOTED = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
CODECS = ("zstd", "snappy", "gzip", "lz4", "none")


@dataclass(frozen=True)
class Case:
    """A file to change, the new schema, the rows to update and the rows to delete."""

    rows: pa.Table
    group_rows: int
    writer: str
    options: dict[str, Any]
    schema: pa.Schema
    names: dict[str, str]
    updated: frozenset[str]
    touched: list[int] = field(repr=False)
    deleted: list[int] = field(repr=False)
    seed: int = 0
    new_columns: list[str] = field(default_factory=list)


MOST_ROWS = {"pyarrow": 400, "duckdb": 7000, "spark": 1000}
GROUP_ROWS = {"pyarrow": (1, 150), "duckdb": (2048, 2048), "spark": (50, 400)}


@st.composite
def cases(draw: Any, writers: tuple[str, ...] = ("pyarrow", "pyarrow", "duckdb")) -> Case:
    """A random file with random changes."""
    writer = draw(st.sampled_from(writers))
    count = draw(st.integers(1, MOST_ROWS[writer]))
    seed = draw(st.integers(0, 2**32))
    chance = random.Random(seed)
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=6))
    fields = [
        pa.field(f"c{i}", kind, nullable=writer != "pyarrow" or draw(st.booleans()))
        for i, kind in enumerate(kinds)
    ]
    nulls = draw(st.sampled_from([0.0, 0.2, 1.0]))
    rows = pa.table([_column(chance, f, count, nulls) for f in fields], schema=pa.schema(fields))
    options = {
        "compression": draw(st.sampled_from(CODECS)),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "use_dictionary": draw(st.booleans()),
        "write_page_index": draw(st.booleans()),
        "write_page_checksum": draw(st.booleans()),
        "data_page_size": draw(st.sampled_from([200, 1_048_576])),
        "write_batch_size": draw(
            st.sampled_from([20, 1024])
        ),  # values between two checks of the page size
        "store_decimal_as_integer": draw(st.booleans()),
    }
    group = draw(st.integers(*GROUP_ROWS[writer]))
    schema, names, new = _evolved(draw, rows.schema)
    old = [f.name for f in schema if f.name in names]
    updated = draw(st.sets(st.sampled_from(old))) if old else set()
    part = draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    deleted_share = draw(st.sampled_from([0.0, 0.0, 0.05, 1.0]))
    low = draw(st.integers(0, count - 1))
    high = draw(st.integers(low, count - 1))
    within = range(low, high + 1)
    deleted = [i for i in within if chance.random() < deleted_share]
    touched = [i for i in within if chance.random() < part]
    return Case(
        rows, group, writer, options, schema, names, frozenset(updated), touched, deleted, seed, new
    )


def write(case: Case, path: Path, spark: SparkSession) -> None:
    """Write the case's rows with its writer."""
    if case.writer == "pyarrow":
        pq.write_table(case.rows, path, row_group_size=case.group_rows, **case.options)
        return
    codec = case.options["compression"]
    codec = {"none": "uncompressed", "lz4": "lz4_raw"}.get(codec, codec)
    if case.writer == "spark":
        _write_with_spark(case, path, codec, spark)
        return
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", case.rows)
        connection.execute(
            f"COPY (FROM rows) TO '{path}' (FORMAT parquet, CODEC '{codec}', "
            f"ROW_GROUP_SIZE {case.group_rows})"  # PyArrow cannot read some V2 files
        )


def _write_with_spark(case: Case, path: Path, codec: str, spark: SparkSession) -> None:
    options = {
        "compression": codec,
        "parquet.writer.version": {"1.0": "v1", "2.0": "v2"}[case.options["data_page_version"]],
        "parquet.enable.dictionary": str(case.options["use_dictionary"]).lower(),
        "parquet.block.row.count.limit": str(case.group_rows),
        "parquet.page.row.count.limit": "40",
    }
    folder = path.with_suffix(".folder")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        spark.createDataFrame(case.rows).coalesce(1).write.options(**options).parquet(str(folder))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (written,) = folder.glob("*.parquet")
    written.rename(path)


def open_file(path: Path) -> ParquetBytes:
    """A file on disk, read by ranges."""
    data = path.read_bytes()
    return open_parquet(str(path), len(data), lambda start, length: data[start : start + length])


def rewrite_partially(case: Case, source: Path, target: Path) -> tuple[SplicedFile, pa.Table]:
    """Rewrite the file; returns what was written, and the rows that should be in it."""
    old = pq.ParquetFile(source).read()
    file = open_file(source)
    schema = _as_read(case, old.schema)
    after = changed_rows(case, old, schema)
    keep = np.ones(old.num_rows, dtype=bool)
    keep[case.deleted] = False
    starts = np.cumsum([0, *(group_rows(group) for group in file.groups)])
    changes = []
    for start, end in pairwise(starts):
        hit = bool(case.updated) and any(start <= i < end for i in case.touched)
        changes.append(
            GroupChange(int(keep[start:end].sum()), case.updated if hit else frozenset())
        )

    def new_rows(group: int, names: Any) -> Any:
        start, end = starts[group], starts[group + 1]
        part = after.slice(start, end - start).filter(pa.array(keep[start:end]))
        return part.select(names)

    rewrite = PartialRewrite.plan(file, schema, case.names, _writer_options(case))
    with target.open("wb") as sink:
        spliced = rewrite.run(sink, changes, new_rows)
    assert spliced.bytes_copied >= rewrite.bytes_to_copy(changes)
    return spliced, after.filter(pa.array(keep))


def changed_rows(case: Case, old: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the new schema, with new values, before rows are deleted."""
    chance = random.Random(case.seed + 1)
    columns = []
    for target in schema:
        if target.name not in case.names:
            columns.append(_column(chance, target, old.num_rows, 0.5))
            continue
        column = old.column(case.names[target.name]).cast(target.type).combine_chunks()
        if target.name in case.updated and case.touched:
            new = _column(chance, target, len(case.touched), 0.2)
            indices = np.arange(old.num_rows)
            indices[case.touched] = old.num_rows + np.arange(len(case.touched))
            both = pa.concat_arrays([column, new.cast(target.type)])
            column = both.take(pa.array(indices))
        columns.append(column)
    return pa.table(columns, schema=schema)


def by_pyarrow(path: Path) -> str:
    return repr(pq.ParquetFile(path, page_checksum_verification=True).read().to_pylist())


def by_spark(path: Path, spark: SparkSession) -> str:
    checked = spark.read.option("parquet.page.verify-checksum.enabled", "true")
    return repr(checked.parquet(str(path)).toArrow().to_pylist())


def by_duckdb(path: Path) -> str:
    with duckdb.connect() as connection:
        return repr(connection.sql(f"FROM read_parquet('{path}')").fetchall())


def by_polars(path: Path) -> str:
    return repr(pl.read_parquet(path).rows())


def polars_reads(path: Path) -> bool:
    """Whether Polars supports every encoding of a file: it lacks one that parquet-mr writes."""
    try:
        pl.read_parquet(path)
    except pl.exceptions.ComputeError as error:
        if "Not yet supported" not in str(error):
            raise
        return False
    return True


def by_clickhouse(path: Path) -> str:
    """Sorted, because ClickHouse returns row groups in any order."""
    answer = chdb.query(f"SELECT * FROM file('{path}', Parquet)", "JSONCompactEachRow")
    return repr(sorted(answer.bytes().splitlines()))


READERS: tuple[Callable[[Path], str], ...] = (by_pyarrow, by_duckdb, by_polars, by_clickhouse)


def _evolved(draw: Any, schema: pa.Schema) -> tuple[pa.Schema, dict[str, str], list[str]]:
    """Sometimes another schema: columns added, dropped, promoted, renamed, in another order."""
    names = {f.name: f.name for f in schema}
    if not draw(st.sampled_from([False, False, True])):
        return schema, names, []
    fields = [f.with_type(PROMOTED.get(f.type, f.type)) for f in schema]
    names = {}
    evolved = []
    for target in fields:
        action = draw(st.sampled_from(["keep", "keep", "keep", "rename", "drop"]))
        if action != "drop":
            name = f"{target.name} renamed" if action == "rename" else target.name
            names[name] = target.name
            evolved.append(target.with_name(name))
    evolved.append(pa.field("added", draw(st.sampled_from(TYPES))))
    return pa.schema(draw(st.permutations(evolved))), names, ["added"]


def _as_read(case: Case, file_schema: pa.Schema) -> pa.Schema:
    """The case's schema, with the file's types for columns that the case does not promote."""
    fields = []
    for target in case.schema:
        if target.name not in case.names:
            fields.append(target)
            continue
        name = case.names[target.name]
        old = file_schema.field(name)
        promoted = target.type != case.rows.schema.field(name).type
        fields.append((old.with_type(target.type) if promoted else old).with_name(target.name))
    return pa.schema(fields)


def _writer_options(case: Case) -> dict[str, Any]:
    return {
        "compression": "zstd",
        "store_decimal_as_integer": case.options["store_decimal_as_integer"]
        or case.writer != "pyarrow",
        "data_page_size": 500,
    }


def _column(chance: random.Random, target: pa.Field, count: int, nulls: float) -> pa.Array:
    share = nulls if target.nullable else 0.0
    values = [
        None if chance.random() < share else _value(chance, target.type) for _ in range(count)
    ]
    return pa.array(values, target.type)


def _value(chance: random.Random, kind: pa.DataType) -> Any:
    few = chance.random() < 0.5
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        return chance.randrange(-5, 5) if few else chance.randrange(-(2**31), 2**31)
    if pa.types.is_floating(kind):
        special = [float("nan"), float("inf"), -0.0, 0.0, 1.5]
        number = chance.choice(special) if few else chance.uniform(-1e6, 1e6)
        return float(np.float32(number)) if kind == pa.float32() else number
    if pa.types.is_string(kind):
        return chance.choice(["", "a", "é", "long " * 20]) if few else str(chance.random())
    if pa.types.is_binary(kind):
        return chance.randbytes(chance.randrange(6))
    if pa.types.is_date(kind):
        return date(1970, 1, 1) + timedelta(days=chance.randrange(-10_000, 20_000))
    if pa.types.is_timestamp(kind):
        zone = UTC if kind.tz else None
        return datetime(2000, 1, 1, tzinfo=zone) + timedelta(microseconds=chance.randrange(10**15))
    if pa.types.is_decimal(kind):
        digits = chance.randrange(-(10**kind.precision) + 1, 10**kind.precision)
        return Decimal(digits).scaleb(-kind.scale)
    if pa.types.is_struct(kind):
        return {f.name: _maybe(chance, f.type) for f in kind}
    if pa.types.is_map(kind):
        return [(str(i), _maybe(chance, kind.item_type)) for i in range(chance.randrange(3))]
    return [_maybe(chance, kind.value_type) for _ in range(chance.randrange(4))]


def _maybe(chance: random.Random, kind: pa.DataType) -> Any:
    return None if chance.random() < 0.2 else _value(chance, kind)
