"""Files that other engines write and PyIceberg cannot: put into a table by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from icefloe import Lake, Table
from icefloe.commit.snapshot import ManifestChanges, SnapshotDraft, operation_of
from icefloe.file_changes import RemoveFiles
from icefloe.metadata.files import PATH_FIELD_ID, POS_FIELD_ID, LiveFile
from icefloe.metadata.table_state import state_of
from support.tables import data_files


def publish(
    lake: Lake,
    table: Table,
    *,
    data: Sequence[DataFile] = (),
    deletes: Sequence[DataFile] = (),
    removed: Sequence[LiveFile] = (),
    compacts: bool = False,
) -> None:
    """Commit files as one snapshot."""
    iceberg = table.iceberg
    head = state_of(iceberg, table.name)
    changes = ManifestChanges(
        tuple(data), tuple(deletes), RemoveFiles(tuple(removed)), compacts=compacts
    )
    draft = SnapshotDraft(head, iceberg.metadata.new_snapshot_id())
    manifests, gone = draft.manifests_after(changes)
    snapshot = draft.finish(
        manifests, operation_of(changes, gone), draft.summary_of(changes, gone, {})
    )
    lake.catalog.commit_table(
        iceberg,
        (AssertRefSnapshotId(ref="main", snapshot_id=head.snapshot_id),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name="main",
                type=SnapshotRefType.BRANCH,
                snapshot_id=snapshot.snapshot_id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
        ),
    )


def rewrite(
    lake: Lake,
    table: Table,
    *,
    compacts: bool = True,
    drop: Sequence[int] = (),
    has_equality_deletes: bool = False,
) -> None:
    """Put the rows of all files into one, as another engine does: it sees no inlined deletes.

    With `has_equality_deletes`, which PyIceberg refuses, icefloe reads what is in files.
    """
    by_icefloe = table.scan(snapshot_id=table.snapshot_id).toArrow if has_equality_deletes else None
    arrow = by_icefloe() if by_icefloe else table.iceberg.scan().to_arrow()
    kept = [n for n, value in enumerate(arrow["id"].to_pylist()) if value not in drop]
    example = pq.read_schema(urlparse(data_files(table)[0].path).path)
    path = Path(urlparse(table.location).path) / "data" / f"{uuid4().hex}.parquet"
    pq.write_table(arrow.take(kept).cast(example), path)
    new = [adopted_file(table, path, ())]
    publish(lake, table, data=new, removed=data_files(table), compacts=compacts)


def equality_delete(
    table: Table,
    rows: list[dict[str, Any]],
    *,
    partition: tuple[Any, ...] = (),
    spec_id: int | None = None,
    schema: Schema | None = None,
) -> DataFile:
    """A file that deletes the rows which have these values; its columns are those of `rows`."""
    known = schema or table.iceberg.schema()
    chosen = known.select(*rows[0])
    arrow = pa.Table.from_pylist(rows, schema=_with_ids(chosen))
    return _delete_file(
        table,
        arrow,
        DataFileContent.EQUALITY_DELETES,
        partition,
        spec_id,
        equality_ids=[field.field_id for field in chosen.fields],
    )


def position_delete(
    table: Table,
    positions: Iterable[tuple[str, int]],
    *,
    partition: tuple[Any, ...] = (),
    spec_id: int | None = None,
) -> DataFile:
    """A file that deletes rows by place, in the order given and without bounds of its paths."""
    arrow_schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_FIELD_ID)}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POS_FIELD_ID)}),
        ]
    )
    pairs = [{"file_path": path, "pos": pos} for path, pos in positions]
    arrow = pa.Table.from_pylist(pairs, schema=arrow_schema)
    return _delete_file(table, arrow, DataFileContent.POSITION_DELETES, partition, spec_id)


def adopted_file(
    table: Table,
    path: Path,
    partition: tuple[Any, ...],
    *,
    like: Path | None = None,
    rows: int | None = None,
) -> DataFile:
    """A Parquet file as Iceberg's `add_files` procedure takes it: the folder told the partition.

    Where PyIceberg cannot read it, its metrics are those of a file with the same rows. `rows` is a
    row count for the manifest, which the file need not have.
    """
    iceberg = table.iceberg
    file = parquet_file_to_data_file(iceberg.io, iceberg.metadata, f"file://{like or path}")
    return manifest_entry(
        f"file://{path}",
        spec_id=iceberg.spec().spec_id,
        metrics_of=file,
        partition=Record(*partition),
        record_count=file.record_count if rows is None else rows,
        file_size_in_bytes=path.stat().st_size,
    )


METRICS = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
    "split_offsets",
)


def manifest_entry(
    location: str, *, spec_id: int, metrics_of: DataFile | None = None, **facts: Any
) -> DataFile:
    """A file as a manifest lists it: one Parquet data file of one row unless `facts` differ."""
    entry = {
        "content": DataFileContent.DATA,
        "file_format": FileFormat.PARQUET,
        "partition": Record(),
        "record_count": 1,
        "file_size_in_bytes": 100,
        **{name: getattr(metrics_of, name, None) for name in METRICS},
    }
    file = DataFile.from_args(_table_format_version=3, file_path=location, **{**entry, **facts})
    file.spec_id = spec_id
    return file


def _delete_file(
    table: Table,
    rows: pa.Table,
    content: DataFileContent,
    partition: tuple[Any, ...],
    spec_id: int | None,
    equality_ids: list[int] | None = None,
) -> DataFile:
    location = f"{table.location}/data/{uuid4().hex}-deletes.parquet"
    path = Path(urlparse(location).path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)
    return manifest_entry(
        location,
        spec_id=table.iceberg.spec().spec_id if spec_id is None else spec_id,
        content=content,
        partition=Record(*partition),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=equality_ids,
    )


def _with_ids(schema: Schema) -> pa.Schema:
    return pa.schema(
        [
            field.with_nullable(True).with_metadata({"PARQUET:field_id": str(known.field_id)})
            for field, known in zip(schema.as_arrow(), schema.fields, strict=True)
        ]
    )
