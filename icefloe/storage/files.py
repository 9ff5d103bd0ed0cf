"""Where files are: one location as PyIceberg, PyArrow and Spark spell it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icefloe.errors import RESTORE, StorageError, UnsupportedTableError
from icefloe.parquet.footer import DamagedFileError, EncryptedFileError

log = logging.getLogger("icefloe")

# What Java's URI leaves unquoted in a path; Spark spells `_metadata.file_path` that way.
_QUOTED = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=/@\u0080-\U0010ffff]")
_DELETE_THREADS = 16


@dataclass(frozen=True)
class FileLocation:
    """A location as a PyArrow file system and a path in it; both can be sent to workers."""

    filesystem: FileSystem
    path: str


def locate(io: FileIO, location: str) -> FileLocation:
    """The file system and path of a location, by the catalog's own storage properties."""
    arrow = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    scheme, netloc, path = arrow.parse_location(location, io.properties)
    return FileLocation(arrow.fs_by_scheme(scheme, netloc), path)


def spark_location(location: str) -> str:
    """A location as Spark is asked for it: `s3a` for `s3`, `file` where no scheme is given."""
    if "://" not in location and not location.startswith("file:"):
        return f"file://{location}"
    scheme, rest = location.split(":", 1)
    return f"s3a:{rest}" if scheme in ("s3", "s3n") else location


def spark_uri(location: str) -> str:
    """A location as `_metadata.file_path` spells it, for comparing with what Spark reads."""
    scheme, rest = spark_location(location).split(":", 1)
    authority = ""
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
        rest = f"/{path}"
    path = re.sub(r"/+", "/", rest)
    quoted = _QUOTED.sub(lambda m: "".join(f"%{b:02X}" for b in m[0].encode()), path)
    return f"{scheme}://{authority}{quoted}" if authority else f"{scheme}:{quoted}"


def remove_files(io: FileIO, locations: list[str]) -> None:
    """Delete files that nothing refers to; one that cannot be deleted is left for orphan removal.

    Runs after another error, which a failing clean-up must not hide.
    """

    def remove(location: str) -> None:
        try:
            io.delete(location)
        except Exception:  # noqa: BLE001 - the first error is the one that matters
            return

    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        list(pool.map(remove, locations))


def delete_each(io: FileIO, locations: Sequence[str]) -> list[str]:
    """Delete files that nothing refers to; the ones that could not be, and are still there."""

    def failed(location: str) -> bool:
        try:
            io.delete(location)
        except FileNotFoundError:
            return False
        except Exception as error:  # noqa: BLE001 - told by the caller, for each file
            log.warning("%s was not deleted: %s", location, error)
            return True
        return False

    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        outcomes = list(pool.map(failed, locations))
    return [location for location, left in zip(locations, outcomes, strict=True) if left]


def remove_written_by(io: FileIO, folder: str, statement_id: str) -> None:
    """Delete every file below `folder` that a failed statement wrote, by the id in its name."""
    try:
        place = locate(io, folder)
        found = place.filesystem.get_file_info(
            FileSelector(place.path, recursive=True, allow_not_found=True)
        )
        for info in found:
            if info.type == FileType.File and statement_id in info.base_name:
                place.filesystem.delete_file(info.path)
    except Exception:  # noqa: BLE001 - the first error is the one that matters
        return


@contextmanager
def naming_unreadable_file(location: str) -> Iterator[None]:
    """Turn an error in reading or decoding into one that tells the file."""
    try:
        yield
    except FileNotFoundError as missing:
        raise StorageError(f"File is missing: {location}") from missing
    except DamagedFileError as damaged:
        raise StorageError(f"{damaged}. {RESTORE}") from damaged
    except EncryptedFileError as encrypted:
        raise UnsupportedTableError(f"{encrypted}, which icefloe cannot read.") from encrypted
    except (OSError, UnicodeError, pa.ArrowException) as failed:
        raise StorageError(f"Cannot read {location}: {failed}") from failed


@contextmanager
def naming_unwritable_file(location: str) -> Iterator[None]:
    """Turn an error in writing into one that tells the file."""
    try:
        yield
    except OSError as failed:
        raise StorageError(f"Cannot write {location}: {failed}") from failed
