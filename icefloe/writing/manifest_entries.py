"""Manifest entries of written files: counts and bounds in Iceberg's encoding."""

from __future__ import annotations

import logging
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
from icefloe.tasks.messages import ColumnMetrics, WrittenFile

log = logging.getLogger("icefloe")

_DEFAULT_LENGTH = 16
_DEFAULT_MODE = "write.metadata.metrics.default"
_COLUMN_MODE = "write.metadata.metrics.column."
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000


@dataclass(frozen=True, slots=True)
class EntryPlacement:
    """The partition and the sort order that an entry records."""

    partition: Record
    spec_id: int
    sort_order_id: int | None


@dataclass(frozen=True, slots=True)
class MetricsMode:
    """How much of a column's metrics the table keeps."""

    counts: bool
    bounds: bool
    length: int | None  # strings and binaries are truncated to it; None: full length


@dataclass(frozen=True, slots=True)
class InheritedMetrics:
    """Metrics that a rewritten file inherits from the file it replaces, by field id.

    Bounds and NULL counts apply only where the new file's footer has none.
    """

    nulls: dict[int, int] = field(default_factory=dict)
    nans: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


def build_data_file(
    written: WrittenFile,
    columns: Mapping[str, Leaf],
    metadata: TableMetadata,
    placement: EntryPlacement,
    inherited: InheritedMetrics | None = None,
) -> DataFile:
    """The manifest entry of a written file; `columns` are the table's leaf columns by path."""
    for problem in written.not_indexed:
        log.warning("%s", problem)
    inherited = inherited or InheritedMetrics()
    metrics = {column.path: column for column in written.columns if column.path in columns}
    modes = _modes(metadata, columns, metrics)
    counted = {path: column for path, column in metrics.items() if modes[path].counts}
    # Parquet counts empty lists and maps as values. Iceberg does not, and has no use for it.
    flat = {path: column for path, column in counted.items() if not columns[path].repeated}
    nulls = {path: column.nulls for path, column in flat.items() if column.nulls is not None}
    file = DataFile.from_args(
        _table_format_version=3,
        content=DataFileContent.DATA,
        file_path=written.path,
        file_format=FileFormat.PARQUET,
        partition=placement.partition,
        record_count=written.rows,
        file_size_in_bytes=written.size,
        column_sizes={columns[path].field_id: column.size for path, column in counted.items()},
        value_counts={columns[path].field_id: column.values for path, column in flat.items()},
        null_value_counts={
            columns[path].field_id: count
            for path, count in {**_by_path(inherited.nulls, columns), **nulls}.items()
            if path in flat
        },
        nan_value_counts={
            columns[path].field_id: count
            for path, count in {**written.nans, **_by_path(inherited.nans, columns)}.items()
            if path in flat
        },
        lower_bounds=_bounds(metrics, columns, modes, "lower", inherited.lower),
        upper_bounds=_bounds(metrics, columns, modes, "upper", inherited.upper),
        key_metadata=None,
        split_offsets=list(written.split_offsets),
        equality_ids=None,
        sort_order_id=placement.sort_order_id,
    )
    file.spec_id = placement.spec_id
    return file


def _modes(
    metadata: TableMetadata, columns: Mapping[str, Leaf], paths: Iterable[str]
) -> dict[str, MetricsMode]:
    """The metrics mode of each column: its own property, or the table's default."""
    properties = metadata.properties
    default = properties.get(_DEFAULT_MODE, f"truncate({_DEFAULT_LENGTH})")
    if not any(key.startswith(_COLUMN_MODE) for key in properties):
        return dict.fromkeys(paths, _parse_mode(default))
    schema = metadata.schema()
    names = {path: schema.find_column_name(columns[path].field_id) or path for path in paths}
    return {
        path: _parse_mode(properties.get(f"{_COLUMN_MODE}{name}", default))
        for path, name in names.items()
    }


def _parse_mode(text: str) -> MetricsMode:
    text = text.strip().lower()
    if text == "none":
        return MetricsMode(counts=False, bounds=False, length=None)
    if text == "counts":
        return MetricsMode(counts=True, bounds=False, length=None)
    if text == "full":
        return MetricsMode(counts=True, bounds=True, length=None)
    length = int(text.removeprefix("truncate(").removesuffix(")"))
    return MetricsMode(counts=True, bounds=True, length=length)


def _bounds(
    metrics: Mapping[str, ColumnMetrics],
    columns: Mapping[str, Leaf],
    modes: Mapping[str, MetricsMode],
    side: Literal["lower", "upper"],
    inherited: Mapping[int, bytes],
) -> dict[int, bytes]:
    bounds = {}
    for path, column in metrics.items():
        leaf = columns[path]
        if not modes[path].bounds or leaf.repeated:
            continue
        encoded = inherited.get(leaf.field_id)
        bound = column.lower if side == "lower" else column.upper
        if bound is not None:
            encoded = _encode(leaf.type, bound, side, modes[path].length)
        if encoded is not None:
            bounds[leaf.field_id] = encoded
    return bounds


def _by_path(counts: Mapping[int, int], columns: Mapping[str, Leaf]) -> dict[str, int]:
    return {p: counts[leaf.field_id] for p, leaf in columns.items() if leaf.field_id in counts}


def _encode(kind: PrimitiveType, value: Any, side: str, length: int | None) -> bytes | None:
    """A bound in Iceberg's single-value encoding; None if it cannot be truncated upwards."""
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
    """A bound as text, and whether a writer truncated it within a character."""
    try:
        return bound.decode(), False
    except UnicodeDecodeError as invalid:
        return bound[: invalid.start].decode(), True


def _text_above(cut: str) -> str | None:
    """The shortest text above every text that starts with `cut`; surrogates are not characters."""
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
# Metrics that a rewritten file inherits from the file it replaces.


def inherited_metrics(
    written: WrittenFile, old: DataFile, schema: Schema, assigned: Container[str]
) -> InheritedMetrics:
    """Metrics of the copied columns, from the old file's entry.

    Bounds stay valid when rows are deleted, but not when they get new values. The NaN count of a
    column copied in part changes by what its encoded row groups gained and lost. The NULL count is
    inherited only by columns copied as a whole.
    """
    copied = written.copied
    inherited = InheritedMetrics()
    for column in schema.fields:
        is_whole, nans_added = column.name in copied.whole, copied.partly.get(column.name)
        if not is_whole and nans_added is None:
            continue
        for path, leaf in leaves(Schema(column)).items():
            key = leaf.field_id
            nans = (old.nan_value_counts or {}).get(key)
            added = 0 if is_whole or nans_added is None else nans_added.get(path, 0)
            if nans is not None and (nans == 0 or not copied.drops_row_groups):
                inherited.nans[key] = nans + added
            if is_whole and key in (old.null_value_counts or {}):
                inherited.nulls[key] = old.null_value_counts[key]
            if is_whole or column.name not in assigned:
                for bounds, old_bounds in (
                    (inherited.lower, old.lower_bounds),
                    (inherited.upper, old.upper_bounds),
                ):
                    if key in (old_bounds or {}):
                        bounds[key] = old_bounds[key]
    return inherited
