"""The input rows: generated once per size from a fixed seed, the same files for every peer.

Rows are generated and read one file at a time, so memory is bounded by one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.digest import COLUMNS, Digest, digest_of
from benchmarks.merges import KEY
from benchmarks.statements import ASSIGNED_COLUMN, BoundStatement, Kind, Statement

FILES = 8
SEED = 20240229
_NARROW = 4
WORDS = 100_000


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows and columns the table has."""

    name: str
    rows: int
    columns: int

    def with_rows(self, rows: int | None) -> Size:
        """The same columns, with `rows` rows unless it is None."""
        if rows is None:
            return self
        if rows <= 0 or rows % (FILES * 100):
            raise SystemExit(
                f"--rows {rows} must be a multiple of {FILES * 100}: {FILES} files, each with the "
                "same number of rows in every bucket."
            )
        return replace(self, rows=rows)


SIZES = {
    size.name: size
    for size in (
        Size("tiny", 40_000, 4),
        Size("narrow", 4_000_000, 4),
        Size("wide", 2_000_000, 40),
        Size("narrow-gb", 35_200_000, 8),  # 31 to 47 bytes a row: more than 1 GiB with each peer
        Size("wide-gb", 3_360_000, 60),  # 325 to 451 bytes a row: the same
    )
}


def input_files(size: Size, folder: Path) -> tuple[Path, ...]:
    """The Parquet files of a size under `folder`, written when they do not exist."""
    home = folder / f"{size.rows}x{size.columns}-{SEED}"
    home.mkdir(parents=True, exist_ok=True)
    files = tuple(home / f"part-{number}.parquet" for number in range(FILES))
    for number, file in enumerate(files):
        if not file.exists():
            unfinished = file.with_suffix(".unfinished")
            pq.write_table(_rows_of_file(size, number), unfinished, compression="zstd")
            unfinished.rename(file)
    return files


def bind(statement: Statement, size: Size, files: tuple[Path, ...]) -> BoundStatement:
    """The outcome of a statement on these rows, computed without any of the peers."""
    row_range = statement.row_range(size.rows)
    changed = 0
    after = Digest()
    for batch in ds.dataset([str(file) for file in files]).to_batches(columns=list(COLUMNS)):
        values = batch.column(row_range.column).to_numpy()
        hit = (values >= row_range.low) & (values < row_range.high)
        changed += int(hit.sum())
        after += digest_of([_apply(statement, batch, hit)])
    names = assigned_columns(statement, pq.read_schema(files[0]).names)
    assignments = {name: _expression(pq.read_schema(files[0]).field(name)) for name in names}
    return BoundStatement(statement, changed, after, where=row_range.sql, assignments=assignments)


def _apply(statement: Statement, batch: pa.RecordBatch, hit: np.ndarray) -> pa.RecordBatch:
    if statement.kind is Kind.DELETE:
        return batch.filter(pa.array(~hit))
    mask = pa.array(hit)
    for name in assigned_columns(statement, batch.schema.names):
        old = batch.column(name)
        new = pc.if_else(mask, assigned(old), old)
        batch = batch.set_column(batch.schema.get_field_index(name), name, new)
    return batch


def assigned_columns(statement: Statement, names: Sequence[str]) -> tuple[str, ...]:
    """The columns that an UPDATE changes; none for other statements."""
    if statement.kind is not Kind.UPDATE:
        return ()
    return tuple(n for n in names if n != KEY) if statement.all_columns else (ASSIGNED_COLUMN,)


def assigned(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The values that an UPDATE assigns: numbers plus one, texts with a zero appended."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.binary_join_element_wise(column, "0", "")
    return pc.add(column, pa.scalar(1, column.type))


def _expression(field: pa.Field) -> str:
    """`assigned` as SQL for both Spark and DataFusion."""
    text = pa.types.is_string(field.type)
    return f"concat({field.name}, '0')" if text else f"{field.name} + 1"


def _rows_of_file(size: Size, number: int) -> pa.Table:
    """Ids ascend over the files; in each file, all buckets have the same number of rows."""
    rows = size.rows // FILES
    return make_rows(size, np.random.default_rng([SEED, number]), number * rows, rows)


def make_rows(size: Size, random: np.random.Generator, first: int, rows: int) -> pa.Table:
    """Rows with the table's columns and ids starting at `first`."""
    columns = {
        "id": pa.array(np.arange(first, first + rows, dtype=np.int64)),
        "bucket": pa.array(random.permutation(np.arange(rows, dtype=np.int32) % 100)),
        "value": pa.array(random.integers(0, 1_000_000, rows)),
        "name": words(random, rows),
    }
    makers = (longs, doubles, words)
    for extra in range(size.columns - _NARROW):
        make = makers[extra % len(makers)]
        columns[f"{make.__name__}_{extra}"] = make(random, rows)
    return pa.table(columns)


def longs(random: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(random.integers(0, 10**12, rows))


def doubles(random: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(random.normal(size=rows))


def words(random: np.random.Generator, rows: int) -> pa.Array:
    return vocabulary().take(pa.array(random.integers(0, WORDS, rows)))


@cache
def vocabulary() -> pa.Array:
    """All words; the number in a word is its index."""
    return pa.array([f"customer-{number:06}" for number in range(WORDS)])
