"""The source of a MERGE: one Parquet file for all peers, and what must come out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.data import SEED, Size, make_rows, words
from benchmarks.digest import COLUMNS, digest_of
from benchmarks.merges import KEY, OPERATION, Action, Condition, Merge, SourceShape, When
from benchmarks.statements import BoundStatement, Statement, clustered_start

_ROW_GROUP = 250_000

Rows = dict[str, np.ndarray]  # columns of the same length


def bind_merge(statement: Statement, size: Size, files: tuple[Path, ...]) -> BoundStatement:
    """Make the source when it is not there yet, and work out the outcome without any peer."""
    merge = statement.merge
    if merge is None:
        raise ValueError(f"{statement.name} is no MERGE")
    path = files[0].with_name(f"source-{statement.name}-{merge.source.fingerprint}.parquet")
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        rows = _source(merge.source, size, files)
        pq.write_table(rows, unfinished, compression="zstd", row_group_size=_ROW_GROUP)
        unfinished.rename(path)
    columns = [*COLUMNS, OPERATION] if merge.source.operations else list(COLUMNS)
    source = _columns(pq.read_table(path, columns=columns))
    table = _columns(ds.dataset([str(file) for file in files]).to_table(columns=list(COLUMNS)))
    changed, after = apply(merge, table, source)
    return BoundStatement(
        statement,
        rows_changed=changed,
        after=digest_of([pa.RecordBatch.from_pydict(after)]),
        source=path.name,
        source_rows=len(source[KEY]),
        source_bytes=path.stat().st_size,
    )


def _source(shape: SourceShape, size: Size, files: tuple[Path, ...]) -> pa.Table:
    """Rows of the table, some of them changed, and new ones, in no order."""
    random = np.random.default_rng([SEED, int(shape.fingerprint, 16)])
    counts = [round(size.rows * part) for part in (shape.changed, shape.deleted, shape.same)]
    if shape.clustered:
        first = clustered_start(size.rows)
        known = first + random.permutation(sum(counts))
    else:
        known = random.permutation(size.rows)[: sum(counts)]
    taken = pq.read_table([str(file) for file in files]).take(pa.array(np.sort(known)))
    ranks = np.argsort(np.argsort(known))  # where each of `known` is among the sorted
    changed, deleted, same = (
        taken.take(pa.array(part)) for part in np.split(ranks, np.cumsum(counts)[:-1])
    )
    parts = [
        _with_operation(_changed(changed, random), "U", shape),
        _with_operation(deleted, "D", shape),
        _with_operation(same, "U", shape),
    ]
    first_new = size.rows
    for fraction, operation in ((shape.new, "I"), (shape.unknown_deleted, "D")):
        count = round(size.rows * fraction)
        if count:
            new = make_rows(size, random, first_new, count)
            parts.append(_with_operation(new, operation, shape))
            first_new += count
    rows = pa.concat_tables(parts)
    return rows.take(pa.array(random.permutation(rows.num_rows)))


def _changed(rows: pa.Table, random: np.random.Generator) -> pa.Table:
    """Every column of the digest with another value; the key stays."""
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


def apply(merge: Merge, table: Rows, source: Rows) -> tuple[int, Rows]:
    """The number of rows changed, and the rows afterwards.

    The table's ids are 0, 1, 2, … in order, so an id is a row's place.
    """
    rows = len(table[KEY])
    known = source[KEY] < rows
    place = np.where(known, source[KEY], 0)
    after = {name: column.copy() for name, column in table.items()}
    keep = np.ones(rows, dtype=bool)
    met = np.zeros(rows, dtype=bool)
    met[source[KEY][known]] = True
    inserted: Rows = {name: column[:0] for name, column in table.items()}
    changed = 0
    undecided = np.ones(len(known), dtype=bool)
    for clause in merge.clauses:
        if clause.when is When.NOT_MATCHED_BY_SOURCE:
            gone = ~met
            if clause.condition is Condition.IN_BUCKET:
                gone &= table["bucket"] == 7
            changed += int(gone.sum())
            keep &= ~gone
            continue
        hit = undecided & (known if clause.when is When.MATCHED else ~known)
        if clause.condition is not None:
            hit &= _CONDITIONS[clause.condition](table, source, place)
        undecided &= ~hit
        changed += int(hit.sum())
        match clause.action:
            case Action.DELETE:
                keep[source[KEY][hit]] = False
            case Action.UPDATE_ALL:
                for name, column in after.items():
                    column[source[KEY][hit]] = source[name][hit]
            case Action.INSERT_ALL:
                inserted = {name: source[name][hit] for name in table}
    return changed, {name: np.concatenate([after[name][keep], inserted[name]]) for name in table}


_CONDITIONS: dict[Condition, Callable[[Rows, Rows, np.ndarray], np.ndarray]] = {
    Condition.IS_DELETE: lambda _table, source, _place: source[OPERATION] == "D",
    Condition.IS_NO_DELETE: lambda _table, source, _place: source[OPERATION] != "D",
    Condition.VALUE_DIFFERS: lambda table, source, place: table["value"][place] != source["value"],
}


def _columns(rows: pa.Table) -> Rows:
    return {
        name: rows[name].combine_chunks().to_numpy(zero_copy_only=False)
        for name in rows.column_names
    }
