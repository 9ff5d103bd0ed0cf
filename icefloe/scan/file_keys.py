"""Which file a row is of, as a number: between steps, rows need not carry the file's URI.

A URI in every row is most of what a large MERGE shuffles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import normpath
from zlib import crc32

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icefloe.errors import UnsupportedTableError
from icefloe.pruning.candidates import Candidate
from icefloe.spark import columns
from icefloe.storage.locations import spark_uri
from icefloe.tasks.messages import FileKey


@dataclass(frozen=True, slots=True)
class FileKeys:
    """The files of a statement by their keys: checksums of their URIs, or these."""

    files: Mapping[FileKey, Candidate]
    are_numbers: bool = True

    @staticmethod
    def of(candidates: Iterable[Candidate]) -> FileKeys:
        """Keys that tell all of these files apart."""
        candidates = tuple(candidates)
        refuse_unplain(candidates)
        uris: dict[FileKey, Candidate] = {spark_uri(c.path): c for c in candidates}
        numbers: dict[FileKey, Candidate] = {_number(str(uri)): c for uri, c in uris.items()}
        if len(numbers) == len(uris):
            return FileKeys(numbers)
        return FileKeys(uris, are_numbers=False)

    def of_file(self, candidate: Candidate) -> FileKey:
        """The key of one of the files."""
        uri = spark_uri(candidate.path)
        return _number(uri) if self.are_numbers else uri

    def of_files(self, candidates: Iterable[Candidate]) -> list[FileKey]:
        """The keys of some of the files."""
        return [self.of_file(candidate) for candidate in candidates]

    @property
    def type(self) -> str:
        """The type of the keys in Spark."""
        return "bigint" if self.are_numbers else "string"

    @property
    def expression(self) -> str:
        """The key of a row that has its file's URI."""
        made = f"crc32({columns.FILE})" if self.are_numbers else columns.FILE
        return f"{made} AS {columns.FILE}"

    def in_place_of_uris(self, rows: DataFrame) -> DataFrame:
        """The rows, with keys where they had URIs."""
        return rows.withColumn(columns.FILE, F.expr(self.expression))

    def place_among(self, candidates: Iterable[Candidate]) -> Column:
        """Which of these files a row with a key is of, from 0; NULL for a row without a file."""
        keys = self.of_files(candidates)
        if self.are_numbers:
            every = F.expr(f"array({', '.join(f'{key}L' for key in keys)})")
        else:  # a URI has no line breaks; Spark splits the text once
            every = F.split(F.lit("\n".join(map(str, keys))), "\n")
        return (F.array_position(every, F.col(columns.FILE)) - 1).cast("int")


def _number(uri: str) -> int:
    """The checksum of a URI, as Spark's `crc32` has it."""
    return crc32(uri.encode())


def refuse_unplain(candidates: Iterable[Candidate]) -> None:
    """Refuse files whose rows cannot be told from those of others.

    Spark reports a file by its plain path: rows of `a/../b` would be those of no file.
    """
    for candidate in candidates:
        if _is_unplain(candidate.path):
            raise UnsupportedTableError(
                f"The table's metadata names the file {candidate.path}: a path with '.' or '..' in "
                "it may lead to another table's folder. icefloe changes no rows of such a file, "
                "and reads it only where no deletes apply, '_file' is not asked for and no other "
                "path names the same file. Compact the table with the engine that wrote it."
            )


def refuse_second_names(candidates: Sequence[Candidate]) -> None:
    """Refuse to read a file under two names at once: Spark would give its rows once."""
    if any(_is_unplain(candidate.path) for candidate in candidates):
        plain = {normpath(spark_uri(candidate.path)) for candidate in candidates}
        if len(plain) < len(candidates):
            refuse_unplain(candidates)


def _is_unplain(location: str) -> bool:
    return "/." in location and not {".", ".."}.isdisjoint(location.split("/"))


# -------------------------------------------------------------------------------------------------
# Rows to the tasks of their files: each file has a task of its own, while there are not too many.

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
