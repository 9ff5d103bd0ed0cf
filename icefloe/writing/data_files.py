"""Rows of a DataFrame become data files: laid out by partition and sort order, written in tasks."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, TimestampType, TimestamptzType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.deletes.row_positions import RowActions, acted_rows
from icefloe.metadata.files import LiveFile, leaves
from icefloe.metadata.manifests import partition_folder
from icefloe.metadata.table_state import TableState
from icefloe.schema.partition_values import partition_columns, to_record
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import reading_by_id
from icefloe.storage.files import locate
from icefloe.tasks.messages import RESULT_SCHEMA, ChangeColumns, from_bytes
from icefloe.tasks.write import FileLayout, PartitionField, collect_changes, write_rows
from icefloe.writing.manifest_entries import build_data_file

# Every row replaces the row of the table it was made from.
REPLACING = ChangeColumns(columns.FILE, columns.POS)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The files a write made, and what happened to the rows of the table it was told of."""

    files: tuple[DataFile, ...] = ()
    acted: RowActions = field(default_factory=RowActions)

    @property
    def rows(self) -> int:
        """Rows written."""
        return sum(file.record_count for file in self.files)


def write_data(
    state: TableState,
    rows: DataFrame,
    statement_id: str,
    changes: ChangeColumns | None = None,
    *,
    gather: bool = False,
    predicates: Sequence[str] = (),
) -> WrittenRows:
    """Write rows that have the table's columns under its current spec; one Spark job.

    With `changes`, rows also tell which row of the table each one stands for. With `gather`,
    rows that come a few from everywhere are brought together in few files. With `predicates`, they
    carry the number of one that they do not satisfy: the first row that has one ends the job.
    """
    spec = state.metadata.spec()
    told = [changes.file, changes.pos, changes.action] if changes else []
    told += [columns.OUTSIDE] if predicates else []
    rows = _laid_out(state, rows, spec, [name for name in told if name], gather=gather)
    task = write_rows(
        file_layout(state, statement_id),
        written_names(state),
        changes,
        (columns.OUTSIDE, tuple(predicates)) if predicates else None,
    )
    return written_rows(state, run_task(rows, task))


def written_names(state: TableState) -> list[str]:
    """What the table's columns are called in rows that tasks write."""
    return [columns.written(i) for i in range(len(state.schema.fields))]


def as_written(state: TableState, only: Container[str] | None = None) -> list[str]:
    """The table's columns, or those in `only`, under these names."""
    names = [field.name for field in state.schema.fields]
    return [
        f"{quote(name)} AS {written}"
        for name, written in zip(names, written_names(state), strict=True)
        if only is None or name in only
    ]


def written_rows(state: TableState, results: Sequence[Mapping[str, Any]]) -> WrittenRows:
    """What writing tasks told, as files of the table's current spec and sort order."""
    spec = state.metadata.spec()
    known = leaves(state.schema)
    order = state.metadata.default_sort_order_id
    return WrittenRows(
        tuple(
            build_data_file(
                result["file"],
                known,
                state.metadata,
                partition=to_record(result["file"]["partition"], spec, state.schema),
                spec_id=spec.spec_id,
                sort_order_id=order,
            )
            for result in results
            if "file" in result
        ),
        acted_rows(results),
    )


def find_rows(rows: DataFrame, changes: ChangeColumns = REPLACING) -> RowActions:
    """Which rows of the table `rows` stand for; one Spark job that returns packed positions."""
    names = [name for name in (changes.file, changes.pos, changes.action) if name]
    return acted_rows(run_task(rows.select(*names), collect_changes(changes)))


def run_task(rows: DataFrame, task: Any) -> list[dict[str, Any]]:
    """Run a task over every partition of `rows` and gather the few results it tells."""
    with translate_spark_errors(), reading_by_id(rows.sparkSession):
        gathered = rows.mapInArrow(task, RESULT_SCHEMA).collect()
    return [from_bytes(bytes(row["result"])) for row in gathered]


def file_layout(state: TableState, statement_id: str) -> FileLayout:
    """Where this statement's data files go and how they are encoded."""
    place = locate(state.io, state.data_location)
    settings = state.settings
    spec = state.metadata.spec()
    options: dict[str, object] = {
        "compression": settings.compression,
        "data_page_size": settings.page_bytes,
        "dictionary_pagesize_limit": settings.dictionary_bytes,
        "store_decimal_as_integer": True,
        "coerce_timestamps": "us",
        "write_page_checksum": True,
    }
    if settings.compression_level is not None and settings.compression in (
        "zstd",
        "gzip",
        "brotli",
    ):
        options["compression_level"] = settings.compression_level
    return FileLayout(
        schema=schema_to_pyarrow(state.schema),
        filesystem=place.filesystem,
        folder=place.path,
        location=state.data_location,
        statement_id=statement_id,
        target_file_bytes=settings.target_file_bytes,
        row_group_bytes=settings.row_group_bytes,
        row_group_rows=settings.row_group_rows,
        parquet=options,
        partition_fields=tuple(
            PartitionField(columns.partition_field(i), field.name, _shown_as(state, field))
            for i, field in enumerate(spec.fields)
        ),
    )


def _shown_as(state: TableState, field: IcebergPartitionField) -> str:
    """How values of a partition field are written in paths."""
    if not isinstance(field.transform, IdentityTransform):
        return str(field.transform)
    source = state.schema.find_type(field.source_id)
    if isinstance(source, DateType):
        return "day"
    return "timestamp" if isinstance(source, TimestampType | TimestamptzType) else "identity"


def _laid_out(
    state: TableState,
    rows: DataFrame,
    spec: PartitionSpec,
    told: Sequence[str],
    *,
    gather: bool,
) -> DataFrame:
    """Bring rows of one partition together, in order; Spark splits what is too large for a task.

    Rows of a partitioned table are shuffled once so that a partition gets few files; so are
    rows to gather.
    """
    names = [columns.partition_field(i) for i in range(len(spec.fields))]
    for name, value in zip(names, partition_columns(spec, state.schema), strict=True):
        rows = rows.withColumn(name, value)
    if names:
        rows = rows.hint("rebalance", *names)
    elif gather:
        rows = rows.hint("rebalance")
    order = sort_columns(state)
    if names or order:
        rows = rows.sortWithinPartitions(*[F.col(name) for name in names], *order)
    return rows.selectExpr(*as_written(state), *names, *told)


def sort_columns(state: TableState, only: Column | None = None) -> list[Column]:
    """What the table's rows are sorted by, if anything; with `only`, those it is true of."""
    fields = state.metadata.sort_order().fields
    spec = PartitionSpec(
        *(
            IcebergPartitionField(field.source_id, 1000 + i, field.transform, f"sort_{i}")
            for i, field in enumerate(fields)
        )
    )
    found = []
    for ordered, computed in zip(fields, partition_columns(spec, state.schema), strict=True):
        value = computed if only is None else F.when(only, computed)
        nulls_first = ordered.null_order == NullOrder.NULLS_FIRST
        if ordered.direction == SortDirection.ASC:
            found.append(value.asc_nulls_first() if nulls_first else value.asc_nulls_last())
        else:
            found.append(value.desc_nulls_first() if nulls_first else value.desc_nulls_last())
    return found


# -------------------------------------------------------------------------------------------------
# Folders of files that belong to the partition of another file.


def rewritten_folder(state: TableState, file: LiveFile) -> str:
    """Where a file goes that replaces another: beside it, if that is below the data folder.

    Elsewhere nothing is written: what a failed statement leaves is looked for in that folder, and
    a manifest may name any path, `data/../../other` included.
    """
    beside = file.path.rpartition("/")[0]
    if beside == state.data_location:
        return beside
    prefix = f"{state.data_location}/"
    if beside.startswith(prefix) and _is_plain(beside.removeprefix(prefix)):
        return beside
    return f"{state.data_location}/{partition_folder(state.metadata, file)}".rstrip("/")


def _is_plain(relative: str) -> bool:
    """Whether a folder cannot lead out of the one above it, percent-encoded or not."""
    parts = unquote(relative).split("/")
    return not {"", ".", ".."} & set(parts) and not {"?", "#"} & set(relative)
