"""Short keys that identify a row's file between the steps of a statement.

File URIs would be most of the bytes that a large MERGE shuffles.
"""

from __future__ import annotations

from collections import Counter
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
    """The files of a statement by key: a checksum of the URI, or the URI if checksums collide."""

    files: Mapping[FileKey, Candidate]
    are_numbers: bool = True

    @staticmethod
    def of(candidates: Iterable[Candidate]) -> FileKeys:
        """Keys that are unique among these files."""
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
        """SQL for the key of a row that has its file's URI."""
        key = f"crc32({columns.FILE})" if self.are_numbers else columns.FILE
        return f"{key} AS {columns.FILE}"

    def in_place_of_uris(self, rows: DataFrame) -> DataFrame:
        """The rows, with keys instead of URIs."""
        return rows.withColumn(columns.FILE, F.expr(self.expression))

    def place_among(self, candidates: Iterable[Candidate]) -> Column:
        """The index of a row's file in `candidates`; NULL for a row without a file."""
        keys = self.of_files(candidates)
        if self.are_numbers:
            all_keys = F.expr(f"array({', '.join(f'{key}L' for key in keys)})")
        else:  # a URI has no line breaks; Spark splits the text once
            all_keys = F.split(F.lit("\n".join(map(str, keys))), "\n")
        return (F.array_position(all_keys, F.col(columns.FILE)) - 1).cast("int")


def _number(uri: str) -> int:
    """The checksum of a URI, as Spark's `crc32` computes it."""
    return crc32(uri.encode())


def refuse_unplain(candidates: Iterable[Candidate]) -> None:
    """Refuse files whose rows cannot be identified.

    Spark reports a file by its normalized path, so rows of `a/../b` would belong to no file.
    """
    for candidate in candidates:
        if _is_unplain(candidate.path):
            raise UnsupportedTableError(
                f"The table's metadata names the file {candidate.path}: a path with '.' or '..' in "
                "it may lead to another table's folder. icefloe changes no rows of such a file, "
                "and reads it only if no deletes apply, '_file' is not selected and no other "
                "path names the same file. Compact the table with the engine that wrote it."
            )


def refuse_second_names(candidates: Sequence[Candidate]) -> None:
    """Refuse to read a file under two names at once: Spark would return its rows once."""
    if any(_is_unplain(candidate.path) for candidate in candidates):
        plain = {normpath(spark_uri(candidate.path)) for candidate in candidates}
        if len(plain) < len(candidates):
            refuse_unplain(candidates)


def _is_unplain(location: str) -> bool:
    return "/." in location and not {".", ".."}.isdisjoint(location.split("/"))


# -------------------------------------------------------------------------------------------------
# Distribution of rows to tasks by file

_MAX_LISTED_FILES = 64  # every row searches the list of keys for its own


def by_file(
    rows: DataFrame,
    files: Sequence[Candidate],
    keys: FileKeys,
    most: int,
    new: Sequence[str] = (),
    tasks: int = 0,
) -> DataFrame:
    """Send all rows of a file, identified by its key, to one of at most `most` tasks.

    Each file has a task of its own unless there are too many. Rows without a file are spread over
    `tasks` more tasks by the columns `new`.
    """
    partitions = max(1, min(len(files) + tasks, most))
    if len(files) > min(_MAX_LISTED_FILES, partitions):
        return rows.repartition(partitions, columns.FILE, *new)
    number = keys.place_among(files)
    if tasks:
        spread = F.pmod(F.hash(*new), F.lit(tasks)) if new else F.lit(0)
        number = F.coalesce(number, F.lit(len(files)) + spread)
    return rows.repartitionById(partitions, number)


# -------------------------------------------------------------------------------------------------
# Files that are distinguished by their size, which Spark gives each row at less cost than the path

# From this many rows on, another scan costs less than comparing each row's file by its path.
_MANY_ROWS = 1_000_000
_MOST_TURNS = 8


def turns(files: Sequence[Candidate]) -> dict[str, int]:
    """Which of several scans reads each file (by location), so that sizes distinguish its files."""
    if sum(file.live.rows for file in files) < _MANY_ROWS:
        return {file.path: 0 for file in files}
    same_size = Counter(file.live.size for file in files)
    before: Counter[int] = Counter()
    by_path = {}
    for file in files:
        size = file.live.size
        by_path[file.path] = before[size] if same_size[size] <= _MOST_TURNS else _MOST_TURNS
        before[size] += 1
    return by_path


def file_column(files: Sequence[Candidate]) -> str:
    """The column that identifies a row's file: a unique size is joined faster than a path."""
    sizes = {c.live.file.file_size_in_bytes for c in files}
    return columns.SIZE if len(sizes) == len(files) else columns.FILE
