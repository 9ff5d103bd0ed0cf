"""Parquet files as bytes: read and write footers, copy column chunks from one file to another.

Spark's workers use it, so it needs PyArrow only and is pickled by value.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
