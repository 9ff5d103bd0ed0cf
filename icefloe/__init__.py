"""Row-level changes on Apache Iceberg tables, from Python, with Spark doing the data work."""

from __future__ import annotations

from icefloe import errors
from icefloe.lake import Lake, connect
from icefloe.results import DmlResult
from icefloe.table import Table
from icefloe.version import __version__
from icefloe.writer import write

__all__ = ["DmlResult", "Lake", "Table", "__version__", "connect", "errors", "write"]
