"""Vector search: the nearest rows, by the graphs of large files and exactly in all others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from pyiceberg.types import DoubleType, ListType

from icefloe.commands.search.found_rows import SearchedTable, hits_of
from icefloe.errors import StatementError
from icefloe.indexes.sidecars import place_of
from icefloe.pruning.candidates import Candidate
from icefloe.spark import columns
from icefloe.storage.locations import spark_uri
from icefloe.tasks import vectors
from icefloe.tasks.messages import UnsearchedFile, pack
from icefloe.tasks.ranking import Hit, best, first_rows
from icefloe.tasks.vectors import GraphToSearch, VectorSearch, needs_graph, search_graphs
from icefloe.writing.data_files import run_task

log = logging.getLogger("icefloe")

_MOST_TASKS = 200


def search_vectors(
    table: SearchedTable, query: object, limit: int, *, exact: bool = False
) -> list[Hit]:
    """The nearest rows; their keys are the distances."""
    params: dict[str, Any] = dict(table.definition.params)
    vector = _vector(query, table.definition.name, params)
    search = VectorSearch(vector, params["metric"], limit, params["ef_search"])
    with_graph = [
        c
        for c in table.scan.candidates
        if not (exact or c.equality_deletes) and needs_graph(params, c.live.rows)
    ]
    found, unsearched = _search_graphs(table, search, with_graph)
    done = {c.path for c in with_graph if spark_uri(c.path) not in unsearched}
    read = [c for c in table.scan.candidates if c.path not in done]
    if read:
        found += hits_of(run_task(table.values(read), vectors.search_vectors(search)))
    if table.cut is not None and len(table.cut.rows):
        rows, keys = vectors.distances_of(search, table.inline_values)
        order = first_rows(keys, limit)
        found += table.inline_hits(rows[order], keys[order])
    if not found and params["dimension"] is None:
        _refuse_other_dimension(table, len(vector))
    return best(found, limit)


def _search_graphs(
    table: SearchedTable, search: VectorSearch, files: Sequence[Candidate]
) -> tuple[list[Hit], set[str]]:
    """The nearest rows of files with graphs, and the URIs of files that have none to use."""
    if not files:
        return [], set()
    graphs = []
    for candidate in files:
        deleted = table.deleted(candidate)
        graphs.append(
            GraphToSearch(
                place_of(table.state, table.definition, candidate.live),
                spark_uri(candidate.path),
                candidate.live.rows,
                pack(deleted) if len(deleted) else None,
            )
        )
    tasks = min(len(graphs), _MOST_TASKS)
    numbers = table.spark.range(0, len(graphs), 1, tasks)
    messages = run_task(numbers, search_graphs(search, graphs))
    unsearched = [each for each in messages if isinstance(each, UnsearchedFile)]
    for each in unsearched:
        if each.reason is not None:
            log.warning("A sidecar of %s is not used: %s", each.file, each.reason)
    hits = best(hits_of(messages), search.limit)
    if hits and _is_double(table):  # graphs have numbers of 32 bits
        hits = hits_of(run_task(table.values_at(hits), vectors.search_vectors(search)))
    return hits, {each.file for each in unsearched}


def _is_double(table: SearchedTable) -> bool:
    kind = table.column.field_type
    return isinstance(kind, ListType) and isinstance(kind.element_type, DoubleType)


def _vector(query: object, name: str, params: dict[str, Any]) -> tuple[float, ...]:
    """A query as numbers; raises StatementError for anything that is no vector of the index."""
    try:
        numbers = np.asarray(query)
        is_vector = numbers.ndim == 1 and numbers.size > 0 and numbers.dtype.kind in "iuf"
        numbers = numbers.astype(np.float64) if is_vector else numbers
    except (ValueError, TypeError, OverflowError):
        is_vector = False
    if not is_vector:
        raise StatementError(
            f"Invalid query {query!r:.80} of a search by index {name!r}: expected a sequence of "
            "numbers, such as [0.5, 1.0]."
        )
    if not np.isfinite(numbers).all():
        raise StatementError(
            f"The query of a search by index {name!r} has {numbers[~np.isfinite(numbers)][0]} in "
            "it. Use finite numbers: nothing is near it."
        )
    dimension = params["dimension"]
    if dimension is not None and len(numbers) != dimension:
        raise _of_other_dimension(name, len(numbers), dimension)
    if params["metric"] == "cosine" and not numbers.any():
        raise StatementError(
            f"The query of a search by index {name!r} is a zero vector, which has no direction, "
            "and the metric is cosine. Use another vector."
        )
    return tuple(numbers.tolist())


def _refuse_other_dimension(table: SearchedTable, dimension: int) -> None:
    """Raise if there are vectors, but none of so many numbers."""
    lengths = [pc.max(pc.list_value_length(table.inline_values)).as_py()] if table.cut else []
    if table.scan.candidates:
        size = f"max(size({columns.written(0)})) AS size"
        row = table.values(table.scan.candidates).selectExpr(size).first()
        lengths.append(row["size"] if row is not None else None)
    known = [length for length in lengths if length is not None and length > 0]
    if known and dimension not in known:
        raise _of_other_dimension(table.definition.name, dimension, known[0])


def _of_other_dimension(name: str, given: int, expected: int) -> StatementError:
    return StatementError(
        f"The query of a search by index {name!r} has {given} numbers, and the vectors have "
        f"{expected}. Use a vector of {expected} numbers."
    )
