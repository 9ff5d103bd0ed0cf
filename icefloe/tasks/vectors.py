"""Nearest vectors: exact distances with NumPy, and graphs for large files with usearch.

A graph is only used to choose rows: distances are always computed from the vectors. Files that
have no graph are searched exactly, and so are those whose graph cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from icefloe.tasks.messages import Positions, Task, UnsearchedFile, as_batch, unpack
from icefloe.tasks.ranking import BestRows, Keys, first_rows
from icefloe.tasks.sidecars import (
    DamagedSidecarError,
    IndexedFile,
    IndexToWrite,
    NotIndexableError,
    Sidecar,
    SidecarContent,
    SidecarPlace,
    indexed_columns,
)

METRICS = {"l2": "l2sq", "cosine": "cos", "dot": "ip"}  # and what usearch calls them
_BLOCK_VALUES = 2**20  # of vectors that are compared at a time
_SCHEMA = pa.schema([pa.field("graph", pa.large_binary(), False)])

Vectors = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class VectorSearch:
    """What tasks need to find the nearest vectors."""

    query: tuple[float, ...]
    metric: str
    limit: int
    ef_search: int


# -------------------------------------------------------------------------------------------------
# Distances


def vectors_of(lists: pa.Array, dimension: int) -> tuple[Positions, Vectors]:
    """The rows that have vectors of so many numbers, and these; NaN and NULL are no numbers."""
    fits = pc.equal(pc.list_value_length(lists), dimension).fill_null(False)
    rows = np.flatnonzero(fits.to_numpy(zero_copy_only=False))
    numbers = lists.filter(fits).flatten()
    values = numbers.to_numpy(zero_copy_only=False)  # NULL becomes NaN
    vectors = values.reshape(len(rows), dimension)
    finite = np.isfinite(vectors).all(axis=1)
    return (rows, vectors) if finite.all() else (rows[finite], vectors[finite])


def distances(search: VectorSearch, vectors: Vectors) -> Keys:
    """The distance of each vector; NaN where there is none."""
    size = max(1, _BLOCK_VALUES // max(1, vectors.shape[1]))
    parts = [
        _distances(search, vectors[start : start + size].astype(np.float64))
        for start in range(0, len(vectors), size)
    ]
    return np.concatenate([np.empty(0), *parts])


def _distances(search: VectorSearch, vectors: npt.NDArray[np.float64]) -> Keys:
    # Sums over one row depend on no other row: it has the same distance wherever it is.
    query = np.array(search.query, np.float64)
    with np.errstate(all="ignore"):
        if search.metric == "l2":
            return np.asarray(np.sqrt(((vectors - query) ** 2).sum(axis=1)))
        products = (vectors * query).sum(axis=1)
        if search.metric == "dot":
            return np.asarray(-products)
        norms = np.sqrt((vectors**2).sum(axis=1)) * np.sqrt((query**2).sum())
        return np.asarray(1 - products / norms)


def distances_of(search: VectorSearch, lists: pa.Array) -> tuple[Positions, Keys]:
    """The rows that have a distance, and their distances."""
    rows, vectors = vectors_of(lists, len(search.query))
    keys = distances(search, vectors)
    known = ~np.isnan(keys)
    return rows[known], keys[known]


# -------------------------------------------------------------------------------------------------
# Graphs


def build_hnsw(index: IndexToWrite, file: IndexedFile) -> SidecarContent | None:
    """The content of the sidecar of one data file; None for a file that is searched exactly."""
    params: dict[str, Any] = dict(index.params)
    if not needs_graph(params, file.rows):
        return None
    [lists] = indexed_columns(index, file)
    if not is_list_of_numbers(lists.type):
        raise NotIndexableError(f"a column of vectors is stored as {lists.type}")
    lengths = pc.list_value_length(lists).drop_null()
    dimension = params["dimension"] or (lengths[0].as_py() if len(lengths) else 1)
    rows, vectors = vectors_of(lists, max(1, dimension))
    with np.errstate(over="ignore"):
        narrow = vectors.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise NotIndexableError("a vector has a number that 32 bits cannot hold")
    header = {"metric": params["metric"], "dimension": dimension, "vectors": len(rows)}
    if not len(rows):
        return SidecarContent([], header)
    graph = import_module("usearch.index").Index(
        ndim=dimension,
        metric=METRICS[params["metric"]],
        dtype="f32",
        connectivity=params["m"],
        expansion_add=params["ef_build"],
    )
    graph.add(rows.astype(np.uint64), narrow, threads=1)
    stored = pa.array([pa.py_buffer(graph.save(None)).to_pybytes()], pa.large_binary())
    return SidecarContent([pa.record_batch([stored], schema=_SCHEMA)], header)


def needs_graph(params: Mapping[str, Any], rows: int) -> bool:
    """Whether a file is so large that it is not searched exactly."""
    return bool(rows >= params["exact_below"])


def is_list_of_numbers(kind: pa.DataType) -> bool:
    """Whether a column has vectors."""
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    return bool(is_list and pt.is_floating(kind.value_type))


def nearest_in_graph(
    search: VectorSearch, sidecar: Sidecar, deleted: Positions
) -> tuple[Positions, Keys]:
    """About the nearest live rows of a file, and their distances to the vectors in its graph."""
    header = sidecar.header
    if header["metric"] != search.metric or header["dimension"] != len(search.query):
        raise DamagedSidecarError(f"{sidecar.path} has vectors of {header['dimension']} numbers")
    total = header["vectors"]
    if not total:
        return np.empty(0, np.int64), np.empty(0)
    content = sidecar.batch(0).column(0)[0].as_buffer()
    graph = import_module("usearch.index").Index.restore(memoryview(content), view=True)
    if graph is None or len(graph) != total:
        raise DamagedSidecarError(f"{sidecar.path} lacks vectors")
    query = np.array(search.query, np.float32)
    count = min(total, search.limit + len(deleted), 4 * search.limit)
    while True:
        graph.expansion_search = max(search.ef_search, count)
        keys = graph.search(query, count, threads=1).keys
        live = np.setdiff1d(keys.astype(np.int64), deleted)
        if len(live) >= search.limit or count >= total:
            break
        count = min(total, 2 * count)
    found = distances(search, np.asarray(graph.get(live.astype(np.uint64)), np.float32))
    known = ~np.isnan(found)
    live, found = live[known], found[known]
    order = first_rows(found, search.limit)
    return live[order], found[order]


# -------------------------------------------------------------------------------------------------
# Tasks


@dataclass(frozen=True)
class GraphToSearch:
    """A data file with a sidecar."""

    sidecar: SidecarPlace
    uri: str  # of the data file, as Spark spells it
    rows: int
    deleted: bytes | None  # packed positions


def search_graphs(search: VectorSearch, files: Sequence[GraphToSearch]) -> Task:
    """A task that searches the graphs of the files whose numbers it gets."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        best = BestRows(search.limit)
        unsearched = []
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    _search_graph(search, files[number], best)
                except FileNotFoundError:
                    unsearched.append(UnsearchedFile(files[number].uri))
                except (DamagedSidecarError, ImportError, RuntimeError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    unsearched.append(UnsearchedFile(files[number].uri, reason))
        yield as_batch([best.message(), *unsearched])

    return task


def _search_graph(search: VectorSearch, file: GraphToSearch, best: BestRows) -> None:
    deleted = np.empty(0, np.int64) if file.deleted is None else unpack(file.deleted)
    with file.sidecar.open() as sidecar:
        rows, keys = nearest_in_graph(search, sidecar, deleted)
    if len(rows) and int(rows.max()) >= file.rows:
        raise DamagedSidecarError(f"{file.sidecar.path} has rows past the end of its data file")
    uris = pa.array([file.uri] * len(rows), pa.string())
    best.add(uris, pa.array(rows, pa.int64()), np.arange(len(rows)), keys)


def search_vectors(search: VectorSearch) -> Task:
    """A task that searches its rows exactly; they have a vector, a file and a position."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        best = BestRows(search.limit)
        for batch in batches:
            rows, keys = distances_of(search, batch.column(0))
            best.add(batch.column(1), batch.column(2), rows, keys)
        yield as_batch([best.message()])

    return task
