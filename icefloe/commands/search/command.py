"""`table.search`: the best rows for a query, by a bm25 or an hnsw index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from icefloe.commands.context import Context
from icefloe.commands.indexes import index_named
from icefloe.commands.lost_deletes import with_inline_deletes
from icefloe.commands.search.found_rows import SearchedTable
from icefloe.commands.search.text import search_text
from icefloe.commands.search.vectors import search_vectors
from icefloe.errors import StatementError
from icefloe.indexes.definitions import IndexDefinition
from icefloe.indexes.kinds import KINDS
from icefloe.inline.cut import PointerMovedError
from icefloe.metadata.table_state import TableState
from icefloe.pruning.candidates import choose_files
from icefloe.pruning.comparisons import UNKNOWN
from icefloe.pruning.file_matcher import FileMatcher
from icefloe.scan.file_keys import refuse_unplain
from icefloe.scan.scan import Scan
from icefloe.spark.errors import detect_jvm_exit, translate_spark_errors

SCORE, DISTANCE = "_score", "_distance"


@dataclass(frozen=True, slots=True)
class Search:
    """What a user searches for."""

    index: str
    query: str | Sequence[float]
    limit: int = 10
    exact: bool = False


def search(context: Context, state: TableState, wanted: Search) -> DataFrame:
    """The best live rows in order, with their score or distance.

    What the best rows are is found out now; Spark reads them when the DataFrame is used.
    """
    while True:
        definition = _checked(state, wanted)
        try:
            with detect_jvm_exit(), translate_spark_errors():
                return _search(context, with_inline_deletes(context, state), definition, wanted)
        except PointerMovedError:
            state = context.read_state(state.branch)


def _search(
    context: Context, state: TableState, definition: IndexDefinition, wanted: Search
) -> DataFrame:
    cut = context.tier.cut(state)
    matcher = FileMatcher(UNKNOWN, state.schema, state.metadata.specs())
    candidates = choose_files(state, matcher).candidates
    refuse_unplain(candidates)
    scan = Scan.of(context.spark, state, candidates)
    table = SearchedTable(context.spark, state, definition, scan, cut)
    if definition.kind == "bm25":
        return table.frame(search_text(table, wanted.query, wanted.limit), SCORE, -1)
    hits = search_vectors(table, wanted.query, wanted.limit, exact=wanted.exact)
    return table.frame(hits, DISTANCE, 1)


def _checked(state: TableState, wanted: Search) -> IndexDefinition:
    """The index to search with; raises for a search that makes no sense."""
    definition = index_named(state, wanted.index)
    if problem := definition.problem(state.schema):
        raise StatementError(
            f"Index {definition.name!r} of {state.name} cannot be searched: {problem}. Drop it, "
            "and create it for a column that the table has."
        )
    if not KINDS[definition.kind].is_searched:
        raise StatementError(
            f"Index {definition.name!r} of {state.name} is of kind {definition.kind}, which "
            "answers conditions: use scan(where=...)."
        )
    limit = wanted.limit
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise StatementError(f"Invalid limit {limit!r} of a search: expected an integer >= 1.")
    added = SCORE if definition.kind == "bm25" else DISTANCE
    if any(column.name.lower() == added for column in state.schema.fields):
        raise StatementError(
            f"{state.name} has a column {added!r}, which a search adds to its rows. Rename the "
            "column."
        )
    return definition
