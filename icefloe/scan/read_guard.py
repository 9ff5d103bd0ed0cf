"""A scan that fails, instead of returning NULLs, once its session no longer reads by field id.

Spark reads `spark.sql.parquet.fieldId.read.enabled` when a query runs, which may be long after the
scan was created. Without it, columns that are read under names that no file has would all be NULL.
Such a scan therefore has a scalar subquery, which Spark runs first: it reads a value that provably
exists in the same way, and raises an error if it gets NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.metadata.files import leaves
from icefloe.pruning.candidates import Candidate
from icefloe.scan.columns import by_id_alone, names_may_be_reused
from icefloe.scan.scan import Scan
from icefloe.spark import columns
from icefloe.spark.session import LOST_SETTING
from icefloe.storage.files import open_input

_BATCH_ROWS = 1024
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class _Proof:
    """A column of a file that provably has a value: in every row, or in some."""

    candidate: Candidate
    field: NestedField
    in_every_row: bool
    bytes: int

    @property
    def cost(self) -> tuple[bool, int]:
        """Sort key: first columns of which one row is read, then the smallest."""
        return not self.in_every_row, self.bytes


def guarded(scan: Scan, rows: DataFrame) -> DataFrame:
    """The rows of a scan; reading them fails if the session reads columns by name."""
    if not _depends_on_setting(scan):
        return rows
    proof = _proof(scan)
    # Without a proof every value of every file is NULL, and reading by name returns the same.
    return rows if proof is None else rows.filter(_check(scan, proof).scalar())


def _depends_on_setting(scan: Scan) -> bool:
    """Whether columns, or the keys of equality deletes, are read under names that no file has."""
    deletes_by_key = any(candidate.equality_deletes for candidate in scan.candidates)
    return names_may_be_reused(scan.state) or deletes_by_key


def _check(scan: Scan, proof: _Proof) -> DataFrame:
    """One row and column: true, or an error."""
    column = F.col(columns.read_as(proof.field.field_id))
    rows = scan.parquet(by_id_alone(Schema(proof.field)), [proof.candidate.path])
    lost = F.raise_error(F.lit(LOST_SETTING)).cast("boolean")
    if proof.in_every_row:
        return rows.limit(1).select(F.when(column.isNotNull(), F.lit(True)).otherwise(lost))
    value = rows.agg(F.max(column.isNotNull()).alias("exists"))
    return value.select(F.when(F.col("exists"), F.lit(True)).otherwise(lost))


def _proof(scan: Scan) -> _Proof | None:
    """A value to read: by the manifests, or if they lack counts, by the files themselves.

    Prefers the first file with a column without NULLs. None if every value of every file is NULL.
    """
    fields = scan.state.schema.fields
    files = [c for c in scan.read_by_id if c.live.rows]
    some: list[_Proof] = []
    for candidate in files:
        proofs = [proof for field in fields if (proof := _by_metadata(candidate, field))]
        best = min(proofs, key=lambda proof: proof.cost, default=None)
        if best is not None and best.in_every_row:
            return best
        some += proofs
    if some:
        return min(some, key=lambda proof: proof.cost)
    read = (_by_reading(scan, c, fields) for c in sorted(files, key=lambda c: c.live.size))
    return next((proof for proof in read if proof is not None), None)


def _by_metadata(candidate: Candidate, field: NestedField) -> _Proof | None:
    """A proof by the NULL counts of a column, or of the fields of a struct."""
    file = candidate.live.file
    ids = [leaf.field_id for leaf in leaves(Schema(field)).values() if not leaf.repeated]
    counts = [(file.null_value_counts or {}).get(i) for i in ids]
    nulls = min((count for count in counts if count is not None), default=file.record_count)
    if nulls >= file.record_count:
        return None
    sizes = [(file.column_sizes or {}).get(i, file.file_size_in_bytes) for i in ids]
    return _Proof(candidate, field, nulls == 0, sum(sizes))


def _by_reading(scan: Scan, candidate: Candidate, fields: Sequence[NestedField]) -> _Proof | None:
    """The first column of a file with a value, among those without NULL counts."""
    nulls, rows = candidate.live.file.null_value_counts or {}, candidate.live.rows
    with open_input(scan.state.io, candidate.path, candidate.live.size) as source:
        file = pq.ParquetFile(source)
        names = {
            int(stored.metadata[_FIELD_ID]): stored.name
            for stored in file.schema_arrow
            if _FIELD_ID in (stored.metadata or {})
        }
        for field in fields:
            if field.field_id in names and nulls.get(field.field_id) != rows:
                batches = file.iter_batches(_BATCH_ROWS, columns=[names[field.field_id]])
                if any(b.num_columns and b.column(0).null_count < len(b) for b in batches):
                    return _Proof(candidate, field, False, candidate.live.size)
    return None
