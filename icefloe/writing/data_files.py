"""Write the rows of a DataFrame as data files, clustered by partition and sort order, in tasks."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
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

from icefloe.deletes.row_positions import RowActions, row_actions
from icefloe.indexes.definitions import to_write
from icefloe.metadata.files import LiveFile, leaves
from icefloe.metadata.manifests import partition_folder
from icefloe.metadata.table_state import TableState
from icefloe.schema.partition_values import partition_columns, to_record
from icefloe.spark import columns
from icefloe.spark.columns import quote
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import reading_by_id
from icefloe.storage.files import locate
from icefloe.tasks.messages import (
    RESULT_SCHEMA,
    ChangeColumns,
    Task,
    TaskMessage,
    WrittenFile,
    from_bytes,
)
from icefloe.tasks.write import FileLayout, PartitionField, collect_changes, write_rows
from icefloe.writing.manifest_entries import EntryPlacement, build_data_file

# Every row replaces the row of the table it was made from.
REPLACING = ChangeColumns(columns.FILE, columns.POS)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The files that a write added, and the actions on rows of the table that tasks reported."""

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

    With `changes`, rows also identify the row of the table that each one stands for. With
    `gather`, rows that are spread thinly over many tasks are shuffled into few files. With
    `predicates`, rows carry the number of a predicate that they do not satisfy, or NULL: the first
    row that has a number fails the job.
    """
    spec = state.metadata.spec()
    extra = [changes.file, changes.pos, changes.action] if changes else []
    extra += [columns.OUTSIDE] if predicates else []
    rows = _clustered(state, rows, spec, [name for name in extra if name], gather=gather)
    task = write_rows(
        file_layout(state, statement_id),
        written_names(state),
        changes,
        (columns.OUTSIDE, tuple(predicates)) if predicates else None,
    )
    return written_rows(state, run_task(rows, task))


def written_names(state: TableState) -> list[str]:
    """The names of the table's columns in rows that tasks write."""
    return [columns.written(i) for i in range(len(state.schema.fields))]


def as_written(state: TableState, only: Container[str] | None = None) -> list[str]:
    """The table's columns, or those in `only`, renamed to `written_names`."""
    names = [field.name for field in state.schema.fields]
    return [
        f"{quote(name)} AS {written}"
        for name, written in zip(names, written_names(state), strict=True)
        if only is None or name in only
    ]


def written_rows(state: TableState, messages: Sequence[TaskMessage]) -> WrittenRows:
    """The files that tasks wrote under the table's current spec and sort order."""
    spec = state.metadata.spec()
    columns_by_path = leaves(state.schema)
    order = state.metadata.default_sort_order_id
    return WrittenRows(
        tuple(
            build_data_file(
                file,
                columns_by_path,
                state.metadata,
                EntryPlacement(to_record(file.partition, spec, state.schema), spec.spec_id, order),
            )
            for file in messages
            if isinstance(file, WrittenFile)
        ),
        row_actions(messages),
    )


def find_rows(rows: DataFrame, changes: ChangeColumns = REPLACING) -> RowActions:
    """The rows of the table that `rows` stand for; one Spark job that returns packed positions."""
    names = [name for name in (changes.file, changes.pos, changes.action) if name]
    return row_actions(run_task(rows.select(*names), collect_changes(changes)))


def run_task(rows: DataFrame, task: Task) -> list[TaskMessage]:
    """Run a task over every partition of `rows` and return the messages of all tasks."""
    with translate_spark_errors(), reading_by_id(rows.sparkSession):
        encoded = rows.mapInArrow(task, RESULT_SCHEMA).collect()
    return [from_bytes(bytes(row["result"])) for row in encoded]


def file_layout(state: TableState, statement_id: str) -> FileLayout:
    """Where a statement writes data files and how it encodes them."""
    folder = locate(state.io, state.data_location)
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
        filesystem=folder.filesystem,
        folder=folder.path,
        location=state.data_location,
        statement_id=statement_id,
        target_file_bytes=settings.target_file_bytes,
        row_group_bytes=settings.row_group_bytes,
        row_group_rows=settings.row_group_rows,
        parquet=options,
        partition_fields=tuple(
            PartitionField(columns.partition_field(i), field.name, _path_transform(state, field))
            for i, field in enumerate(spec.fields)
        ),
        indexes=to_write(state),
    )


def _path_transform(state: TableState, field: IcebergPartitionField) -> str:
    """How values of a partition field are written in paths."""
    if not isinstance(field.transform, IdentityTransform):
        return str(field.transform)
    source = state.schema.find_type(field.source_id)
    if isinstance(source, DateType):
        return "day"
    return "timestamp" if isinstance(source, TimestampType | TimestamptzType) else "identity"


def _clustered(
    state: TableState,
    rows: DataFrame,
    spec: PartitionSpec,
    extra: Sequence[str],
    *,
    gather: bool,
) -> DataFrame:
    """Cluster rows by partition, sorted; Spark splits partitions that are too large for a task.

    Rows of a partitioned table are shuffled once so that a partition gets few files; so are rows
    to gather.
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
    return rows.selectExpr(*as_written(state), *names, *extra)


def sort_columns(state: TableState, only: Column | None = None) -> list[Column]:
    """The table's sort order as columns; with `only`, they are NULL where it is not true."""
    fields = state.metadata.sort_order().fields
    spec = PartitionSpec(
        *(
            IcebergPartitionField(field.source_id, 1000 + i, field.transform, f"sort_{i}")
            for i, field in enumerate(fields)
        )
    )
    order = []
    for ordered, computed in zip(fields, partition_columns(spec, state.schema), strict=True):
        value = computed if only is None else F.when(only, computed)
        nulls_first = ordered.null_order == NullOrder.NULLS_FIRST
        if ordered.direction == SortDirection.ASC:
            order.append(value.asc_nulls_first() if nulls_first else value.asc_nulls_last())
        else:
            order.append(value.desc_nulls_first() if nulls_first else value.desc_nulls_last())
    return order


# -------------------------------------------------------------------------------------------------
# Folders.


def rewritten_folder(state: TableState, file: LiveFile) -> str:
    """The folder for a file that replaces another: the same one, if it is below the data folder.

    Nothing is written elsewhere: files of failed statements are searched for in the data folder,
    and a manifest may have any path, `data/../../other` included.
    """
    folder = file.path.rpartition("/")[0]
    if folder == state.data_location:
        return folder
    prefix = f"{state.data_location}/"
    if folder.startswith(prefix) and _is_plain(folder.removeprefix(prefix)):
        return folder
    return f"{state.data_location}/{partition_folder(state.metadata, file)}".rstrip("/")


def _is_plain(relative: str) -> bool:
    """Whether a relative path cannot lead out of its parent, percent-encoded or not."""
    parts = unquote(relative).split("/")
    return not {"", ".", ".."} & set(parts) and not {"?", "#"} & set(relative)
