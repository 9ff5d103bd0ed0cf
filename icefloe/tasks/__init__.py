"""Code that runs inside Spark's Python workers, with PyArrow and NumPy only.

Workers need not have icefloe installed, so these modules import nothing else of it but `parquet`,
and are pickled by value, with their code.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
