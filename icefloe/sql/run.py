"""`lake.sql`: every statement of a text, parsed first, then run in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame

from icefloe.errors import IcefloeError, ParseError
from icefloe.results import DmlResult
from icefloe.sql.ddl import run_ddl
from icefloe.sql.dml import explain_dml, run_dml
from icefloe.sql.names import Names, source_frames
from icefloe.sql.parse import parse_statements
from icefloe.sql.queries import run_query
from icefloe.sql.show import run_show, text_frame
from icefloe.sql.syntax import (
    Describe,
    Explain,
    Parsed,
    Query,
    ShowCreateTable,
    ShowNamespaces,
    ShowProperties,
    ShowTables,
    WithDml,
)

if TYPE_CHECKING:
    from icefloe.lake import Lake

SqlResult: TypeAlias = DataFrame | DmlResult


def run_sql(text: str, sources: Mapping[str, object], lake: Lake) -> SqlResult:
    """Run the statements of a text; the result is the last one's.

    Nothing runs unless all of them can be parsed. One that fails ends the run; those before it
    are done.
    """
    statements = parse_statements(text)
    names = Names(lake, source_frames(sources, lake.spark))
    results: list[SqlResult] = []
    for number, statement in enumerate(statements, 1):
        try:
            results.append(_run(statement.parsed, names, text))
        except IcefloeError as wrong:
            if len(statements) > 1 and not isinstance(wrong, ParseError):
                wrong.args = (f"Statement {number} (line {statement.line}): {wrong}",)
            raise
    return results[-1]


def _run(parsed: Parsed, names: Names, whole: str) -> SqlResult:
    match parsed:
        case Query():
            return run_query(parsed.text, names, whole)
        case WithDml():
            return run_dml(parsed, names, whole)
        case Explain():
            return _explain(parsed, names, whole)
        case Describe() | ShowTables() | ShowNamespaces() | ShowCreateTable() | ShowProperties():
            return run_show(parsed, names.lake)
        case _:
            return run_ddl(parsed, names, whole)


def _explain(explain: Explain, names: Names, whole: str) -> DataFrame:
    match explain.statement:
        case Query(text):
            return run_query(text, names, whole, f"EXPLAIN {explain.how} ")
        case WithDml() as dml:
            return text_frame("plan", [explain_dml(dml, names, whole)], names.lake.spark)
