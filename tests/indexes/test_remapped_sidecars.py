"""Copy-on-write: the sidecar of a rewritten file is made from the one of the old file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from icefloe.tasks.btree import CodeTable, build_btree, remap_btree
from icefloe.tasks.index_codes import EXACT, HASH, ORDER, encode
from icefloe.tasks.index_files import BUILDERS, ReplacedFile, index_edited_file
from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexedFile,
    IndexToWrite,
    RowEdits,
    SidecarPlace,
    combined,
    sidecar_path,
    write_sidecar,
)

LOCAL = pafs.LocalFileSystem()
ROWS = 40_000  # more than two batches
OLD = "file:///data/old.parquet"
CASES = {
    EXACT: ({1: "long"}, lambda i: int(i * 7919 % 10_007)),
    ORDER: ({1: "string"}, lambda i: f"customer-{i * 7919 % 10_007:09d}"),
    HASH: ({1: "string"}, lambda i: f"{i % 2}/a-long-common-path/{i * 7919 % 10_007}"),
}


def index_of(folder: Path, types: dict[int, str]) -> IndexToWrite:
    ids, kinds = tuple(types), tuple(types.values())
    builder = BUILDERS["btree"]
    return IndexToWrite(
        "0123456789ab", "i", "btree", ids, kinds, {}, LOCAL, str(folder), builder=builder
    )


def indexed(rows: int, columns: dict[int, pa.ChunkedArray], name: str = OLD) -> IndexedFile:
    return IndexedFile(LOCAL, name.removeprefix("file://"), name, 1000, rows, columns)


def content_of(place: SidecarPlace) -> tuple[CodeTable, np.ndarray, np.ndarray]:
    with place.open() as sidecar:
        table = CodeTable.of(sidecar, sidecar.header["types"])
        return table, *table.everything()


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest):
    return request.param, *CASES[request.param]


def column(make, rows: int, kind: str) -> pa.ChunkedArray:
    values = [None if i % 11 == 0 else make(i) for i in range(rows)]
    return pa.chunked_array([pa.array(values, pa.int64() if kind == "long" else pa.string())])


@pytest.mark.parametrize("changes_keys", [False, True], ids=["other columns", "keys"])
def test_a_remapped_sidecar_has_the_rows_of_the_new_file(tmp_path, case, changes_keys):
    coder, types, make = case
    index = index_of(tmp_path, types)
    old = column(make, ROWS, types[1])
    write_sidecar(index, indexed(ROWS, {1: old}), build_btree(index, indexed(ROWS, {1: old})))
    random = np.random.default_rng(7)
    gone = np.sort(random.choice(ROWS, 3_000, replace=False))
    rest = np.setdiff1d(np.arange(ROWS), gone)
    updated = np.sort(random.choice(rest, 2_000, replace=False))
    new_keys = [None if i % 5 == 0 else make(i + 3) for i in range(len(updated))]
    values = {1: pa.chunked_array([pa.array(new_keys, old.type)])} if changes_keys else {}
    expected = old.to_pylist()
    for position, key in zip(updated.tolist(), new_keys, strict=True):
        expected[position] = key if changes_keys else expected[position]
    expected = [expected[i] for i in rest.tolist()]

    place = SidecarPlace.of(index, OLD, 1000, ROWS)
    content = remap_btree(index, place, RowEdits(gone, updated, values), len(rest))

    new = "file:///data/new.parquet"
    write_sidecar(index, indexed(len(rest), {}, new), content)
    table, codes, positions = content_of(SidecarPlace.of(index, new, 1000, len(rest)))
    assert table.coder.kind == coder
    assert (np.diff(codes.astype(object)) >= 0).all()
    keys = combined(pa.chunked_array([pa.array(expected, old.type)]))
    valid = keys.is_valid().to_numpy(zero_copy_only=False)
    wanted = encode([keys.filter(pa.array(valid))], table.coder)
    assert sorted(zip(codes.tolist(), positions.tolist(), strict=True)) == sorted(
        zip(wanted.tolist(), np.flatnonzero(valid).tolist(), strict=True)
    )
    assert table.nulls.tolist() == np.flatnonzero(~valid).tolist()


def test_keys_without_the_prefix_of_the_file_have_the_sidecar_built(tmp_path):
    types, make = CASES[ORDER]
    index, old = index_of(tmp_path, types), column(make, ROWS, "string")
    write_sidecar(index, indexed(ROWS, {1: old}), build_btree(index, indexed(ROWS, {1: old})))
    new = pa.chunked_array([pa.array(["another"])])
    none = np.empty(0, np.int64)
    edits = RowEdits(none, np.array([5]), {1: new})
    assert remap_btree(index, SidecarPlace.of(index, OLD, 1000, ROWS), edits, ROWS) is None
    same = RowEdits(none, np.array([5]), {2: new})
    assert remap_btree(index, SidecarPlace.of(index, OLD, 1000, ROWS), same, ROWS) is not None


def test_one_of_two_new_keys_is_not_enough(tmp_path):
    index = index_of(tmp_path, {1: "long", 2: "long"})
    keys = pa.chunked_array([pa.array(range(100), pa.int64())])
    file = indexed(100, {1: keys, 2: keys})
    write_sidecar(index, file, build_btree(index, file))
    none = np.empty(0, np.int64)
    place = SidecarPlace.of(index, OLD, 1000, 100)
    assert remap_btree(index, place, RowEdits(none, np.array([1]), {1: keys[:1]}), 100) is None
    both = RowEdits(none, np.array([1]), {1: keys[:1], 2: keys[:1]})
    assert remap_btree(index, place, both, 100) is not None


def test_a_sidecar_with_other_rows_is_not_remapped(tmp_path):
    index = index_of(tmp_path, {1: "long"})
    keys = pa.chunked_array([pa.array(range(100), pa.int64())])
    file = indexed(100, {1: keys})
    write_sidecar(index, file, build_btree(index, file))
    place = SidecarPlace.of(index, OLD, 1000, 100)
    edits = RowEdits(np.array([3]), np.empty(0, np.int64), {})
    assert remap_btree(index, place, edits, 100) is None
    assert remap_btree(index, place, edits, 99) is not None
    with pytest.raises(DamagedSidecarError):
        remap_btree(index, SidecarPlace.of(index, OLD, 1000, 101), edits, 100)


def test_the_sidecar_of_a_rewritten_file_is_built_where_the_old_file_has_none(tmp_path):
    index = index_of(tmp_path, {1: "long"})
    keys = pa.chunked_array([pa.array(range(99), pa.int64())])
    edits = RowEdits(np.array([3]), np.empty(0, np.int64), {})
    new = indexed(99, {1: keys}, "file:///data/new.parquet")
    assert index_edited_file([index], new, ReplacedFile(OLD, 1000, 100, edits)) == ()
    assert Path(sidecar_path(str(tmp_path), new.location)).exists()
    missing = indexed(98, {1: keys}, "file:///data/other.parquet")
    [problem] = index_edited_file([index], missing, ReplacedFile(OLD, 1000, 100, edits))
    assert problem.endswith("it does not have 98 rows")
