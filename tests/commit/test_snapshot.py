"""The manifests and the operation of a new snapshot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from icefloe import errors
from icefloe.commit.snapshot import ManifestChanges, RemovedFiles, SnapshotDraft, operation_of
from icefloe.file_changes import RemoveFiles
from support.tables import data_files

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 7)]


@pytest.mark.requirement("T23")
def test_files_missing_from_the_manifests_are_counted(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    old = data_files(table)
    count = 4 if partition_by else 2
    table.overwrite(ROWS)

    draft = SnapshotDraft(table._state(), 1)
    with pytest.raises(errors.ConflictError, match=rf"{count} of {count} data files .* not found"):
        draft.manifests_after(ManifestChanges(removal=RemoveFiles(tuple(old))))


@pytest.mark.requirement("D5")
def test_the_operation_follows_the_content():
    file = SimpleNamespace(file_path="x")
    data, deletes = {"added_data": (file,)}, {"added_deletes": (file,)}
    gone = RemovedFiles(data=(file,))
    assert operation_of(ManifestChanges(**data), RemovedFiles()).value == "append"
    assert operation_of(ManifestChanges(**deletes), RemovedFiles()).value == "delete"
    assert operation_of(ManifestChanges(), gone).value == "delete"
    assert operation_of(ManifestChanges(**data, **deletes), RemovedFiles()).value == "overwrite"
    assert operation_of(ManifestChanges(**data), gone).value == "overwrite"
