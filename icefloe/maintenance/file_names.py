"""File names that writers of Iceberg tables give, so that other files are left alone."""

from __future__ import annotations

import re

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HEX = r"[0-9a-f]{32}"
_QUERY = r"\d{8}_\d{6}_\d{5}_[a-z0-9]{5}"  # Trino's ids of queries
_DATA = r"(?:\.[a-z0-9]+)?\.(?:parquet|orc|avro|puffin)"
_PATTERNS = (
    # icefloe: statement, then task or number
    rf"{_HEX}-[0-9a-f]{{1,12}}(?:-deletes)?\.parquet",
    # Java (Spark, Flink) and PyIceberg: partition, task, operation, number of the file
    rf"\d{{5,}}-\d+-{_UUID}(?:-\d+)*(?:-deletes)?{_DATA}",
    # Trino
    rf"{_QUERY}-{_UUID}(?:{_DATA}|\.stats)",
    # manifests, manifest lists
    rf"(?:{_UUID}|{_HEX})-m\d+\.avro",
    rf"(?:optimized-m-|rewritten-m-)(?:{_UUID}|\d+)\.avro",
    rf"snap-\d+-(?:\d+-)?(?:{_UUID}|{_HEX})\.avro",
    # table metadata
    rf"(?:\d{{5,}}-{_UUID}|v\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?",
    # statistics
    rf"\d+-{_UUID}\.stats",
    rf"partition-stats-\d+-{_UUID}{_DATA}",
)
_WRITTEN = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS))


def is_of_a_writer(name: str) -> bool:
    """Whether a file, by its name without folders, was written as part of an Iceberg table."""
    return _WRITTEN.fullmatch(name) is not None
