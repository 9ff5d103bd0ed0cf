"""Parquet files as bytes: footers read and written, column chunks taken from one file to another.

Used inside Spark's workers, so what is here needs PyArrow only and is sent by value.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
