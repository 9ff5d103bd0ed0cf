"""Files of a table on the driver: open, create, list and delete them through its storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from io import BytesIO, UnsupportedOperation
from uuid import uuid4

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from icefloe.errors import RESTORE, StorageError, UnsupportedTableError
from icefloe.parquet.footer import DamagedFileError, EncryptedFileError
from icefloe.storage.file_io import StoreFileIO, is_s3
from icefloe.storage.filesystem import BoundedS3FileSystem, answers, delete_one, new_file
from icefloe.storage.s3 import Upload, abort_upload, delete_objects, list_uploads, with_advice

log = logging.getLogger("icefloe")

_DELETE_THREADS = 16


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A location as a PyArrow file system and a path in it; both can be sent to workers."""

    filesystem: FileSystem
    path: str


def locate(io: FileIO, location: str) -> FileLocation:
    """The file system and path of a location, by the catalog's own storage properties."""
    arrow = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    scheme, netloc, path = arrow.parse_location(location, io.properties)
    return FileLocation(arrow.fs_by_scheme(scheme, netloc), path)


# -------------------------------------------------------------------------------------------------
# Read and write


@contextmanager
def open_input(io: FileIO, location: str, size: int | None = None) -> Iterator[pa.NativeFile]:
    """Open a file for reading, at best with its size; errors of the block name it."""
    with translate_read_errors(location):
        if isinstance(io, StoreFileIO) and (source := io.open_object(location, size)) is not None:
            try:
                with pa.PythonFile(source, "r") as file:
                    yield file
            except Exception:
                io.forget(location)
                raise
            return
        file = locate(io, location)
        with file.filesystem.open_input_file(file.path) as source:
            yield source


@contextmanager
def new_stream(io: FileIO, location: str) -> Iterator[pa.NativeFile]:
    """Create a file to be written with PyArrow; errors of the block name it."""
    with translate_write_errors(location):
        file = locate(io, location)
        with new_file(file.filesystem, file.path) as sink:
            yield sink


@contextmanager
def new_output(io: FileIO, location: str) -> Iterator[OutputFile]:
    """Create a file to be written with PyIceberg, which is stored at the end of the block."""
    output = _BufferedOutput(location)
    yield output
    with new_stream(io, location) as sink:
        sink.write(output.data)


class _BufferedOutput(OutputFile):
    """A file in memory: its length is known, and an object is written with one request."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.data = b""

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise UnsupportedOperation(f"{self.location} is being written")

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - PyIceberg's
        output = self

        class Sink(BytesIO):
            def close(self) -> None:
                if not self.closed:
                    output.data = self.getvalue()
                super().close()

        return Sink()


@contextmanager
def translate_read_errors(location: str) -> Iterator[None]:
    """Turn an error of reading or decoding into one that names the file."""
    try:
        yield
    except FileNotFoundError as missing:
        raise StorageError(f"File is missing: {location}") from missing
    except DamagedFileError as damaged:
        raise StorageError(f"{damaged}. {RESTORE}") from damaged
    except EncryptedFileError as encrypted:
        raise UnsupportedTableError(f"{encrypted}, which icefloe cannot read.") from encrypted
    except (OSError, UnicodeError, pa.ArrowException) as failed:
        raise StorageError(f"Cannot read {location}: {with_advice(str(failed))}") from failed


@contextmanager
def translate_write_errors(location: str) -> Iterator[None]:
    """Turn an error of writing into one that names the file."""
    try:
        yield
    except OSError as failed:
        raise StorageError(f"Cannot write {location}: {with_advice(str(failed))}") from failed


# -------------------------------------------------------------------------------------------------
# List and delete


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a folder."""

    location: str
    relative: str  # below the folder
    file: FileLocation
    bytes: int
    modified: datetime | None


def list_files(io: FileIO, folder: str) -> list[ListedFile]:
    """Every file below a folder, which need not exist."""
    root = locate(io, folder)
    base = root.path.rstrip("/")
    with translate_read_errors(folder):
        infos: Sequence[FileInfo] = root.filesystem.get_file_info(
            FileSelector(root.path, recursive=True, allow_not_found=True)
        )
    files = []
    for info in infos:
        if info.type != FileType.File:
            continue
        if not info.path.startswith(f"{base}/"):
            raise StorageError(
                f"The listing of {folder} contains {info.path!r}, which is outside that folder. "
                "Nothing was deleted."
            )
        relative = info.path[len(base) + 1 :]
        file = FileLocation(root.filesystem, info.path)
        listed = ListedFile(f"{folder}/{relative}", relative, file, info.size or 0, info.mtime)
        files.append(listed)
    return files


def delete_files(io: FileIO, locations: Sequence[str]) -> list[str]:
    """Delete files that nothing refers to; returns those that still exist, which are logged.

    Never raises: it also runs after an error, which a failing clean-up must not hide.
    """
    in_s3 = [one for one in locations if isinstance(io, StoreFileIO) and is_s3(one)]
    others = [(one, partial(io.delete, one)) for one in locations if not in_s3 or not is_s3(one)]
    try:
        files = [ListedFile(location, "", locate(io, location), 0, None) for location in in_s3]
    except Exception as error:  # noqa: BLE001 - credentials that cannot be renewed, for example
        log.warning("%d files were not deleted, such as %s: %s", len(in_s3), in_s3[0], error)
        return [*in_s3, *_delete_each(others)]
    return delete_listed(files) + _delete_each(others)


def delete_after_failure(io: FileIO, locations: Sequence[str]) -> None:
    """Delete files of a failed statement, if their store answers at all."""
    if locations and _answers(io, locations[0]):
        delete_files(io, locations)


def _answers(io: FileIO, location: str) -> bool:
    try:
        file = locate(io, location)
    except Exception as error:  # noqa: BLE001 - as in `delete_files`
        log.warning("%s cannot be reached: %s", location, error)
        return False
    if answers(file.filesystem, file.path):
        return True
    log.warning(
        "The store of %s does not answer, so files of a failed statement may be left there. "
        "remove_orphans finds them.",
        location,
    )
    return False


def delete_listed(files: Sequence[ListedFile]) -> list[str]:
    """Delete files under the names that the listing gave; returns those that still exist."""
    batches: dict[int, list[ListedFile]] = {}
    others: list[ListedFile] = []
    for one in files:
        filesystem = one.file.filesystem
        in_batch = isinstance(filesystem, BoundedS3FileSystem) and filesystem.client is not None
        (batches.setdefault(id(filesystem), []) if in_batch else others).append(one)
    failed = []
    for batch in batches.values():
        reasons = delete_objects(batch[0].file.filesystem, [one.file.path for one in batch])
        for path, reason in reasons.items():
            log.warning("%s was not deleted: %s", path, reason)
        failed += [one.location for one in batch if one.file.path in reasons]
    return failed + _delete_each(
        [(one.location, partial(delete_one, one.file.filesystem, one.file.path)) for one in others]
    )


def delete_files_of_statement(io: FileIO, folder: str, statement_id: str) -> None:
    """Delete every file below `folder` that a failed statement wrote, by the id in its name."""
    if not _answers(io, folder):
        return
    try:
        files = list_files(io, folder)
    except Exception as error:  # noqa: BLE001 - the error of the statement matters
        log.warning("Files of statement %s were not deleted: %s", statement_id, error)
        return
    delete_listed([one for one in files if statement_id in one.relative.rpartition("/")[2]])
    uploads = uploads_below(io, folder)
    abort_uploads(io, [one for one in uploads or () if statement_id in one.key])


def uploads_below(io: FileIO, folder: str) -> list[Upload] | None:
    """Uploads of files below a folder that are not complete; None if they cannot be listed.

    Only S3 has such uploads, and boto3 is needed to see them.
    """
    filesystem = locate(io, folder).filesystem
    if not isinstance(filesystem, BoundedS3FileSystem):
        return []
    try:
        return list_uploads(filesystem, folder)
    except OSError as error:
        log.warning("The incomplete uploads in %s were not listed: %s", folder, error)
        return None


def can_list_uploads(io: FileIO, folder: str) -> bool:
    """Whether what lists uploads is installed."""
    filesystem = locate(io, folder).filesystem
    return not isinstance(filesystem, BoundedS3FileSystem) or filesystem.client is not None


def abort_uploads(io: FileIO, uploads: Sequence[Upload]) -> list[Upload]:
    """Abort uploads; returns those that were aborted, and logs the others."""
    aborted = []
    for upload in uploads:
        try:
            abort_upload(locate(io, upload.location).filesystem, upload)
        except OSError as error:
            log.warning("The upload of %s was not aborted: %s", upload.location, error)
        else:
            aborted.append(upload)
    return aborted


def _delete_each(deletions: Sequence[tuple[str, Callable[[], object]]]) -> list[str]:
    def fails(deletion: tuple[str, Callable[[], object]]) -> bool:
        location, delete = deletion
        try:
            delete()
        except FileNotFoundError:
            return False
        except Exception as error:  # noqa: BLE001 - any error leaves the file, which is returned
            log.warning("%s was not deleted: %s", location, error)
            return True
        return False

    with ThreadPoolExecutor(_DELETE_THREADS) as pool:
        failed = list(pool.map(fails, deletions))
    return [location for (location, _), left in zip(deletions, failed, strict=True) if left]


# -------------------------------------------------------------------------------------------------
# Whether a folder can be used at all

_PROBE = b"icefloe doctor"


def probe_folder(io: FileIO, folder: str) -> str:
    """Write, read, list and delete a file in a new folder below `folder`, and leave nothing there.

    Returns what it did; raises a StorageError that names the step which failed, and what it had to
    leave if that is deleting.
    """
    inside = f"{folder.rstrip('/')}/icefloe-doctor-{uuid4().hex}"
    location = f"{inside}/probe"
    try:
        with _probing("write to", folder), new_stream(io, location) as sink:
            sink.write(_PROBE)
        with _probing("read in", folder), open_input(io, location) as source:
            _expect(source.read() == _PROBE, "it has other bytes than were written")
        with _probing("list", folder):
            listed = [one.relative for one in list_files(io, inside)]
            _expect(listed == ["probe"], f"the new file is not in the listing {listed}")
        with _probing("delete in", folder):
            try:
                io.delete(location)
            except Exception as refused:
                raise StorageError(f"{refused}. {location} may be left there") from refused
            _expect(list_files(io, inside) == [], "the deleted file is still listed")
    finally:
        _remove_probe(io, inside, location)
    return "a file was written, read, listed and deleted"


@contextmanager
def _probing(what: str, folder: str) -> Iterator[None]:
    try:
        yield
    except Exception as failed:
        raise StorageError(f"Cannot {what} {folder}: {failed}") from failed


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StorageError(otherwise)


def _remove_probe(io: FileIO, inside: str, location: str) -> None:
    """Delete what is left; the step that failed says why."""
    with suppress(Exception):
        io.delete(location)
    with suppress(Exception):
        root = locate(io, inside)
        root.filesystem.delete_dir(root.path)  # of an object store: every object below it
