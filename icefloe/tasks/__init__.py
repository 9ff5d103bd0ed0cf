"""What runs inside Spark's Python workers: PyArrow and NumPy only, sent there by value.

Workers need not have icefloe installed, so the modules here import nothing else of it and are
pickled with their code.
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
