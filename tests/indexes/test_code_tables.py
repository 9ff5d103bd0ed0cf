"""Look-ups in the sorted codes of one file, compared with a model in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icefloe.tasks import btree
from icefloe.tasks.btree import LAST_CODE, CodeTable, RowNumbers, btree_content, build_btree
from icefloe.tasks.index_codes import Codes
from icefloe.tasks.sidecars import NotIndexableError, SidecarContent, indexed_columns, write_sidecar
from support.sidecar_files import SidecarFiles

BATCH = 7
EDGES = [0, 1, 2**63 - 1, 2**63, LAST_CODE - 1, LAST_CODE]


@pytest.fixture
def made(tmp_path: Path) -> SidecarFiles:
    return SidecarFiles(tmp_path, ("long",))


def random_codes(chosen: np.random.Generator, entries: int, distinct: int) -> Codes:
    """Sorted codes, some of them at the ends of the range; the fewer distinct, the longer runs."""
    pool = np.concatenate(
        [np.array(EDGES, np.uint64), chosen.integers(0, LAST_CODE, distinct, np.uint64)]
    )
    return np.sort(chosen.choice(pool, entries))


@pytest.mark.parametrize("distinct", [1, 10, 1000])
@pytest.mark.parametrize("entries", [0, 1, BATCH - 1, BATCH, BATCH + 1, 5 * BATCH, 200])
def test_look_ups_equal_the_model(made, monkeypatch, entries, distinct):
    monkeypatch.setattr(btree, "BATCH_ROWS", BATCH)
    chosen = np.random.default_rng(entries * 31 + distinct)
    codes = random_codes(chosen, entries, distinct)
    rows = chosen.permutation(entries).astype(np.uint32)
    file = made.data_file("a.parquet", pa.array(range(entries), pa.int64()))
    write_sidecar(made.index, file, content(codes, rows))
    with made.open(file) as table:
        assert table.entries == entries
        assert len(table.fences) == -(-entries // BATCH)
        for _ in range(60):
            first, last = sorted(int(c) for c in some_codes(chosen, codes, 2))
            inside = (codes >= np.uint64(first)) & (codes <= np.uint64(last))
            assert sorted(table.between(first, last)) == sorted(rows[inside])
            assert inside.sum() <= table.estimate(first, last) <= entries
            wanted = np.unique(some_codes(chosen, codes, int(chosen.integers(0, 9))))
            expect_matches(table, codes, rows, wanted)
        assert sorted(table.between(0, LAST_CODE)) == sorted(rows)
        assert len(table.between(5, 4)) == table.estimate(5, 4) == 0
        assert len(table.between(LAST_CODE + 1, LAST_CODE)) == 0
        assert len(table.between(0, -1)) == 0


def content(codes: Codes, rows: RowNumbers) -> SidecarContent:
    header: dict[str, object] = {"coder": "exact", "prefix": "", "batch_rows": BATCH}
    return btree_content(codes, rows, np.empty(0, np.uint32), header)


def some_codes(chosen: np.random.Generator, codes: Codes, count: int) -> Codes:
    """Codes that the table has, those beside them, and others."""
    near = codes[chosen.integers(0, len(codes), 4)].tolist() if len(codes) else []
    beside = [(code + step) % 2**64 for code in near for step in (-1, 1)]
    pool = np.array([*near, *beside, *EDGES, int(chosen.integers(0, 2**63))], np.uint64)
    return chosen.choice(pool, count)


def expect_matches(table: CodeTable, codes: Codes, rows: RowNumbers, wanted: Codes) -> None:
    hit = np.isin(codes, wanted)
    assert sorted(table.among(wanted)) == sorted(rows[hit])
    numbers, found = table.matches(wanted)
    pairs = sorted(zip(wanted[numbers].tolist(), found.tolist(), strict=True))
    assert pairs == sorted(zip(codes[hit].tolist(), rows[hit].tolist(), strict=True))


def test_one_code_in_many_batches_is_found_in_all_of_them(made, monkeypatch):
    monkeypatch.setattr(btree, "BATCH_ROWS", BATCH)
    file = made.data_file("a.parquet", pa.array([4] + [5] * 50 + [6]))
    made.build(file)
    with made.open(file) as table:
        five = np.array([2**63 + 5], np.uint64)
        assert sorted(table.among(five)) == list(range(1, 51))
        assert sorted(table.between(2**63 + 5, 2**63 + 5)) == list(range(1, 51))


def test_batches_of_the_real_size(made):
    values = np.random.default_rng(1).permutation(40_000)
    file = made.data_file("a.parquet", pa.array(values, pa.int64()))
    made.build(file)
    with made.open(file) as table:
        assert len(table.fences) == 3
        wanted = np.array([16_383, 16_384, 16_385, 39_999], np.uint64) + np.uint64(2**63)
        assert values[table.among(wanted)].tolist() == [16_383, 16_384, 16_385, 39_999]
        assert sorted(values[table.between(2**63 + 16_000, 2**63 + 33_000)]) == list(
            range(16_000, 33_001)
        )


# -------------------------------------------------------------------------------------------------
# Building


def test_rows_with_null_have_no_entry_and_are_listed(made):
    file = made.data_file("a.parquet", pa.array([None, 5, None, 7, 5]))
    made.build(file)
    with made.open(file) as table:
        assert table.entries == 3
        assert table.nulls is not None
        assert table.nulls.tolist() == [0, 2]
        assert sorted(table.between(0, LAST_CODE)) == [1, 3, 4]


def test_null_in_one_of_several_columns_is_no_entry(tmp_path):
    made = SidecarFiles(tmp_path, ("long", "string"))
    columns = pa.array([1, None, 1, None]), pa.array(["a", "a", None, None])
    file = made.data_file("a.parquet", *columns)
    made.build(file)
    with made.open(file) as table:
        assert (table.entries, table.coder.kind) == (1, "hash")
        assert table.nulls is not None
        assert table.nulls.tolist() == [1, 2, 3]


def test_too_many_nulls_are_not_listed(made, monkeypatch):
    monkeypatch.setattr(btree, "_MAX_NULLS", 2)
    for name, values in {"two.parquet": [None, None, 1], "three.parquet": [None] * 3}.items():
        file = made.data_file(name, pa.array(values, pa.int64()))
        made.build(file)
        with made.open(file) as table:
            assert (table.nulls is None) is (name == "three.parquet")
            assert table.entries == (1 if name == "two.parquet" else 0)


@pytest.mark.parametrize("values", [[], [None, None]], ids=["no rows", "only NULL"])
@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.int64(), "long"),
        (pa.string(), "string"),
        (pa.float64(), "double"),
        (pa.decimal128(38, 2), "decimal(38, 2)"),
        (pa.timestamp("us", "UTC"), "timestamptz"),
        (pa.binary(3), "fixed[3]"),
    ],
    ids=str,
)
def test_files_without_a_value(tmp_path, values, kind, declared):
    made = SidecarFiles(tmp_path, (declared,))
    file = made.data_file("a.parquet", pa.array(values, kind))
    made.build(file)
    with made.open(file) as table:
        assert table.entries == len(table.between(0, LAST_CODE)) == 0
        assert len(table.among(np.array([0, 5, LAST_CODE], np.uint64))) == 0
        assert table.nulls is not None
        assert table.nulls.tolist() == list(range(len(values)))


def test_files_of_one_name_in_several_folders_have_their_own_sidecars(made):
    one = made.data_file("p=1/part-0.parquet", pa.array([1]))
    two = made.data_file("p=2/part-0.parquet", pa.array([2]))
    assert made.build(one) != made.build(two)
    assert made.sidecar(one).name == made.sidecar(two).name == "part-0.parquet"
    for file, value in ((one, 1), (two, 2)):
        with made.open(file) as table:
            assert table.among(np.array([2**63 + value], np.uint64)).tolist() == [0]
            assert len(table.among(np.array([2**63 + 3 - value], np.uint64))) == 0


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array(["1"]), "stored as"),
        (pa.array([1], pa.uint64()), "stored as"),
        (pa.array([1.5]), "stored as"),
    ],
    ids=str,
)
def test_columns_of_other_types_are_refused(made, column, reason):
    file = made.data_file("a.parquet", column)
    with pytest.raises(NotIndexableError, match=reason):
        build_btree(made.index, file)


def test_dictionaries_are_indexed_as_their_values(tmp_path):
    made = SidecarFiles(tmp_path, ("string",))
    plain = pa.array(["b", None, "a", "b"])
    file = made.data_file("a.parquet", plain.dictionary_encode())
    [column] = indexed_columns(made.index, file)
    assert column.to_pylist() == plain.to_pylist()
    made.build(file)
    with made.open(file) as table:
        assert table.between(0, LAST_CODE).tolist() == [2, 0, 3]
