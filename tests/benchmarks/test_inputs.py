"""The rows and sources of the benchmarks, and the expected outcome of the statements."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from benchmarks import sources
from benchmarks.data import FILES, SIZES, bind, input_files
from benchmarks.digest import COLUMNS, digest_of
from benchmarks.history import bind_scan, history
from benchmarks.merges import Action, Condition, When
from benchmarks.statements import STATEMENTS, BoundStatement, Kind

ROWS = 800
MERGES = [statement for statement in STATEMENTS if statement.merge]
CONDITIONS = {
    Condition.IS_DELETE: lambda _old, new: new["op"] == "D",
    Condition.IS_NO_DELETE: lambda _old, new: new["op"] != "D",
    Condition.VALUE_DIFFERS: lambda old, new: old["value"] != new["value"],
    Condition.IN_BUCKET: lambda old, _new: old["bucket"] == 7,
    None: lambda _old, _new: True,
}


@pytest.fixture(scope="module")
def size():
    return SIZES["tiny"].with_rows(ROWS)


@pytest.fixture(scope="module")
def files(size, tmp_path_factory):
    return input_files(size, tmp_path_factory.mktemp("input"))


@pytest.fixture(scope="module")
def rows(files):
    return ds.dataset([str(file) for file in files]).to_table(columns=list(COLUMNS)).to_pylist()


def digest_of_rows(rows):
    return digest_of(pa.Table.from_pylist(rows).select(COLUMNS).to_batches())


@pytest.mark.parametrize("size", [SIZES["narrow-gb"], SIZES["wide-gb"]], ids=lambda size: size.name)
def test_the_large_sizes_are_a_gigabyte_of_parquet(size, tmp_path):
    few = size.with_rows(FILES * 10_000)
    files = input_files(few, tmp_path)

    bytes_per_row = sum(file.stat().st_size for file in files) / few.rows

    assert bytes_per_row * size.rows > 2**30
    assert (
        len(pq.read_schema(files[0])) == size.columns == {"narrow-gb": 8, "wide-gb": 60}[size.name]
    )


@pytest.mark.parametrize(
    "statement",
    [s for s in STATEMENTS if s.kind in (Kind.DELETE, Kind.UPDATE)],
    ids=lambda s: s.name,
)
def test_the_outcome_of_a_delete_or_update(statement, size, files, rows):
    bound = bind(statement, size, files)
    selected = statement.row_range(size.rows)
    hit = [row for row in rows if selected.low <= row[selected.column] < selected.high]

    if statement.kind is Kind.DELETE:
        after = [row for row in rows if row not in hit]
    else:
        after = [updated(row, statement.all_columns) if row in hit else row for row in rows]

    assert bound.rows_changed == len(hit) > 0
    assert bound.after == digest_of_rows(after)


def updated(row, all_columns):
    new = {**row, "value": row["value"] + 1}
    if all_columns:
        new |= {"bucket": row["bucket"] + 1, "name": row["name"] + "0"}
    return new


def test_an_update_of_all_columns_assigns_every_one_but_the_key(tmp_path):
    size = replace(SIZES["wide"], rows=ROWS)
    statement = next(s for s in STATEMENTS if s.all_columns)
    files = input_files(size, tmp_path)

    bound = bind(statement, size, files)

    assert [*bound.assignments] == pq.read_schema(files[0]).names[1:]
    assert bound.assigned_sql.startswith(
        "bucket = bucket + 1, value = value + 1, name = concat(name, '0'), longs_0 = longs_0 + 1"
    )


@pytest.mark.parametrize("part_rows", [100, 10**6])
@pytest.mark.parametrize("statement", MERGES, ids=lambda s: s.name)
def test_the_outcome_of_a_merge(statement, part_rows, size, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PART_ROWS", part_rows)
    files = input_files(size, tmp_path)

    bound = sources.bind_merge(statement, size, files)

    source = pq.read_table(files[0].with_name(bound.source)).to_pylist()
    changed, after = merged(statement.merge, rows, source)
    assert bound.rows_changed == changed
    assert bound.after == digest_of_rows(after)
    assert bound.source_rows == len(source)
    ids = [row["id"] for row in source]
    assert len(set(ids)) == len(ids)
    assert len(ids) == 1 or ids != sorted(ids)
    assert not list(files[0].parent.glob("*.parts"))


def merged(merge, rows, source):
    """A MERGE row by row: how many rows change, and all rows afterwards."""
    table = {row["id"]: row for row in rows}
    new = {row["id"]: row for row in source}
    changed, after = 0, []
    for key in {**table, **new}:
        old, other = table.get(key), new.get(key)
        when = (
            When.NOT_MATCHED_BY_SOURCE
            if other is None
            else When.NOT_MATCHED
            if old is None
            else When.MATCHED
        )
        clause = next(
            (
                clause
                for clause in merge.clauses
                if clause.when is when and CONDITIONS[clause.condition](old, other)
            ),
            None,
        )
        changed += clause is not None
        if clause is None:
            after += [old] if old else []
        elif clause.action is not Action.DELETE:
            after.append(other)
    return changed, after


@pytest.mark.parametrize(
    "statement", [s for s in STATEMENTS if s.kind is Kind.SCAN], ids=lambda s: s.name
)
def test_the_outcome_of_a_scan(statement, size, files, rows):
    before = history(files, statement.statements_before)
    table = {row["id"]: row for row in rows}
    for bound in before:
        bucket = int(bound.where.split()[2])
        hit = [r for r in table.values() if r["bucket"] == bucket and r["value"] < 200_000]
        assert bound.rows_changed == len(hit)
        run_on(table, bound, hit, files)
    selected = statement.row_range(size.rows)

    bound = bind_scan(statement, size, files)

    expected = [
        r
        for r in table.values()
        if statement.fraction == 1 or selected.low <= r["id"] < selected.high
    ]
    assert bound.after == digest_of_rows(expected)
    assert bound.rows_changed == sum(one.rows_changed for one in before)
    assert bound.where == ("" if statement.fraction == 1 else selected.sql)


def run_on(table, bound, hit, files):
    """One statement of a history, row by row."""
    for row in hit:
        if bound.statement.kind is Kind.DELETE:
            del table[row["id"]]
        elif bound.statement.kind is Kind.UPDATE:
            table[row["id"]] = updated(row, all_columns=False)
    if bound.statement.merge:
        source = pq.read_table(files[0].with_name(bound.source)).to_pylist()
        assert sorted(row["id"] for row in source) == sorted(row["id"] for row in hit)
        table |= {row["id"]: row for row in source}


def test_statements_survive_json(size, files):
    binders = {Kind.MERGE: sources.bind_merge, Kind.SCAN: bind_scan}
    for statement in STATEMENTS:
        bound = binders.get(statement.kind, bind)(statement, size, files)

        assert BoundStatement.from_json(json.loads(json.dumps(bound.to_json()))) == bound
