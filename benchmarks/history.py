"""The small statements that run on a table before it is scanned.

DELETE, UPDATE of one column and MERGE alternate; each changes about 0.2 % of the rows, in all
files: the rows of one bucket with a small value, a different bucket for each statement.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.data import SEED, WORDS, Size, vocabulary
from benchmarks.digest import COLUMNS, Digest, digest_of_numbers, numbers_of
from benchmarks.merges import UPSERT, Merge, SourceShape
from benchmarks.statements import ASSIGNED_COLUMN, BoundStatement, Kind, Placement, Statement

_KINDS = (Kind.DELETE, Kind.UPDATE, Kind.MERGE)
_BELOW = 200_000  # values are spread evenly below 1,000,000
_MERGED_BY = 1000  # what a MERGE adds to `value`
_FRACTION = 0.002


def history(files: tuple[Path, ...], count: int) -> tuple[BoundStatement, ...]:
    """The first `count` statements; sources of MERGE are written when they do not exist."""
    _make_sources(files, count)
    changed = np.zeros(100, dtype=np.int64)
    for batch in _dataset(files).to_batches(columns=["bucket"], filter=ds.field("value") < _BELOW):
        changed += np.bincount(batch.column("bucket").to_numpy(), minlength=100)
    return tuple(_bound(number, int(changed[number]), files) for number in range(count))


def bind_scan(statement: Statement, size: Size, files: tuple[Path, ...]) -> BoundStatement:
    """The rows that a scan must read after its statements, computed without any peer."""
    where = "" if statement.fraction == 1 else statement.row_range(size.rows).sql
    low, high = 0, size.rows
    if where:
        row_range = statement.row_range(size.rows)
        low, high = row_range.low, row_range.high
    changed, digest = 0, Digest()
    for batch in _dataset(files).to_batches(columns=list(COLUMNS)):
        rows = numbers_of(batch)
        hit = _hit(rows, statement.statements_before)
        changed += int(hit.sum())
        after = _after(rows, hit)
        inside = (after["id"] >= low) & (after["id"] < high)
        digest += digest_of_numbers({name: column[inside] for name, column in after.items()})
    return BoundStatement(statement, changed, digest, where=where)


def _hit(rows: dict[str, np.ndarray], count: int) -> np.ndarray:
    return (rows["bucket"] < count) & (rows["value"] < _BELOW)


def _after(rows: dict[str, np.ndarray], hit: np.ndarray) -> dict[str, np.ndarray]:
    """The rows after the statements that hit them."""
    deleted, updated, merged = (
        hit & (rows["bucket"] % len(_KINDS) == turn) for turn in range(len(_KINDS))
    )
    new = {
        **rows,
        "value": rows["value"] + updated + merged * _MERGED_BY,
        "name": np.where(merged, (rows["name"] + 1) % WORDS, rows["name"]),
    }
    return {name: column[~deleted] for name, column in new.items()}


def _bound(number: int, changed: int, files: tuple[Path, ...]) -> BoundStatement:
    kind = _KINDS[number % len(_KINDS)]
    merge = None
    source = Path()
    if kind is Kind.MERGE:
        merge = Merge("merge: update 0.2 %", UPSERT, SourceShape(changed=_FRACTION))
        source = _source(files, number)
    return BoundStatement(
        Statement(f"before-{number + 1}-{kind}", kind, _FRACTION, Placement.SPREAD, merge),
        changed,
        Digest(),
        where=f"bucket = {number} AND value < {_BELOW}",
        assignments={ASSIGNED_COLUMN: f"{ASSIGNED_COLUMN} + 1"} if kind is Kind.UPDATE else {},
        source=source.name,
        source_rows=changed if merge else 0,
        source_bytes=source.stat().st_size if merge else 0,
    )


def _make_sources(files: tuple[Path, ...], count: int) -> None:
    merges = [n for n in range(count) if _KINDS[n % len(_KINDS)] is Kind.MERGE]
    missing = [number for number in merges if not _source(files, number).exists()]
    if not missing:
        return
    changed = ds.field("bucket").isin(missing) & (ds.field("value") < _BELOW)
    rows = _dataset(files).to_table(filter=changed)
    for number in missing:
        source = _merged(rows.filter(pc.equal(rows["bucket"], number)))
        order = np.random.default_rng([SEED, number]).permutation(source.num_rows)
        unfinished = _source(files, number).with_suffix(".unfinished")
        pq.write_table(source.take(pa.array(order)), unfinished, compression="zstd")
        unfinished.rename(_source(files, number))


def _merged(rows: pa.Table) -> pa.Table:
    name = (numbers_of(rows)["name"] + 1) % WORDS
    new = {
        "value": pc.add(rows["value"], _MERGED_BY),
        "name": vocabulary().take(pa.array(name)),
    }
    for column, values in new.items():
        rows = rows.set_column(rows.schema.get_field_index(column), column, values)
    return rows


def _source(files: tuple[Path, ...], number: int) -> Path:
    return files[0].with_name(f"before-{number + 1}.parquet")


def _dataset(files: tuple[Path, ...]) -> ds.Dataset:
    return ds.dataset([str(file) for file in files])
