"""Every table property icefloe reads, typed, in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from icefloe.errors import StatementError, UnsupportedTableError

T = TypeVar("T")

_INT, _LONG = 2**31 - 1, 2**63 - 1  # Java's, which other engines read the properties as
_LEVELS = (-131_072, 22)  # zstd's, which has the most
_MOST_DOUBLINGS = 64
_DAY_MS = 24 * 60 * 60 * 1000
INLINE = "icefloe.inline.enabled"

_METRICS_KEYS = ("write.metadata.metrics.default", "write.metadata.metrics.column.")
_METRICS = re.compile(r"none|counts|full|truncate\(\d+\)", re.IGNORECASE)


class UpdateMode(StrEnum):
    """How a statement changes rows: Iceberg's two ways, and a choice per file."""

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
    """What `auto` weighs before it writes a file anew."""

    ROWS = "rows"  # how many of the file's rows go
    BYTES = "bytes"  # also what has to be encoded and what can be copied


class UpdateKind(StrEnum):
    """The kinds of row-level statement that have a mode and an isolation level of their own."""

    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"


class Isolation(StrEnum):
    """What a statement promises about rows that other writers add meanwhile."""

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


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try again after a lost race."""

    retries: int = 4
    min_wait_s: float = 0.1
    max_wait_s: float = 60.0
    total_s: float = 1800.0

    def wait_s(self, attempt: int) -> float:
        """The wait after failed attempt `attempt` (from 0), doubling up to the maximum."""
        # After so many doublings a millisecond exceeds every maximum, and 2.0**1024 overflows.
        return min(self.max_wait_s, self.min_wait_s * 2.0 ** min(attempt, _MOST_DOUBLINGS))


@dataclass(frozen=True)
class Settings:
    """The properties of a table, with Iceberg's defaults where it has one."""

    delete_mode: UpdateMode = UpdateMode.MERGE_ON_READ
    update_mode: UpdateMode = UpdateMode.MERGE_ON_READ
    merge_mode: UpdateMode = UpdateMode.MERGE_ON_READ
    delete_isolation: Isolation = Isolation.SERIALIZABLE
    update_isolation: Isolation = Isolation.SERIALIZABLE
    merge_isolation: Isolation = Isolation.SERIALIZABLE
    target_file_bytes: int = 536_870_912
    row_group_bytes: int = 33_554_432
    row_group_rows: int = 1_048_576
    page_bytes: int = 1_048_576
    dictionary_bytes: int = 2_097_152
    compression: str = "zstd"
    compression_level: int | None = None
    manifest_compression: str = "gzip"
    deletes_per_file: bool = False  # else one delete file per partition
    auto_rewrite_fraction: float = 0.3
    auto_by: AutoBy = AutoBy.ROWS
    merge_manifests: bool = True
    min_manifests_to_merge: int = 100
    manifest_target_bytes: int = 8_388_608
    gc_enabled: bool = True  # else no file may be deleted: other tables may use them
    max_snapshot_age_ms: int = 5 * _DAY_MS
    min_snapshots_to_keep: int = 1
    max_ref_age_ms: int | None = None  # None: for ever
    inline_enabled: bool = False
    retry: RetryPolicy = RetryPolicy()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Settings:
        """Read a table's properties; a value that cannot be read raises StatementError."""
        return cls(
            delete_mode=_read(properties, "write.delete.mode", UpdateMode.parse, cls.delete_mode),
            update_mode=_read(properties, "write.update.mode", UpdateMode.parse, cls.update_mode),
            merge_mode=_read(properties, "write.merge.mode", UpdateMode.parse, cls.merge_mode),
            delete_isolation=_isolation(properties, UpdateKind.DELETE),
            update_isolation=_isolation(properties, UpdateKind.UPDATE),
            merge_isolation=_isolation(properties, UpdateKind.MERGE),
            target_file_bytes=_read(
                properties, "write.target-file-size-bytes", _size, cls.target_file_bytes
            ),
            row_group_bytes=_read(
                properties, "write.parquet.row-group-size-bytes", _size, cls.row_group_bytes
            ),
            row_group_rows=_read(
                properties, "write.parquet.row-group-limit", _size, cls.row_group_rows
            ),
            page_bytes=_read(properties, "write.parquet.page-size-bytes", _size, cls.page_bytes),
            dictionary_bytes=_read(
                properties, "write.parquet.dict-size-bytes", _size, cls.dictionary_bytes
            ),
            compression=_read(
                properties, "write.parquet.compression-codec", _codec, cls.compression
            ),
            compression_level=_read(
                properties, "write.parquet.compression-level", _level, cls.compression_level
            ),
            manifest_compression=properties.get(
                "write.avro.compression-codec", cls.manifest_compression
            ),
            deletes_per_file=_read(
                properties, "write.delete.granularity", _granularity, cls.deletes_per_file
            ),
            auto_rewrite_fraction=_read(
                properties, "icefloe.auto.rewrite-fraction", _fraction, cls.auto_rewrite_fraction
            ),
            auto_by=_read(properties, "icefloe.auto.choose-by", _auto_by, cls.auto_by),
            merge_manifests=_read(
                properties, "commit.manifest-merge.enabled", _boolean, cls.merge_manifests
            ),
            min_manifests_to_merge=_read(
                properties, "commit.manifest.min-count-to-merge", _size, cls.min_manifests_to_merge
            ),
            manifest_target_bytes=_read(
                properties, "commit.manifest.target-size-bytes", _size, cls.manifest_target_bytes
            ),
            gc_enabled=_read(properties, "gc.enabled", _boolean, cls.gc_enabled),
            max_snapshot_age_ms=_read(
                properties, "history.expire.max-snapshot-age-ms", _count, cls.max_snapshot_age_ms
            ),
            min_snapshots_to_keep=_read(
                properties,
                "history.expire.min-snapshots-to-keep",
                _size,
                cls.min_snapshots_to_keep,
            ),
            max_ref_age_ms=_read(
                properties, "history.expire.max-ref-age-ms", _count, cls.max_ref_age_ms
            ),
            inline_enabled=_read(properties, INLINE, _boolean, cls.inline_enabled),
            retry=RetryPolicy(
                retries=_read(properties, "commit.retry.num-retries", _int_count, 4),
                min_wait_s=_read(properties, "commit.retry.min-wait-ms", _int_count, 100) / 1000,
                max_wait_s=_read(properties, "commit.retry.max-wait-ms", _int_count, 60_000) / 1000,
                total_s=_read(properties, "commit.retry.total-timeout-ms", _int_count, 1_800_000)
                / 1000,
            ),
        )

    def mode(self, kind: UpdateKind) -> UpdateMode:
        """The write mode the table asks for, for one kind of statement."""
        modes = {
            UpdateKind.DELETE: self.delete_mode,
            UpdateKind.UPDATE: self.update_mode,
            UpdateKind.MERGE: self.merge_mode,
        }
        return modes[kind]

    def isolation(self, kind: UpdateKind) -> Isolation:
        """The isolation level the table asks for, for one kind of statement."""
        levels = {
            UpdateKind.DELETE: self.delete_isolation,
            UpdateKind.UPDATE: self.update_isolation,
            UpdateKind.MERGE: self.merge_isolation,
        }
        return levels[kind]


class _Asked(dict[str, str]):
    """Properties of no value that remember which names were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.names.append(key)
        return default


def known_properties() -> tuple[str, ...]:
    """The name of every property that is read here."""
    asked = _Asked()
    Settings.of(asked)
    return tuple(asked.names)


MODE_PROPERTIES = tuple(f"write.{kind.value}.mode" for kind in UpdateKind)


def normalised_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """Properties as they are stored: text, modes in Iceberg's spelling, bad values refused."""
    texts = {key: _text(value) for key, value in properties.items()}
    for key in MODE_PROPERTIES:
        if key in texts:
            texts[key] = _read(texts, key, UpdateMode.parse, UpdateMode.MERGE_ON_READ).value
    if Settings.of(texts).inline_enabled:
        raise UnsupportedTableError(
            f"Table property {INLINE!r} is true, but this version of icefloe has no inline tier. "
            "Leave it out: insert() then writes data files, as append() does."
        )
    for key, text in texts.items():
        if key.startswith(_METRICS_KEYS) and not _METRICS.fullmatch(text.strip()):
            raise StatementError(
                f"Table property {key!r} has the value {text!r}: use none, counts, full or "
                "truncate(n)."
            )
    return texts


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _isolation(properties: Mapping[str, str], kind: UpdateKind) -> Isolation:
    key = f"write.{kind.value}.isolation-level"
    return _read(properties, key, Isolation.parse, Isolation.SERIALIZABLE)


def _read(properties: Mapping[str, str], key: str, convert: Callable[[str], T], default: T) -> T:
    text = properties.get(key)
    if text is None:
        return default
    try:
        return convert(text)
    except (ValueError, StatementError) as wrong:
        raise StatementError(f"Table property {key!r} has the value {text!r}: {wrong}") from wrong


def _codec(text: str) -> str:
    codecs = ("zstd", "gzip", "snappy", "brotli", "lz4", "uncompressed")
    if text.lower() not in codecs:
        raise ValueError(f"use one of {', '.join(codecs)}")
    return "none" if text.lower() == "uncompressed" else text.lower()


def _level(text: str) -> int | None:
    return None if text == "null" else _within(text, *_LEVELS)


def _count(text: str) -> int:
    return _within(text, 0, _LONG)


def _int_count(text: str) -> int:
    return _within(text, 0, _INT)


def _size(text: str) -> int:
    return _within(text, 1, _LONG)


def _within(text: str, least: int, most: int) -> int:
    if not least <= int(text) <= most:
        raise ValueError(f"use a number from {least} to {most}")
    return int(text)


def _fraction(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise ValueError("use a number from 0 to 1")
    return float(text)


def _granularity(text: str) -> bool:
    if text.lower() not in ("file", "partition"):
        raise ValueError("use 'file' or 'partition'")
    return text.lower() == "file"


def _auto_by(text: str) -> AutoBy:
    if text.lower() not in tuple(AutoBy):
        raise ValueError("use 'rows' or 'bytes'")
    return AutoBy(text.lower())


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("use 'true' or 'false'")
    return text.lower() == "true"
