"""Vector search without Spark: distances, graphs, and what is no vector."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem
from pyspark import cloudpickle

from icefloe.errors import StatementError
from icefloe.indexes.kinds import KINDS
from icefloe.tasks import vectors
from icefloe.tasks.messages import TextStatistics, from_bytes
from icefloe.tasks.ranking import first_rows
from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexedFile,
    IndexToWrite,
    NotIndexableError,
    SidecarPlace,
    sidecar_path,
    write_sidecar,
)
from icefloe.tasks.text_search import TextQuery, TextSearch, score_texts
from icefloe.tasks.vectors import (
    GraphToSearch,
    VectorSearch,
    build_hnsw,
    distances_of,
    nearest_in_graph,
    search_graphs,
    search_vectors,
)

NONE = np.empty(0, np.int64)


def search_for(*query: float, metric: str = "l2", limit: int = 10) -> VectorSearch:
    return VectorSearch(tuple(query), metric, limit, ef_search=128)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("width", [pa.float32(), pa.float64()])
@pytest.mark.parametrize(
    ("metric", "expected"),
    [("l2", [0.0, 5.0, 2**0.5]), ("cosine", [0.0, 0.5, 1.0]), ("dot", [-2.0, -5.0, 0.0])],
)
def test_distances(metric, expected, width, fixed):
    rows = [[1.0, 1.0], [5.0, 0.0], [0.0, 0.0]]
    if metric == "l2":
        rows = [[1.0, 1.0], [4.0, 5.0], [2.0, 2.0]]
    if metric == "cosine":
        rows = [[3.0, 3.0], [1.0 - 3**0.5, 1.0 + 3**0.5], [2.0, -2.0]]
    kind = pa.list_(width, 2) if fixed else pa.list_(width)
    found, keys = distances_of(search_for(1, 1, metric=metric), pa.array(rows, kind))
    assert found.tolist() == [0, 1, 2]
    assert keys == pytest.approx(expected, abs=1e-6)


def test_what_is_no_vector_is_not_found():
    rows = [None, [1.0], [1.0, 2.0, 3.0], [1.0, None], [1.0, float("nan")], [float("inf"), 0.0], []]
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float64())):
        lists = pa.array([*rows, [1.0, 2.0]], kind)
        found, keys = distances_of(search_for(1, 0), lists)
        assert found.tolist() == [7]
        assert keys.tolist() == [2.0]
        assert distances_of(search_for(1, 0), lists.slice(1, 5))[0].tolist() == []
    zeros = pa.array([[0.0, 0.0], [1.0, 0.0]], pa.list_(pa.float32()))
    assert distances_of(search_for(1, 0, metric="cosine"), zeros)[0].tolist() == [1]


def test_a_distance_does_not_depend_on_other_rows(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(500, 37))
    for metric in vectors.METRICS:
        wanted = search_for(*rows[3].tolist(), metric=metric)
        monkeypatch.setattr(vectors, "_BLOCK_VALUES", 2**20)
        together = vectors.distances(wanted, rows)
        monkeypatch.setattr(vectors, "_BLOCK_VALUES", 37 * 7)
        assert vectors.distances(wanted, rows).tolist() == together.tolist()
        alone = [vectors.distances(wanted, rows[i : i + 1])[0] for i in range(500)]
        assert alone == together.tolist()


def test_of_equal_keys_the_first_rows_are_taken():
    keys = np.array([2.0, 1.0, 3.0, 1.0, 1.0, 0.5])
    assert first_rows(keys, 3).tolist() == [5, 1, 3]
    assert first_rows(keys, 10).tolist() == [5, 1, 3, 4, 0, 2]
    assert first_rows(np.empty(0), 3).tolist() == []


# -------------------------------------------------------------------------------------------------
# Graphs


def clustered(rows: int, dimension: int = 16, seed: int = 1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(50, dimension)) * 4
    found = centres[generator.integers(0, 50, rows)] + generator.normal(size=(rows, dimension))
    return found.astype(np.float32)


def write(folder: Path, lists: pa.Array, **params: object) -> SidecarPlace:
    pytest.importorskip("usearch")
    given = KINDS["hnsw"].parameters({"exact_below": 10, **params})
    index = IndexToWrite(
        "0123abcd", "v", "hnsw", (1,), ("list",), given, LocalFileSystem(), str(folder)
    )
    column = pa.chunked_array([lists])
    file = IndexedFile(LocalFileSystem(), "data", "data/f.parquet", 77, len(lists), {1: column})
    content = build_hnsw(index, file)
    assert content is not None
    write_sidecar(index, file, content)
    return SidecarPlace.of(index, "data/f.parquet", 77, len(lists))


def lists_of(rows: np.ndarray) -> pa.Array:
    return pa.array(rows.tolist(), pa.list_(pa.float32()))


def nearest(place: SidecarPlace, wanted: VectorSearch, deleted=NONE):
    with place.open() as sidecar:
        rows, keys = nearest_in_graph(wanted, sidecar, deleted)
    return rows.tolist(), keys.tolist()


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_graphs_find_most_of_the_nearest(tmp_path, metric):
    rows = clustered(3000)
    place = write(tmp_path, lists_of(rows), metric=metric)
    deleted = np.arange(0, 3000, 3)
    found = 0
    for query in clustered(20, seed=2):
        wanted = search_for(*map(float, query), metric=metric)
        exact, keys = distances_of(wanted, lists_of(rows))
        live = ~np.isin(exact, deleted)
        order = first_rows(keys[live], 10)
        expected = dict(zip(exact[live][order].tolist(), keys[live][order].tolist(), strict=True))
        got, distances = nearest(place, wanted, deleted)
        assert len(got) == 10
        assert distances == sorted(distances)
        assert not set(got) & set(deleted.tolist())
        assert all(expected.get(row, key) == key for row, key in zip(got, distances, strict=True))
        found += len(set(got) & set(expected))
    assert found >= 0.9 * 200


def test_all_deleted_but_few(tmp_path):
    rows = clustered(500)
    place = write(tmp_path, lists_of(rows))
    live = [3, 77, 400]
    deleted = np.setdiff1d(np.arange(500), live)
    assert sorted(nearest(place, search_for(*map(float, rows[3])), deleted)[0]) == live


def test_rows_without_a_vector_are_not_in_the_graph(tmp_path):
    rows = [None, [1.0], *clustered(20, 4).tolist(), [1.0, float("nan"), 1.0, 1.0]]
    lists = pa.array(rows, pa.list_(pa.float64()))
    place = write(tmp_path, lists, dimension=4)
    assert sorted(nearest(place, search_for(0, 0, 0, 0, limit=99))[0]) == list(range(2, 22))
    with pytest.raises(DamagedSidecarError, match="vectors of 4 numbers"):
        nearest(place, search_for(0, 0))
    empty = write(tmp_path / "none", pa.array([None] * 20, pa.list_(pa.float32())), dimension=4)
    assert nearest(empty, search_for(0, 0, 0, 0)) == ([], [])
    with pytest.raises(NotIndexableError, match="32 bits"):
        write(tmp_path / "large", pa.array([[1e300]] * 20, pa.list_(pa.float64())))


def test_a_changed_byte_is_noticed(tmp_path):
    rows = clustered(40, 4)
    place = write(tmp_path, lists_of(rows))
    wanted = search_for(*map(float, rows[3]))
    expected = nearest(place, wanted)
    path = Path(sidecar_path(str(tmp_path), "data/f.parquet"))
    original = path.read_bytes()
    damaged = 0
    for at in range(0, len(original), 11):
        changed = bytearray(original)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            assert nearest(place, wanted) == expected
        except (DamagedSidecarError, FileNotFoundError):
            damaged += 1
    assert damaged > 100


def test_a_task_reports_files_whose_graph_cannot_be_used(tmp_path):
    rows = clustered(40, 4)
    place = write(tmp_path, lists_of(rows))
    missing = replace(place, path=f"{place.path}.none")
    files = [GraphToSearch(place, "a", 40, None), GraphToSearch(missing, "b", 40, None)]
    other = GraphToSearch(replace(place, expected={**place.expected, "rows": 41}), "c", 41, None)
    task = search_graphs(search_for(*map(float, rows[3]), limit=2), [*files, other])
    [batch] = task(iter([pa.record_batch([pa.array([0, 1, 2])], ["id"])]))
    hits, second, third = [from_bytes(value.as_py()) for value in batch.column(0)]
    assert hits.files == ("a", "a")
    assert hits.positions[0] == 3
    assert (second.file, second.reason) == ("b", None)
    assert third.file == "c"
    assert "is of another file or index: rows" in third.reason


# -------------------------------------------------------------------------------------------------


def test_tasks_need_pyarrow_and_numpy_alone(tmp_path):
    """Workers need not have icefloe: it is hidden from the process that runs the tasks."""
    query = TextQuery(("pink",), (1,), frozenset(), frozenset())
    text = score_texts(TextSearch(query, {}, TextStatistics(2, 4, (1,)), 5))
    places = [pa.array(["f", "f"]), pa.array([0, 1])]
    batches = [
        (text, pa.record_batch([pa.array(["pink 大学", "sea"]), *places], ["v", "f", "p"])),
        (search_vectors(search_for(1, limit=5)), pa.record_batch([pa.array([[1.0], [3.0]]), *places], ["v", "f", "p"])),
    ]  # fmt: skip
    file = tmp_path / "tasks"
    file.write_bytes(cloudpickle.dumps(batches))
    program = (
        "import pickle, sys; sys.modules['icefloe'] = None\n"
        "for task, batch in pickle.load(open(sys.argv[1], 'rb')):\n"
        "    for result in task(iter([batch])): print(pickle.loads(result.column(0)[0].as_py()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "(0,)" in first
    assert second == "['SearchHits', (0.0, 2.0), ('f', 'f'), (0, 1)]"
    assert pickle.loads(file.read_bytes())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"metric": "l1"}, "Invalid value 'l1' for the parameter 'metric'.*l2, cosine, dot"),
        ({"dimension": 0}, "Invalid value 0 for the parameter 'dimension'.*integer >= 1"),
        ({"dimension": True}, "Invalid value True for the parameter 'dimension'"),
        ({"m": "16"}, "Invalid value '16' for the parameter 'm'"),
        ({"exact_below": -1}, "Invalid value -1 for the parameter 'exact_below'.*integer >= 0"),
        ({"ef": 1}, "has no parameter 'ef'; it takes: dimension, ef_build"),
    ],
)
def test_refused_parameters(params, message):
    pytest.importorskip("usearch")
    with pytest.raises(StatementError, match=message):
        KINDS["hnsw"].parameters(params)
