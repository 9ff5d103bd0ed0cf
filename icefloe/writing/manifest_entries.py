"""What a task wrote, as the entry a manifest will hold: counts and bounds in Iceberg's encoding."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    PrimitiveType,
    StringType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from icefloe.metadata.files import Leaf, leaves

_TRUNCATED_TO = 16
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """How much of a column's metrics the table asks for."""

    counts: bool
    bounds: bool
    length: int | None  # strings and binaries are cut to this; None is full length


@dataclass(frozen=True, slots=True)
class InheritedMetrics:
    """Metrics that a new file has from the file it was made of, by field id.

    Bounds and counts of NULLs stand in where the new file's footer has none.
    """

    nulls: dict[int, int] = field(default_factory=dict)
    nans: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


def build_data_file(
    written: Mapping[str, Any],
    columns: Mapping[str, Leaf],
    metadata: TableMetadata,
    *,
    partition: Record,
    spec_id: int,
    sort_order_id: int | None,
    carried: InheritedMetrics | None = None,
) -> DataFile:
    """A manifest's view of a written file."""
    carried = carried or InheritedMetrics()
    metrics = {path: written["columns"][path] for path in written["columns"] if path in columns}
    modes = {path: _mode(metadata, path, columns[path]) for path in metrics}
    counted = {p: m for p, m in metrics.items() if modes[p].counts}
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.DATA,
        file_path=written["path"],
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=written["rows"],
        file_size_in_bytes=written["size"],
        column_sizes={columns[p].field_id: m["size"] for p, m in counted.items()},
        # Parquet counts empty lists and maps as values: not what Iceberg means, nor does it use it.
        value_counts={
            columns[p].field_id: m["values"] for p, m in counted.items() if not columns[p].repeated
        },
        null_value_counts={
            columns[p].field_id: n
            for p, n in {**_by_path(carried.nulls, columns), **_nulls(counted)}.items()
            if p in counted and not columns[p].repeated
        },
        nan_value_counts={
            columns[p].field_id: n
            for p, n in {**written["nans"], **_by_path(carried.nans, columns)}.items()
            if p in counted and not columns[p].repeated
        },
        lower_bounds=_bounds(metrics, columns, modes, "lower", carried.lower),
        upper_bounds=_bounds(metrics, columns, modes, "upper", carried.upper),
        key_metadata=None,
        split_offsets=written["split_offsets"],
        equality_ids=None,
        sort_order_id=sort_order_id,
    )
    file.spec_id = spec_id
    return file


def _mode(metadata: TableMetadata, path: str, leaf: Leaf) -> MetricsMode:
    """The metrics mode of a column: its own property, or the table's default."""
    default = metadata.properties.get(
        "write.metadata.metrics.default", f"truncate({_TRUNCATED_TO})"
    )
    name = metadata.schema().find_column_name(leaf.field_id) or path
    text = metadata.properties.get(f"write.metadata.metrics.column.{name}", default).strip().lower()
    if text == "none":
        return MetricsMode(counts=False, bounds=False, length=None)
    if text == "counts":
        return MetricsMode(counts=True, bounds=False, length=None)
    if text == "full":
        return MetricsMode(counts=True, bounds=True, length=None)
    length = int(text.removeprefix("truncate(").removesuffix(")"))
    return MetricsMode(counts=True, bounds=True, length=length)


def _bounds(
    metrics: Mapping[str, Mapping[str, Any]],
    columns: Mapping[str, Leaf],
    modes: Mapping[str, MetricsMode],
    side: str,
    carried: Mapping[int, bytes],
) -> dict[int, bytes]:
    found = {}
    for path, m in metrics.items():
        leaf = columns[path]
        if not modes[path].bounds or leaf.repeated:
            continue
        encoded = carried.get(leaf.field_id)
        if m["has_bounds"] and m[side] is not None:
            encoded = _encode(leaf.type, m[side], side, modes[path].length)
        if encoded is not None:
            found[leaf.field_id] = encoded
    return found


def _nulls(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    return {path: m["nulls"] for path, m in metrics.items() if m["nulls"] is not None}


def _by_path(found: Mapping[int, int], columns: Mapping[str, Leaf]) -> dict[str, int]:
    return {path: found[leaf.field_id] for path, leaf in columns.items() if leaf.field_id in found}


def _encode(kind: PrimitiveType, value: Any, side: str, length: int | None) -> bytes | None:
    """One bound in Iceberg's single-value encoding; None where it cannot be cut upwards."""
    if isinstance(kind, StringType):
        text, cut = _as_text(value) if isinstance(value, bytes) else (value, False)
        if cut or (length is not None and len(text) > length):
            text = text[:length] if side == "lower" else _text_above(text[:length])
        return None if text is None else to_bytes(kind, text)
    if isinstance(kind, BinaryType):
        if length is not None and len(value) > length:
            value = value[:length] if side == "lower" else _bytes_above(value[:length])
        return None if value is None else bytes(value)
    if isinstance(kind, FixedType):
        return bytes(value)
    if isinstance(kind, DecimalType):
        return to_bytes(kind, unscaled_to_decimal(value, kind.scale))
    return to_bytes(kind, value)


def _as_text(bound: bytes) -> tuple[str, bool]:
    """A bound as text, and whether it was cut before bytes that are none: a writer cut it there."""
    try:
        return bound.decode(), False
    except UnicodeDecodeError as wrong:
        return bound[: wrong.start].decode(), True


def _text_above(cut: str) -> str | None:
    """The shortest text above every text that begins with `cut`; surrogates are not characters."""
    for end in range(len(cut) - 1, -1, -1):
        code = ord(cut[end]) + 1
        if code <= sys.maxunicode:
            return cut[:end] + chr(_AFTER_SURROGATES if code == _FIRST_SURROGATE else code)
    return None


def _bytes_above(cut: bytes) -> bytes | None:
    for end in range(len(cut) - 1, -1, -1):
        if cut[end] < 0xFF:
            return cut[:end] + bytes([cut[end] + 1])
    return None


# -------------------------------------------------------------------------------------------------
# What the entry of an old file still says of a file put together from its chunks.


def carried_metrics(
    written: Mapping[str, Any], old: DataFile, schema: Schema, assigned: Container[str]
) -> InheritedMetrics:
    """Metrics of the copied columns that are known from the old file's entry.

    Bounds hold on when rows go, but not when they get new values. NaN are as many as before, or,
    in a column copied in part, differ by what came and went. NULLs are counted on only in columns
    copied as a whole.
    """
    copied = written.get("copied")
    carried = InheritedMetrics()
    if copied is None:
        return carried
    for column in schema.fields:
        whole, partly = column.name in copied["whole"], copied["partly"].get(column.name)
        if not whole and partly is None:
            continue
        for path, leaf in leaves(Schema(column)).items():
            key = leaf.field_id
            nans = (old.nan_value_counts or {}).get(key)
            added = 0 if whole else partly.get(path, 0)
            if nans is not None and (nans == 0 or not copied["loses_a_group"]):
                carried.nans[key] = nans + added
            if whole and key in (old.null_value_counts or {}):
                carried.nulls[key] = old.null_value_counts[key]
            if whole or column.name not in assigned:
                for kept, bounds in (
                    (carried.lower, old.lower_bounds),
                    (carried.upper, old.upper_bounds),
                ):
                    if key in (bounds or {}):
                        kept[key] = bounds[key]
    return carried
