"""Take snapshots and refs out of a table's metadata, if the table is still as it was judged."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pydantic import Field
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from icefloe.commit.catalog import settle
from icefloe.errors import CommitStateUnknownError
from icefloe.metadata.table_state import remove_old_metadata


class SameHistory(ValidatableTableRequirement):
    """No branch, tag or snapshot came, went or moved: a new tag may keep what is about to go.

    Catalogs that check requirements in this process know it; a REST server does not.
    """

    type: Literal["icefloe-same-history"] = Field(default="icefloe-same-history")
    refs: dict[str, int]
    snapshots: set[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Raise CommitFailedException when the table's history is another."""
        if (
            base_metadata is None
            or _refs(base_metadata) != self.refs
            or _snapshots(base_metadata) != self.snapshots
        ):
            raise CommitFailedException("Requirement failed: the table's history has changed")


def remove_snapshots(
    catalog: Catalog,
    name: str,
    table: IcebergTable,
    snapshots: Collection[int],
    refs: Collection[str],
) -> None:
    """Publish metadata without these snapshots and refs; no file is deleted.

    Raises LostRaceError or StorageError when it surely did not happen, and
    CommitStateUnknownError where nobody can tell.
    """
    metadata = table.metadata
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
    requirements += [
        AssertRefSnapshotId(ref=ref, snapshot_id=found) for ref, found in _refs(metadata).items()
    ]
    if isinstance(catalog, MetastoreCatalog):
        same = SameHistory(refs=_refs(metadata), snapshots=_snapshots(metadata))
        requirements.append(same)  # type: ignore[arg-type]
    updates = removal_updates(metadata, snapshots, refs)
    try:
        answer = catalog.commit_table(table, tuple(requirements), updates)
    except BaseException as error:  # noqa: BLE001 - Ctrl-C too leaves a commit that may land
        settle(
            catalog,
            name,
            metadata.table_uuid,
            lambda now: _lacks(now, snapshots, refs),
            CommitStateUnknownError(
                f"{name}: the catalog did not say whether {len(snapshots)} snapshots were expired "
                f"({error!r}). No file was deleted. Run expire_snapshots again; files that it then "
                "does not find are removed by remove_orphans."
            ),
            error,
        )
        return
    remove_old_metadata(catalog, table.io, metadata, answer.metadata)


def removal_updates(
    metadata: TableMetadata, snapshots: Collection[int], refs: Collection[str]
) -> tuple[TableUpdate, ...]:
    """What takes snapshots and refs out of metadata, their statistics included."""
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=ref) for ref in refs]
    updates += [
        RemovePartitionStatisticsUpdate(snapshot_id=file.snapshot_id)
        for file in metadata.partition_statistics
        if file.snapshot_id in snapshots
    ]
    if snapshots:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=list(snapshots)))
    return tuple(updates)


def _refs(metadata: TableMetadata) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in metadata.refs.items()}


def _snapshots(metadata: TableMetadata) -> set[int]:
    return {snapshot.snapshot_id for snapshot in metadata.snapshots}


def _lacks(metadata: TableMetadata, snapshots: Collection[int], refs: Collection[str]) -> bool:
    gone = _snapshots(metadata).isdisjoint(snapshots)
    return gone and set(metadata.refs).isdisjoint(refs)
