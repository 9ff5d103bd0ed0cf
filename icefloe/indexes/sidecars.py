"""Open the sidecars of data files, and check them.

A sidecar counts only if it is of the data file, its size and its number of rows, and everything
that a look-up relies on is covered by a checksum. Anything else is an uncovered file: slower, and
never a lost row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.indexes.definitions import IndexDefinition, folder_of
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.storage.files import locate
from icefloe.tasks.sidecars import (
    CHECKSUMS,
    HEADER,
    HEADER_CHECKSUM,
    VERSION,
    batch_checksum,
    header_checksum,
    sidecar_path,
)


class DamagedSidecarError(Exception):
    """A sidecar is damaged, or not of this data file."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """An open sidecar whose header is that of a data file."""

    reader: pa.ipc.RecordBatchFileReader
    header: Mapping[str, Any]
    sections: Mapping[bytes, bytes]
    checksums: npt.NDArray[np.uint32]

    def batch(self, number: int) -> pa.RecordBatch:
        """A batch whose checksum is right; raises DamagedSidecarError."""
        batch = self.reader.get_batch(number)
        batch.validate(full=True)
        if batch_checksum(batch) != int(self.checksums[number]):
            raise DamagedSidecarError(f"the checksum of batch {number} is wrong")
        return batch


@contextmanager
def open_sidecar(
    state: TableState, definition: IndexDefinition, live: LiveFile
) -> Iterator[Sidecar]:
    """Open the sidecar of a data file.

    Raises:
        FileNotFoundError: The index does not cover the file.
        DamagedSidecarError: The sidecar cannot be used; from the block too, when it is read.
    """
    place = locate(state.io, sidecar_path(folder_of(state, definition), live.path))
    try:
        with place.filesystem.open_input_file(place.path) as source:
            yield _checked(pa.ipc.open_file(source), definition, live)
    except (FileNotFoundError, DamagedSidecarError):
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        # Decoders raise any of these on invalid bytes.
        raise DamagedSidecarError(f"{place.path}: {type(error).__name__}: {error}") from error


def _checked(
    reader: pa.ipc.RecordBatchFileReader, definition: IndexDefinition, live: LiveFile
) -> Sidecar:
    metadata = dict(reader.schema.metadata or {})
    if str(header_checksum(metadata)).encode() != metadata.get(HEADER_CHECKSUM):
        raise DamagedSidecarError("the checksum of its header is wrong")
    header = json.loads(metadata[HEADER])
    expected = {
        "v": VERSION,
        "index": definition.index_id,
        "kind": definition.kind,
        "fields": list(definition.field_ids),
        "data_file": live.path,
        "data_bytes": live.size,
        "rows": live.rows,
    }
    different = [name for name, value in expected.items() if header.get(name) != value]
    if different:
        raise DamagedSidecarError(f"it is of another file or index: {', '.join(different)}")
    checksums = np.frombuffer(metadata[CHECKSUMS], "<u4")
    if len(checksums) != reader.num_record_batches:
        raise DamagedSidecarError("it lacks batches")
    return Sidecar(reader, header, metadata, checksums)
