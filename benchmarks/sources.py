"""The source of a MERGE, one Parquet file for all peers, and the expected outcome.

A source can be as large as the table, so it is written and read in parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.data import SEED, Size, make_rows, words
from benchmarks.digest import COLUMNS, Digest, digest_of_numbers, numbers_of
from benchmarks.merges import KEY, OPERATION, Action, Condition, Merge, SourceShape, When
from benchmarks.statements import BoundStatement, Statement, clustered_start

_ROW_GROUP = 250_000
_PART_ROWS = 500_000  # rows that are shuffled at once
_OPERATIONS = ("U", "D", "U")  # of changed, deleted and unchanged rows

Rows = dict[str, np.ndarray]  # columns of the same length


def bind_merge(statement: Statement, size: Size, files: tuple[Path, ...]) -> BoundStatement:
    """Write the source when it does not exist, and compute the outcome without any peer."""
    merge = statement.merge
    if merge is None:
        raise ValueError(f"{statement.name} is not a MERGE")
    path = files[0].with_name(f"source-{statement.name}-{merge.source.fingerprint}.parquet")
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        _write_shuffled(_source(merge.source, size, files), unfinished, size, merge.source)
        unfinished.rename(path)
    changed, after = outcome(merge, size, files, path)
    source = pq.read_metadata(path)
    return BoundStatement(
        statement,
        rows_changed=changed,
        after=after,
        source=path.name,
        source_rows=source.num_rows,
        source_bytes=path.stat().st_size,
    )


def _source(shape: SourceShape, size: Size, files: tuple[Path, ...]) -> Iterator[pa.Table]:
    """Rows of the table, file by file, some of them changed, then new rows."""
    random = np.random.default_rng([SEED, int(shape.fingerprint, 16)])
    taken = _taken(shape, size, random)
    rows_of_file = size.rows // len(files)
    for number, file in enumerate(files):
        of_file = taken[number * rows_of_file : (number + 1) * rows_of_file]
        if not of_file.any():
            continue
        rows = pq.read_table(file)
        for kind, operation in enumerate(_OPERATIONS, start=1):
            selected = rows.take(pa.array(np.flatnonzero(of_file == kind)))
            selected = _changed(selected, random) if kind == 1 else selected
            yield _with_operation(selected, operation, shape)
    first_new = size.rows
    for fraction, operation in ((shape.new, "I"), (shape.unknown_deleted, "D")):
        count = round(size.rows * fraction)
        for start in range(0, count, _PART_ROWS):
            new = make_rows(size, random, first_new + start, min(_PART_ROWS, count - start))
            yield _with_operation(new, operation, shape)
        first_new += count


def _taken(shape: SourceShape, size: Size, random: np.random.Generator) -> np.ndarray:
    """For each row: 0 when the source lacks it, else 1 + its index in `_OPERATIONS`."""
    counts = [round(size.rows * part) for part in (shape.changed, shape.deleted, shape.same)]
    if shape.clustered:
        ids = clustered_start(size.rows) + random.permutation(sum(counts))
    else:
        ids = random.permutation(size.rows)[: sum(counts)]
    taken = np.zeros(size.rows, dtype=np.uint8)
    for kind, ids_of_kind in enumerate(np.split(ids, np.cumsum(counts)[:-1]), start=1):
        taken[ids_of_kind] = kind
    return taken


def _write_shuffled(tables: Iterator[pa.Table], path: Path, size: Size, shape: SourceShape) -> None:
    """Write one Parquet file: rows are assigned to random parts, then each part is shuffled."""
    random = np.random.default_rng([SEED, int(shape.fingerprint, 16), 1])
    fractions = (shape.changed, shape.deleted, shape.same, shape.new, shape.unknown_deleted)
    count = 1 + int(size.rows * sum(fractions)) // _PART_ROWS
    folder = path.with_suffix(".parts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    parts = [folder / f"{number}.arrow" for number in range(count)]
    schema = _scatter(tables, parts, random)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts:
            rows = pa.ipc.open_stream(part.read_bytes()).read_all()
            shuffled = rows.take(pa.array(random.permutation(rows.num_rows)))
            writer.write_table(shuffled, row_group_size=_ROW_GROUP)
    shutil.rmtree(folder)


def _scatter(
    tables: Iterator[pa.Table], parts: list[Path], random: np.random.Generator
) -> pa.Schema:
    writers: list[pa.ipc.RecordBatchStreamWriter] = []
    with ExitStack() as open_files:
        for rows in tables:
            if not writers:
                writers = [
                    open_files.enter_context(pa.ipc.new_stream(str(part), rows.schema))
                    for part in parts
                ]
            part_of_row = random.integers(0, len(parts), rows.num_rows)
            for number, writer in enumerate(writers):
                writer.write_table(rows.take(pa.array(np.flatnonzero(part_of_row == number))))
        return rows.schema


def _changed(rows: pa.Table, random: np.random.Generator) -> pa.Table:
    """The rows with new values in the columns of the digest, except the key."""
    bucket = (rows["bucket"].to_numpy() + 1) % 100
    value = rows["value"].to_numpy() + random.integers(1, 1000, rows.num_rows)
    new = {
        "bucket": pa.array(bucket.astype(np.int32)),
        "value": pa.array(value),
        "name": words(random, rows.num_rows),
    }
    for name, column in new.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows


def _with_operation(rows: pa.Table, operation: str, shape: SourceShape) -> pa.Table:
    if not shape.operations:
        return rows
    return rows.append_column(OPERATION, pa.array([operation] * rows.num_rows, pa.string()))


def outcome(merge: Merge, size: Size, files: tuple[Path, ...], source: Path) -> tuple[int, Digest]:
    """The number of changed rows and the digest afterwards, computed file by file."""
    rows_of_file = size.rows // len(files)
    changed, after = 0, Digest()
    for number, file in enumerate(files):
        first = number * rows_of_file
        table = numbers_of(pq.read_table(file, columns=list(COLUMNS)))
        source_rows = _read_source(source, first, first + rows_of_file)
        changed_in_file, rows = apply(merge, table, source_rows, first)
        changed += changed_in_file
        after += digest_of_numbers(rows)
    no_rows = {name: column[:0] for name, column in table.items()}
    inserted, rows = apply(merge, no_rows, _read_source(source, size.rows, 2 * size.rows), 0)
    return changed + inserted, after + digest_of_numbers(rows)


def _read_source(path: Path, low: int, high: int) -> Rows:
    """The source's rows with ids in a range."""
    has_operations = OPERATION in pq.read_schema(path).names
    columns = [*COLUMNS, OPERATION] if has_operations else list(COLUMNS)
    in_range = (ds.field(KEY) >= low) & (ds.field(KEY) < high)
    rows = ds.dataset(path).to_table(columns=columns, filter=in_range)
    operations = {OPERATION: rows[OPERATION].to_numpy()} if has_operations else {}
    return {**numbers_of(rows), **operations}


def apply(merge: Merge, table: Rows, source: Rows, first: int) -> tuple[int, Rows]:
    """The number of changed rows, and the rows afterwards.

    The table's ids are `first`, `first` + 1, … in order, so an id determines the row's index.
    """
    rows = len(table[KEY])
    matched = (source[KEY] >= first) & (source[KEY] < first + rows)
    index = np.where(matched, source[KEY] - first, 0)
    after = {name: column.copy() for name, column in table.items()}
    keep = np.ones(rows, dtype=bool)
    in_source = np.zeros(rows, dtype=bool)
    in_source[index[matched]] = True
    inserted: Rows = {name: column[:0] for name, column in table.items()}
    changed = 0
    undecided = np.ones(len(matched), dtype=bool)
    for clause in merge.clauses:
        if clause.when is When.NOT_MATCHED_BY_SOURCE:
            deleted = ~in_source
            if clause.condition is Condition.IN_BUCKET:
                deleted &= table["bucket"] == 7
            changed += int(deleted.sum())
            keep &= ~deleted
            continue
        hit = undecided & (matched if clause.when is When.MATCHED else ~matched)
        if clause.condition is not None and hit.any():
            hit &= _CONDITIONS[clause.condition](table, source, index)
        undecided &= ~hit
        changed += int(hit.sum())
        match clause.action:
            case Action.DELETE:
                keep[index[hit]] = False
            case Action.UPDATE_ALL:
                for name, column in after.items():
                    column[index[hit]] = source[name][hit]
            case Action.INSERT_ALL:
                inserted = {name: source[name][hit] for name in table}
    return changed, {name: np.concatenate([after[name][keep], inserted[name]]) for name in table}


_CONDITIONS: dict[Condition, Callable[[Rows, Rows, np.ndarray], np.ndarray]] = {
    Condition.IS_DELETE: lambda _table, source, _index: source[OPERATION] == "D",
    Condition.IS_NO_DELETE: lambda _table, source, _index: source[OPERATION] != "D",
    Condition.VALUE_DIFFERS: lambda table, source, index: table["value"][index] != source["value"],
}
