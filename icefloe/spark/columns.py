"""Column names: quoted for Spark, and those of the columns that icefloe adds to rows."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def quote(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted(*path: str) -> Column:
    """The column of exactly this name; with more names, a field of its struct."""
    return F.col(quote_path(*path))


def quote_path(*path: str) -> str:
    """The quoted path of a column as text."""
    return ".".join(map(quote, path))


def selected(rows: DataFrame, values: Sequence[str | Column]) -> DataFrame:
    """Select columns and SQL texts.

    A text needs one call to the JVM, a Column half a dozen: on wide tables these add up.
    """
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        return rows.selectExpr(*texts)
    return rows.select(*(F.expr(v) if isinstance(v, str) else v for v in values))


# -------------------------------------------------------------------------------------------------
# Columns that icefloe adds to rows between steps; refused in user schemas

PREFIX = "_icefloe_"

FILE = "_icefloe_file"  # URI of the data file a row was read from, as Spark spells it, or its key
POS = "_icefloe_pos"  # position of the row in that file, from 0
SIZE = "_icefloe_size"  # bytes of that file
DELETED = "_icefloe_deleted"  # bitmap words of the file's deleted positions
SEQUENCE = "_icefloe_sequence"  # data sequence number of the row's file
PARTITION = "_icefloe_partition"  # number of the (spec, partition) group of the row's file
ACTION = "_icefloe_action"  # index of the MERGE clause that applies to the row
SOURCE_ROW = "_icefloe_source_row"  # number of a source row of a MERGE, in source order
IS_DELETED = "_icefloe_is_deleted"  # whether a changed row is deleted
SELECTED = "_icefloe_selected"  # bitmap words of the positions that a statement selected earlier
OUTPUT = "_icefloe_output"  # number of the file into which a compaction writes the row
ORDER = "_icefloe_order"  # index of the row's file among the compacted files
OUTSIDE = "_icefloe_outside"  # number of the predicate that a new row violates, else NULL

META_FILE = "_file"
META_POS = "_pos"


def partition_field(index: int) -> str:
    """The column that carries a row's value of partition field `index` to the writer."""
    return f"{PREFIX}p{index}"


def written(index: int) -> str:
    """The column that carries the table's column `index` to the writer.

    PySpark's `mapInArrow` cannot take columns with dots or backticks in their names.
    """
    return f"{PREFIX}c{index}"


def assigned(index: int) -> str:
    """The column that carries the new value of the table's column `index`."""
    return f"{PREFIX}new{index}"


def equality(field_id: int) -> str:
    """The column that carries field `field_id` for comparing with equality deletes."""
    return f"{PREFIX}eq{field_id}"


def read_as(field_id: int) -> str:
    """The name for reading field `field_id` from files that may use its name for another field."""
    return f"{PREFIX}id{field_id}"
