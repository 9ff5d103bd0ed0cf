"""Folders of files that belong to the partition of another file."""

from __future__ import annotations

from icefloe.metadata.files import LiveFile
from icefloe.metadata.manifests import schema_for_spec
from icefloe.metadata.state import TableState
from icefloe.schemas.partition_values import partition_path


def partition_folder(state: TableState, file: LiveFile) -> str:
    """The folder of a file's partition below the data folder; empty when it has none."""
    spec = state.metadata.specs()[file.spec_id]
    if spec.is_unpartitioned():
        return ""
    return partition_path(file.file.partition, spec, schema_for_spec(state.metadata, spec))


def rewritten_folder(state: TableState, file: LiveFile) -> str:
    """Where a file goes that replaces another: beside it, if that is below the data folder.

    Elsewhere nothing is written: what a failed statement leaves is looked for in that folder.
    """
    beside = file.path.rpartition("/")[0]
    if f"{beside}/".startswith(f"{state.data_location}/"):
        return beside
    return f"{state.data_location}/{partition_folder(state, file)}".rstrip("/")
