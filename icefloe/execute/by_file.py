"""Rows to the tasks of their files: each file has a task of its own, while there are not too many.

Spread by a hash, of eight files some three share a task and as many tasks have nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe import columns
from icefloe.metadata.storage import spark_uri
from icefloe.plan.files import Candidate

_MOST_NUMBERED = 64  # files, through which every row looks for its own


def by_file(
    rows: DataFrame, files: Sequence[Candidate], most: int, new: Sequence[str] = (), tasks: int = 0
) -> DataFrame:
    """Bring rows of a file together in at most `most` tasks.

    Rows without a file go to `tasks` further ones, by the columns `new`.
    """
    wanted = max(1, min(len(files) + tasks, most))
    if len(files) > min(_MOST_NUMBERED, wanted):
        return rows.repartition(wanted, columns.FILE, *new)
    number = _number(files)
    if tasks:
        spread = F.pmod(F.hash(*new), F.lit(tasks)) if new else F.lit(0)
        number = F.coalesce(number, F.lit(len(files)) + spread)
    return rows.repartitionById(wanted, number)


def _number(files: Sequence[Candidate]) -> Column:
    """Which of the files a row is of, from 0; NULL for a row without one."""
    # A URI has no line breaks. Spark splits the text once.
    uris = F.split(F.lit("\n".join(spark_uri(c.path) for c in files)), "\n")
    return (F.array_position(uris, F.col(columns.FILE)) - 1).cast("int")
