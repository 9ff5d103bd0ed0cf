"""A scan that fails, instead of returning NULLs, once its session no longer reads by field id.

Spark looks at `spark.sql.parquet.fieldId.read.enabled` when a query runs, which may be long after
the scan was made. Columns that are read under names no file has would all be NULL without it. So
such a scan carries a scalar subquery, which Spark runs before anything else: it reads one value
that the metadata knows to be there, the same way, and raises an error where it gets NULL.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe import columns
from icefloe.execute.read_names import by_id_alone, names_may_be_reused
from icefloe.execute.scan import Scan
from icefloe.metadata.storage import locate, naming_unreadable_file
from icefloe.plan.files import Candidate
from icefloe.session import LOST_SETTING


@dataclass(frozen=True, slots=True)
class _Proof:
    """A column of a file that has a value: in every row, or in some."""

    candidate: Candidate
    field: NestedField
    in_every_row: bool
    bytes: int

    @property
    def cost(self) -> tuple[bool, int]:
        """What to compare by: one row is read, or all of the column."""
        return not self.in_every_row, self.bytes


def guarded(scan: Scan, rows: DataFrame) -> DataFrame:
    """The rows of a scan, which fail to be read where the session reads columns by name."""
    if not _depends_on_setting(scan):
        return rows
    proof = _proof(scan)
    # Without a proof every value is NULL: then so is what is read either way.
    return rows if proof is None else rows.filter(_check(scan, proof).scalar())


def _depends_on_setting(scan: Scan) -> bool:
    """Whether columns are read under names that no file has: the table's, or deleted keys."""
    deletes_by_key = any(candidate.equality_deletes for candidate in scan.candidates)
    return names_may_be_reused(scan.state) or deletes_by_key


def _check(scan: Scan, proof: _Proof) -> DataFrame:
    """One row and column: true, or an error."""
    column = F.col(columns.read_as(proof.field.field_id))
    rows = scan.parquet(by_id_alone(Schema(proof.field)), [proof.candidate.path])
    lost = F.raise_error(F.lit(LOST_SETTING)).cast("boolean")
    if proof.in_every_row:
        return rows.limit(1).select(F.when(column.isNotNull(), F.lit(True)).otherwise(lost))
    found = rows.agg(F.max(column.isNotNull()).alias("found"))
    return found.select(F.when(F.col("found"), F.lit(True)).otherwise(lost))


def _proof(scan: Scan) -> _Proof | None:
    """The cheapest column to look at, by the manifests; by a footer where they have no counts."""
    fields = [field for field in scan.state.schema.fields if field.field_type.is_primitive]
    files = [c for c in scan.read_by_id if c.live.rows]
    proofs = [proof for c in files for field in fields if (proof := _by_metadata(c, field))]
    if proofs:
        return min(proofs, key=lambda proof: proof.cost)
    unknown = [c for c in files if not c.live.file.null_value_counts]
    if not unknown:
        return None
    return _by_footer(scan, min(unknown, key=lambda c: c.live.size), fields)


def _by_metadata(candidate: Candidate, field: NestedField) -> _Proof | None:
    file, i = candidate.live.file, field.field_id
    nulls = (file.null_value_counts or {}).get(i)
    if nulls is None or nulls >= file.record_count:
        return None
    size = (file.column_sizes or {}).get(i, file.file_size_in_bytes)
    return _Proof(candidate, field, nulls == 0, size)


def _by_footer(scan: Scan, candidate: Candidate, fields: list[NestedField]) -> _Proof | None:
    place = locate(scan.state.io, candidate.path)
    with naming_unreadable_file(candidate.path):
        footer = pq.read_metadata(place.path, filesystem=place.filesystem)
    ids = _ids_of_leaves(footer)
    for field in fields:
        if field.field_id not in ids:
            continue
        leaf = ids[field.field_id]
        groups = [footer.row_group(n).column(leaf) for n in range(footer.num_row_groups)]
        nulls = [g.statistics.null_count for g in groups if g.statistics is not None]
        if len(nulls) == len(groups) and sum(nulls) < footer.num_rows:
            return _Proof(candidate, field, sum(nulls) == 0, candidate.live.size)
    return None


def _ids_of_leaves(footer: pq.FileMetaData) -> dict[int, int]:
    """Places of leaf columns by the field ids of columns that are one leaf."""
    schema = footer.schema.to_arrow_schema()
    paths = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    return {
        int(field.metadata[b"PARQUET:field_id"]): paths[field.name]
        for field in schema
        if not pa.types.is_nested(field.type)
        and field.metadata
        and b"PARQUET:field_id" in field.metadata
    }
