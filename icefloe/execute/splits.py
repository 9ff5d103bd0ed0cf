"""How much of a table each task reads, where a statement reads few of its columns.

Spark cuts files by their size, whichever columns are read. Of a wide table that makes many tasks
with next to nothing to do; where they also tell which rows they found, each has a Python worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from pyspark.sql import Column

from icefloe.metadata.files import ids_of_columns
from icefloe.scan.scan import Scan
from icefloe.spark.session import held

_SETTING = "spark.sql.files.maxPartitionBytes"
_DEFAULT = 128 * 2**20
_AS_SPARK_TELLS_IT = f"{_DEFAULT}b"
_MOST_TIMES = 8


@contextmanager
def larger_splits(scan: Scan, read: Collection[str]) -> Iterator[None]:
    """While jobs that read only these columns are planned, let a task have more of the files.

    A session that has a setting of its own keeps it. Spark cuts files finely enough to keep every
    core busy in any case.
    """
    times = times_read(scan, read)
    if times == 1 or scan.spark.conf.get(_SETTING) != _AS_SPARK_TELLS_IT:
        yield
        return
    with held(scan.spark, _SETTING, str(times * _DEFAULT)):
        yield


def columns_in(scan: Scan, expressions: Iterable[Column | None]) -> list[str]:
    """The table's columns that expressions may name, by their texts: rather one too many."""
    text = " ".join(str(expression) for expression in expressions).lower()
    names = [field.name for field in scan.state.schema.fields]
    return [name for name in names if name.lower() in text]


def times_read(scan: Scan, read: Collection[str]) -> int:
    """How many times what is read would fit into all columns of the files; 1 for small tables."""
    files = [candidate.live for candidate in scan.candidates]
    schema = scan.state.schema
    if len(read) == len(schema.fields) or sum(file.size for file in files) <= 2 * _DEFAULT:
        return 1
    columns = ids_of_columns(schema, read)
    found = [file.bytes_of(columns) for file in files]
    known = [part for part in found if part is not None]
    if len(known) < len(found):
        return 1  # some manifest does not tell
    every = sum(file.bytes_of_all for file in files)
    return max(1, min(_MOST_TIMES, every // max(1, sum(known))))
