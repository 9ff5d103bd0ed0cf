"""Folders of files that belong to the partition of another file."""

from __future__ import annotations

from urllib.parse import unquote

from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import schema_for_spec
from icefloe.metadata.table_state import TableState
from icefloe.schema.partition_values import partition_path


def partition_folder(state: TableState, file: LiveFile) -> str:
    """The folder of a file's partition below the data folder; empty when it has none."""
    spec = state.metadata.specs()[file.spec_id]
    if spec.is_unpartitioned():
        return ""
    return partition_path(file.file.partition, spec, schema_for_spec(state.metadata, spec))


def rewritten_folder(state: TableState, file: LiveFile) -> str:
    """Where a file goes that replaces another: beside it, if that is below the data folder.

    Elsewhere nothing is written: what a failed statement leaves is looked for in that folder, and
    a manifest may name any path, `data/../../other` included.
    """
    beside = file.path.rpartition("/")[0]
    if beside == state.data_location:
        return beside
    prefix = f"{state.data_location}/"
    if beside.startswith(prefix) and _is_plain(beside.removeprefix(prefix)):
        return beside
    return f"{state.data_location}/{partition_folder(state, file)}".rstrip("/")


def _is_plain(relative: str) -> bool:
    """Whether a folder cannot lead out of the one above it, percent-encoded or not."""
    parts = unquote(relative).split("/")
    return not {"", ".", ".."} & set(parts) and not {"?", "#"} & set(relative)
