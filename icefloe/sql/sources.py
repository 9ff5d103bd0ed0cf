"""The `sources` of `lake.sql`: rows of any accepted kind, as DataFrames by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icefloe.errors import StatementError
from icefloe.spark.errors import translated
from icefloe.spark.frames import frame_of


def source_frames(sources: Mapping[str, object], spark: SparkSession) -> dict[str, DataFrame]:
    """Each source as a DataFrame, by its name in lower case, as Spark compares names."""
    frames: dict[str, DataFrame] = {}
    for name, rows in sources.items():
        if name.lower() in frames:
            raise StatementError(f"Two sources are called {name!r}: case does not count.")
        frames[name.lower()] = _frame(name, rows, spark)
    return frames


def _frame(name: str, rows: object, spark: SparkSession) -> DataFrame:
    if hasattr(rows, "mapInArrow") and hasattr(rows, "schema"):
        return rows  # type: ignore[return-value]  # a DataFrame, classic or Connect
    try:
        table = _arrow(name, rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as wrong:
        raise StatementError(f"Source {name!r} has values of several types: {wrong}") from wrong
    with translated():
        return frame_of(spark, table)


def _arrow(name: str, rows: object) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pd.DataFrame):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows) and rows:
        names = dict.fromkeys(str(key) for row in rows for key in row)
        return pa.table({key: pa.array([row.get(key) for row in rows]) for key in names})
    raise StatementError(
        f"Source {name!r} is a {type(rows).__name__}. A source is a Spark DataFrame, an Arrow "
        "table or batch, a pandas frame, or a list of dicts that is not empty."
    )
