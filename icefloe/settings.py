"""The table properties that icefloe reads.

Each property is declared once, as a field of `Settings` or `RetryPolicy`: its name, the values it
takes, its default and what it sets. Reading, validation and docs/properties.md follow from that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from icefloe.errors import StatementError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

INLINE = "icefloe.inline.enabled"
INLINE_STORE = "icefloe.inline.store"  # written by icefloe: the id of the database
# Written by icefloe where catalog and inline rows are in different databases: inline rows of
# changes up to this one are in files.
INLINE_FLUSHED = "icefloe.inline.flushed-through"

_PROPERTY = "table property"  # the key in a field's metadata
_INT, _LONG = 2**31 - 1, 2**63 - 1  # Java's types, as which other engines read the properties
_LEVELS = (-131_072, 22)  # of zstd, which has the widest range
_MAX_DOUBLINGS = 64
_DAY_MS = 24 * 60 * 60 * 1000


# -------------------------------------------------------------------------------------------------
# Choices


class UpdateMode(StrEnum):
    """How a statement changes rows: Iceberg's two ways, or a choice per file."""

    MERGE_ON_READ = "merge-on-read"
    COPY_ON_WRITE = "copy-on-write"
    AUTO = "auto"

    @classmethod
    def parse(cls, text: str) -> UpdateMode:
        """Read a mode in Iceberg's spelling or in upper snake case."""
        for mode in cls:
            if text in (mode.value, mode.name):
                return mode
        raise StatementError(
            f"Unknown write mode {text!r}. Use 'merge-on-read', 'copy-on-write' or 'auto'."
        )


class AutoBy(StrEnum):
    """What `auto` compares before it rewrites a file."""

    ROWS = "rows"  # how many of the file's rows change
    BYTES = "bytes"  # also how many bytes are encoded and how many can be copied


class UpdateKind(StrEnum):
    """The kinds of row-level statement that have a mode and an isolation level of their own."""

    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"


class Isolation(StrEnum):
    """What a statement guarantees about rows that other writers add concurrently."""

    SERIALIZABLE = "serializable"
    SNAPSHOT = "snapshot"

    @classmethod
    def parse(cls, text: str) -> Isolation:
        """Read an isolation level, in any case."""
        try:
            return cls(text.lower())
        except ValueError:
            raise StatementError(
                f"Unknown isolation level {text!r}. Use 'serializable' or 'snapshot'."
            ) from None


# -------------------------------------------------------------------------------------------------
# How the text of a property is read


@dataclass(frozen=True, slots=True)
class PropertyValues(Generic[T_co]):
    """The values that a property takes."""

    expected: str
    parse: Callable[[str], T_co]  # raises ValueError, or OverflowError with the limit

    def read(self, name: str, text: str) -> T_co:
        """The value of property `name`; raises StatementError if it takes no such value."""
        try:
            return self.parse(text)
        except (ValueError, OverflowError, StatementError) as error:
            expected = error if isinstance(error, OverflowError) else self.expected
            raise StatementError(
                f"Invalid value {text!r} for table property {name!r}: expected {expected}"
            ) from error


def _integer(least: int, most: int = _LONG) -> PropertyValues[int]:
    def parse(text: str) -> int:
        if (number := int(text)) > most:
            raise OverflowError(f"an integer <= {most}")
        if number < least:
            raise ValueError
        return number

    return PropertyValues(f"an integer >= {least}", parse)


def _one_of(values: Mapping[str, T]) -> PropertyValues[T]:
    """These words, in any case."""

    def parse(text: str) -> T:
        if text.lower() not in values:
            raise ValueError
        return values[text.lower()]

    *others, last = map(repr, values)
    return PropertyValues(f"{', '.join(others)} or {last}", parse)


def _parse_seconds(milliseconds: str) -> float:
    return _COUNT.parse(milliseconds) / 1000


def _parse_level(text: str) -> int | None:
    if text == "null":
        return None
    if not _LEVELS[0] <= int(text) <= _LEVELS[1]:
        raise ValueError
    return int(text)


def _parse_fraction(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise ValueError
    return float(text)


def _parse_location(text: str) -> str:
    if not (text.startswith(("/", "file:/")) or "://" in text):
        raise ValueError
    return text


def _parse_metrics(text: str) -> str:
    if not re.fullmatch(r"none|counts|full|truncate\(\d+\)", text.strip(), re.IGNORECASE):
        raise ValueError
    return text


_MODE = PropertyValues("'merge-on-read', 'copy-on-write' or 'auto'", UpdateMode.parse)
_ISOLATION = _one_of({level.value: level for level in Isolation})
_AUTO_BY = _one_of({choice.value: choice for choice in AutoBy})
_BOOLEAN = _one_of({"true": True, "false": False})
_PER_FILE = _one_of({"file": True, "partition": False})
_CODEC = _one_of(
    {codec: codec for codec in ("zstd", "gzip", "snappy", "brotli", "lz4")}
    | {"uncompressed": "none"}
)
_TEXT = PropertyValues("text", str)
_LOCATION = PropertyValues("an absolute path or a URI with a scheme", _parse_location)
_SIZE = _integer(1)
_AGE = _integer(0)
_COUNT = _integer(0, _INT)
_SECONDS = PropertyValues(_COUNT.expected, _parse_seconds)
_LEVEL = PropertyValues(f"an integer from {_LEVELS[0]} to {_LEVELS[1]}, or 'null'", _parse_level)
_FRACTION = PropertyValues("a number from 0 to 1", _parse_fraction)
_METRICS = PropertyValues("none, counts, full or truncate(n)", _parse_metrics)
_METRICS_NAMES = ("write.metadata.metrics.default", "write.metadata.metrics.column.")


# -------------------------------------------------------------------------------------------------
# The properties


@dataclass(frozen=True, slots=True)
class TableProperty(Generic[T_co]):
    """One table property, as it is declared and documented."""

    name: str
    values: PropertyValues[T_co]
    default: str | None  # as it would be written; None: not set
    description: str


def _property(name: str, values: PropertyValues[T], default: str | None, description: str) -> T:
    """A dataclass field that is read from a table property."""
    declared = TableProperty(name, values, default, description)
    value: Any = None if default is None else values.parse(default)
    setting: T = field(default=value, metadata={_PROPERTY: declared})
    return setting


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a commit is retried after another writer committed first."""

    retries: int = _property(
        "commit.retry.num-retries", _COUNT, "4", "Retries of a commit after concurrent commits."
    )
    min_wait_s: float = _property(
        "commit.retry.min-wait-ms", _SECONDS, "100", "Wait before the first retry; doubles."
    )
    max_wait_s: float = _property(
        "commit.retry.max-wait-ms", _SECONDS, "60000", "Longest wait before a retry."
    )
    total_s: float = _property(
        "commit.retry.total-timeout-ms", _SECONDS, "1800000", "Time after which no retry starts."
    )

    def wait_s(self, attempt: int) -> float:
        """The wait after failed attempt `attempt` (from 0), doubling up to the maximum."""
        # After so many doublings a millisecond exceeds every maximum, and 2.0**1024 overflows.
        return min(self.max_wait_s, self.min_wait_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))


@dataclass(frozen=True)
class Settings:
    """The properties of a table, with Iceberg's defaults where it has one."""

    delete_mode: UpdateMode = _property(
        "write.delete.mode", _MODE, "merge-on-read", "How DELETE changes rows."
    )
    update_mode: UpdateMode = _property(
        "write.update.mode", _MODE, "merge-on-read", "How UPDATE changes rows."
    )
    merge_mode: UpdateMode = _property(
        "write.merge.mode", _MODE, "merge-on-read", "How MERGE changes rows."
    )
    delete_isolation: Isolation = _property(
        "write.delete.isolation-level",
        _ISOLATION,
        "serializable",
        "Whether DELETE conflicts with rows that were added concurrently.",
    )
    update_isolation: Isolation = _property(
        "write.update.isolation-level",
        _ISOLATION,
        "serializable",
        "Whether UPDATE conflicts with rows that were added concurrently.",
    )
    merge_isolation: Isolation = _property(
        "write.merge.isolation-level",
        _ISOLATION,
        "serializable",
        "Whether MERGE conflicts with rows that were added concurrently.",
    )
    target_file_bytes: int = _property(
        "write.target-file-size-bytes", _SIZE, "536870912", "Size at which a data file ends."
    )
    row_group_bytes: int = _property(
        "write.parquet.row-group-size-bytes", _SIZE, "33554432", "Size at which a row group ends."
    )
    row_group_rows: int = _property(
        "write.parquet.row-group-limit", _SIZE, "1048576", "Most rows of a row group."
    )
    page_bytes: int = _property(
        "write.parquet.page-size-bytes", _SIZE, "1048576", "Size at which a page ends."
    )
    dictionary_bytes: int = _property(
        "write.parquet.dict-size-bytes", _SIZE, "2097152", "Largest dictionary page of a column."
    )
    compression: str = _property(
        "write.parquet.compression-codec", _CODEC, "zstd", "Codec of data and delete files."
    )
    compression_level: int | None = _property(
        "write.parquet.compression-level", _LEVEL, None, "Level of the codec; its own if not set."
    )
    manifest_compression: str = _property(
        "write.avro.compression-codec", _TEXT, "gzip", "Codec of manifests and manifest lists."
    )
    deletes_per_file: bool = _property(
        "write.delete.granularity",
        _PER_FILE,
        "partition",
        "Whether a delete file covers one data file or all of a partition.",
    )
    auto_rewrite_fraction: float = _property(
        "icefloe.auto.rewrite-fraction",
        _FRACTION,
        "0.3",
        "Fraction of changed rows above which `auto` rewrites a file instead of writing deletes.",
    )
    auto_by: AutoBy = _property(
        "icefloe.auto.choose-by",
        _AUTO_BY,
        "rows",
        "Whether `auto` also compares the bytes to encode with the bytes to copy.",
    )
    merge_manifests: bool = _property(
        "commit.manifest-merge.enabled", _BOOLEAN, "true", "Whether commits merge small manifests."
    )
    min_manifests_to_merge: int = _property(
        "commit.manifest.min-count-to-merge",
        _SIZE,
        "100",
        "Number of manifests from which commits merge them.",
    )
    manifest_target_bytes: int = _property(
        "commit.manifest.target-size-bytes", _SIZE, "8388608", "Size of merged manifests."
    )
    index_location: str | None = _property(
        "icefloe.index.location",
        _LOCATION,
        None,
        "Folder of the sidecars of indexes; `_icefloe/index` in the table's location if not set.",
    )
    index_max_keys: int = _property(
        "icefloe.index.max-keys",
        _SIZE,
        "1000000",
        "Rows of a MERGE's source up to which an index is used; their keys pass the driver.",
    )
    gc_enabled: bool = _property(
        "gc.enabled",
        _BOOLEAN,
        "true",
        "Whether files may be deleted; set it to false if other tables use them.",
    )
    max_snapshot_age_ms: int = _property(
        "history.expire.max-snapshot-age-ms",
        _AGE,
        str(5 * _DAY_MS),
        "Age from which snapshots expire.",
    )
    min_snapshots_to_keep: int = _property(
        "history.expire.min-snapshots-to-keep",
        _SIZE,
        "1",
        "Snapshots of each branch that never expire.",
    )
    max_ref_age_ms: int | None = _property(
        "history.expire.max-ref-age-ms",
        _AGE,
        None,
        "Age from which branches and tags expire; never if not set.",
    )
    inline_enabled: bool = _property(
        INLINE,
        _BOOLEAN,
        "false",
        "Whether `insert` keeps rows in a database until they are flushed.",
    )
    inline_row_limit: int = _property(
        "icefloe.inline.row-limit",
        _SIZE,
        "100000",
        "Number of inline rows from which they are flushed in the background.",
    )
    inline_max_age_ms: int | None = _property(
        "icefloe.inline.max-age-ms",
        _AGE,
        None,
        "Age of the oldest inline row from which they are flushed; no limit if not set.",
    )
    inline_deletes: bool = _property(
        "icefloe.inline.deletes",
        _BOOLEAN,
        "true",
        "Whether an UPDATE or DELETE of few rows of files is stored in the database too.",
    )
    retry: RetryPolicy = RetryPolicy()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Settings:
        """Read a table's properties; a value that cannot be read raises StatementError."""
        values = _read(_SETTINGS, properties)
        return cls(**values, retry=RetryPolicy(**_read(_RETRIES, properties)))

    def mode(self, kind: UpdateKind) -> UpdateMode:
        """The write mode that the table sets for one kind of statement."""
        modes = {
            UpdateKind.DELETE: self.delete_mode,
            UpdateKind.UPDATE: self.update_mode,
            UpdateKind.MERGE: self.merge_mode,
        }
        return modes[kind]

    def isolation(self, kind: UpdateKind) -> Isolation:
        """The isolation level that the table sets for one kind of statement."""
        levels = {
            UpdateKind.DELETE: self.delete_isolation,
            UpdateKind.UPDATE: self.update_isolation,
            UpdateKind.MERGE: self.merge_isolation,
        }
        return levels[kind]


def _declared_in(cls: type[Settings | RetryPolicy]) -> dict[str, TableProperty[Any]]:
    """The table properties of a dataclass, by field."""
    return {f.name: f.metadata[_PROPERTY] for f in fields(cls) if _PROPERTY in f.metadata}


def _read(
    declared: Mapping[str, TableProperty[Any]], properties: Mapping[str, str]
) -> dict[str, Any]:
    """The values of the fields that a table sets."""
    return {
        attribute: one.values.read(one.name, properties[one.name])
        for attribute, one in declared.items()
        if one.name in properties
    }


_SETTINGS, _RETRIES = _declared_in(Settings), _declared_in(RetryPolicy)
TABLE_PROPERTIES = (*_SETTINGS.values(), *_RETRIES.values())
MODE_PROPERTIES = tuple(one.name for one in TABLE_PROPERTIES if one.values is _MODE)


def properties_to_store(properties: Mapping[str, object]) -> dict[str, str]:
    """Validate properties: as text, with modes in Iceberg's spelling."""
    texts = {name: _text(value) for name, value in properties.items()}
    Settings.of(texts)
    for name in (INLINE_STORE, INLINE_FLUSHED):
        if name in texts:
            raise StatementError(f"Table property {name!r} is set by icefloe alone.")
    for name, text in texts.items():
        if name in MODE_PROPERTIES:
            texts[name] = _MODE.read(name, text).value
        elif name.startswith(_METRICS_NAMES):
            _METRICS.read(name, text)
    return texts


def flushed_through(properties: Mapping[str, str]) -> int:
    """The last change whose inline rows are in files, by the table's properties; 0 if none is."""
    return _integer(0).read(INLINE_FLUSHED, properties.get(INLINE_FLUSHED, "0"))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
