"""Rows to the tasks of their files: each file has a task of its own, while there are not too many.

Spread by a hash, of eight files some three share a task and as many tasks have nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe.execute.file_keys import FileKeys
from icefloe.pruning.candidates import Candidate
from icefloe.spark import columns

_MOST_NUMBERED = 64  # files, through which every row looks for its own


def by_file(
    rows: DataFrame,
    files: Sequence[Candidate],
    keys: FileKeys,
    most: int,
    new: Sequence[str] = (),
    tasks: int = 0,
) -> DataFrame:
    """Bring rows of a file, told by its key, together in at most `most` tasks.

    Rows without a file go to `tasks` further ones, by the columns `new`.
    """
    wanted = max(1, min(len(files) + tasks, most))
    if len(files) > min(_MOST_NUMBERED, wanted):
        return rows.repartition(wanted, columns.FILE, *new)
    number = keys.place_among(files)
    if tasks:
        spread = F.pmod(F.hash(*new), F.lit(tasks)) if new else F.lit(0)
        number = F.coalesce(number, F.lit(len(files)) + spread)
    return rows.repartitionById(wanted, number)
