"""The catalog: load a table, stage a commit, swap the pointer, and find out what came of it.

Failures are classed by outcome: provably not published, provably published, or unknown.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from icefloe.commit.handover import InlineHandover, LostRaceError
from icefloe.errors import (
    CommitStateUnknownError,
    ConflictError,
    StorageError,
    TableNotFoundError,
    UnsupportedTableError,
)
from icefloe.inline.database import cause_of
from icefloe.metadata.rest_catalog import is_refused, is_refused_for_now, is_unavailable
from icefloe.metadata.table_state import (
    MetadataUpdates,
    TableState,
    delete_old_metadata,
    is_of_metadata_file,
)
from icefloe.redaction import scrubbed
from icefloe.settings import RetryPolicy

T = TypeVar("T")


class CatalogBusyError(LostRaceError):
    """The catalog provably did not take a commit, and may take it later."""


class CatalogUnavailableError(LostRaceError):
    """The catalog has not applied a commit, but may still do so.

    The commit may be repeated: only one of several can be applied, because all of them add the same
    snapshot to the same head. Their files must not be deleted.
    """

    def __init__(self, doubt: CommitStateUnknownError) -> None:
        super().__init__(str(doubt))
        self.doubt = doubt


def with_retries(
    attempt: Callable[[int], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> T:
    """Call `attempt` (with its number, from 1) until it returns or the policy is used up.

    Only `LostRaceError` is retried; every other exception reaches the caller at once. Waits are
    shortened by chance, up to half, so that writers that lost together do not meet again.
    """
    started = clock()
    for number in range(policy.retries + 1):
        try:
            return attempt(number + 1)
        except LostRaceError:
            wait = policy.wait_s(number)
            if number == policy.retries or clock() - started + wait > policy.total_s:
                raise
            sleep(wait * (1 - chance() / 2))
    raise AssertionError("unreachable")


# -------------------------------------------------------------------------------------------------
# Ask the catalog to move a branch, and find out what came of it.

_LOADING_MODE = "snapshot-loading-mode"


def refuse_partial_history(catalog: Catalog) -> None:
    """Refuse a catalog that returns only some of the snapshots.

    Idempotency keys would not be found, concurrent commits would not be seen, and a commit that
    landed could be taken for one that did not.
    """
    mode = str(catalog.properties.get(_LOADING_MODE, "all"))
    if mode.lower() != "all":
        raise UnsupportedTableError(
            f"The catalog {catalog.name!r} returns the snapshots of branches and tags only "
            f"({_LOADING_MODE} = {mode}). Commits and maintenance need the whole history. Connect "
            f"with {_LOADING_MODE} = all."
        )


def load_table(catalog: Catalog, name: str, uuid: UUID | None = None) -> IcebergTable:
    """The table as it is now; a busy catalog counts as a lost race.

    With `uuid`, another table that has taken the name is refused: names are reused, uuids are not.
    """
    with reading_catalog(f"read {name}"):
        try:
            table = catalog.load_table(name)
        except NoSuchTableError as missing:
            raise TableNotFoundError(f"Table {name} no longer exists.") from missing
        except OperationalError as busy:
            if "database is locked" in str(busy):
                raise LostRaceError(str(busy)) from busy
            raise
    refuse_other_table(table.metadata, name, uuid)
    return table


@contextmanager
def reading_catalog(what: str) -> Iterator[None]:
    """Ask a catalog without changing it; `what` is for errors: of its database, or of a file."""
    try:
        with scrubbed():
            yield
    except SQLAlchemyError as error:
        raise StorageError(f"The catalog failed to {what}: {cause_of(error)}.") from error
    except (OSError, RESTError) as error:
        raise StorageError(f"The catalog failed to {what}: {error}") from error


@contextmanager
def changing_catalog(
    catalog: Catalog, what: str, has_landed: Callable[[], bool | None]
) -> Iterator[None]:
    """Ask a catalog for a change that is no commit of a table, and find out what came of it.

    Args:
        catalog: The catalog.
        what: The change, for errors.
        has_landed: Looks whether the catalog has made the change; None if that does not show.
    """
    try:
        with scrubbed():
            yield
    except (SQLAlchemyError, OSError, RESTError) as error:
        landed = _look(catalog, has_landed)
        if landed:
            return
        cause = f"The catalog failed to {what}: {cause_of(error)}."
        refused = is_refused(error) or is_refused_for_now(error)
        if refused or _is_of_change(error) or (landed is False and _is_over(error)):
            raise StorageError(f"{cause} Nothing was changed.") from error
        raise CommitStateUnknownError(
            f"{cause} It may have done so. Look before running it again."
        ) from error


def drop_from_catalog(catalog: Catalog, name: str, uuid: UUID | None) -> None:
    """Drop a table; `uuid` is its own, as far as that is known."""

    def is_gone() -> bool | None:
        try:
            metadata = catalog.load_table(name).metadata
        except NoSuchTableError:
            return True
        return None if uuid is None else metadata.table_uuid != uuid

    with changing_catalog(catalog, f"drop {name}", is_gone):
        catalog.drop_table(name)


def rename_in_catalog(catalog: Catalog, old: str, new: str, uuid: UUID | None) -> None:
    """Rename a table; `uuid` is its own, as far as that is known."""

    def is_renamed() -> bool | None:
        try:
            return uuid is not None and catalog.load_table(new).metadata.table_uuid == uuid
        except NoSuchTableError:
            return False

    with changing_catalog(catalog, f"rename {old} to {new}", is_renamed):
        catalog.rename_table(old, new)


def _look(catalog: Catalog, has_landed: Callable[[], bool | None]) -> bool | None:
    try:
        _roll_back(catalog)
        return has_landed()
    except Exception:  # noqa: BLE001 - the catalog does not answer
        return None


def _roll_back(catalog: Catalog) -> None:
    """End transactions whose COMMIT failed.

    SQLAlchemy's sessions leave them open in connections of the pool, where what they have not
    committed would be taken for committed.
    """
    if not isinstance(catalog, SqlCatalog):
        return
    engine = catalog.engine
    if isinstance(engine.pool, QueuePool):
        engine.dispose()  # of connections that nobody uses
        return
    with engine.begin() as connection:  # a database in memory has one
        connection.rollback()


def _is_of_change(error: Exception) -> bool:
    """Whether the statement failed that makes the change, so that the database rolls it back."""
    statement = error.statement if isinstance(error, DBAPIError) else None
    return statement is not None and not statement.lstrip().upper().startswith("SELECT")


def _is_over(error: Exception) -> bool:
    """Whether a change that is not there cannot be made later, by a COMMIT under way."""
    if isinstance(error, OSError):
        return is_of_metadata_file(error)
    if not isinstance(error, DBAPIError):
        return False
    return error.statement is not None or isinstance(error.orig, sqlite3.Error)


def refuse_other_table(metadata: TableMetadata, name: str, uuid: UUID | None) -> None:
    """Refuse a table that is not the one that was read under this name before."""
    if uuid is not None and metadata.table_uuid != uuid:
        raise TableNotFoundError(
            f"{name} is another table now (uuid {metadata.table_uuid}): the one that was read "
            f"before (uuid {uuid}) was dropped or renamed."
        )


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A change of a table's metadata, ready to be published by one swap of the pointer."""

    table: IcebergTable
    head: TableState
    snapshot_id: int
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


def stage(
    table: IcebergTable,
    head: TableState,
    snapshot: Snapshot,
    metadata_updates: MetadataUpdates | None = None,
) -> StagedCommit:
    """Move the branch to the snapshot, together with other updates; nothing is published yet.

    The table must still be as `head` has it when the pointer is swapped.
    """
    ref = head.metadata.refs.get(head.branch)
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref=head.branch, snapshot_id=ref.snapshot_id if ref else None),
        AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
        *(metadata_updates.requirements if metadata_updates else ()),
    )
    updates = (
        *(metadata_updates.updates if metadata_updates else ()),
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name=head.branch,
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot.snapshot_id,
            max_ref_age_ms=ref.max_ref_age_ms if ref else None,
            max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
            min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
        ),
    )
    return StagedCommit(table, head, snapshot.snapshot_id, requirements, updates)


def swap(catalog: Catalog, staged: StagedCommit, inline: InlineHandover | None = None) -> None:
    """Ask the catalog to publish a staged commit, together with changes of inline rows.

    Raises LostRaceError, ConflictError or StorageError when it provably was not published,
    CatalogUnavailableError where that may be repeated and is unknown, and CommitStateUnknownError
    where the outcome is unknown.
    """
    if inline is None or inline.tier.shares_database:
        _swap(catalog, staged, inline)
        return
    inline.announce(staged.snapshot_id)
    announced = replace(staged, updates=(*staged.updates, *inline.updates))
    try:
        _swap(catalog, announced, None)
    except CatalogUnavailableError as unavailable:  # others may not change the rows until it shows
        raise unavailable.doubt from unavailable
    except (LostRaceError, ConflictError, StorageError):  # provably not published
        inline.withdraw(staged.snapshot_id)
        raise
    inline.conclude(staged.snapshot_id)


def _swap(catalog: Catalog, staged: StagedCommit, inline: InlineHandover | None) -> None:
    """Ask the catalog, and find out what came of it."""
    head, snapshot_id = staged.head, staged.snapshot_id
    try:
        metadata = _publish(catalog, staged, inline)
    except (LostRaceError, ConflictError):
        raise
    except StorageError:  # of the inline tier's database, before COMMIT
        raise
    except BaseException as error:  # noqa: BLE001 - Ctrl-C too leaves a commit that may land
        settle(
            catalog,
            head.name,
            staged.table.metadata.table_uuid,
            lambda metadata: metadata.snapshot_by_id(snapshot_id) is not None,
            unknown(head.name, snapshot_id, error),
            error,
        )
        return
    delete_old_metadata(head.io, head.metadata, metadata)


def _publish(
    catalog: Catalog, staged: StagedCommit, inline: InlineHandover | None
) -> TableMetadata:
    commit = staged.table, staged.requirements, staged.updates
    if inline is not None and isinstance(catalog, MetastoreCatalog):
        return inline.publish_with(catalog, *commit)
    return catalog.commit_table(*commit).metadata


def settle(
    catalog: Catalog,
    name: str,
    uuid: UUID,
    landed_in: Callable[[TableMetadata], bool],
    doubt: CommitStateUnknownError,
    error: BaseException,
) -> None:
    """Find out what came of a commit that ended in an error.

    Returns when it landed: a client that retries by itself, for example, is refused because of its
    own first request. Raises LostRaceError or StorageError when it provably did not land,
    CatalogUnavailableError when it did not land and may be repeated, and `doubt` where the outcome
    is unknown.
    """
    landed = _has_landed(catalog, name, uuid, landed_in)
    if landed and isinstance(error, Exception):
        return
    if is_refused_for_now(error):
        raise CatalogBusyError(str(error)) from error
    if is_unavailable(error):
        raise CatalogUnavailableError(doubt) from error
    if is_refused(error):
        raise StorageError(f"The catalog refused a commit of {name}: {error}") from error
    if landed is None or not isinstance(error, Exception):  # Ctrl-C: it may still land
        raise doubt from error
    if isinstance(error, CommitFailedException) or _is_lost_race(error):
        raise LostRaceError(str(error)) from error
    if isinstance(error, OSError) and is_of_metadata_file(error):
        # The catalog was not asked yet.
        raise StorageError(f"Cannot write the metadata of {name}: {error}") from error
    raise doubt from error


def unknown(name: str, snapshot_id: int, error: BaseException) -> CommitStateUnknownError:
    """The error for a commit whose outcome is unknown."""
    return CommitStateUnknownError(
        f"{name}: the catalog did not confirm whether snapshot {snapshot_id} was published "
        f"({error!r}). No file was deleted. Check whether the table's history has that snapshot "
        "before running the statement again."
    )


def commit_with_retries(base: TableState, attempt: Callable[[int], T]) -> T:
    """Attempt to commit as the table's retry policy says; a ConflictError after the last.

    Once an attempt may land later, no failure of another one proves that nothing was published.
    """
    doubts: list[CommitStateUnknownError] = []

    def noted(number: int) -> T:
        try:
            return attempt(number)
        except CatalogUnavailableError as unavailable:
            doubts.append(unavailable.doubt)
            raise

    attempts = base.settings.retry.retries + 1
    try:
        return with_retries(noted, base.settings.retry)
    except Exception as error:
        if doubts and not isinstance(error, CommitStateUnknownError):
            raise doubts[-1] from error
        if isinstance(error, CatalogBusyError):
            raise StorageError(
                f"The catalog did not take a commit of {base.name} in {attempts} attempts: "
                f"{error}. Nothing was published."
            ) from error
        if isinstance(error, LostRaceError):
            raise ConflictError(
                f"commit failed after {attempts} attempts because of concurrent commits",
                table=base.name,
                base_snapshot_id=base.snapshot_id,
                current_snapshot_id=None,
            ) from error
        raise


def _is_lost_race(error: Exception) -> bool:
    if isinstance(error, CommitStateUnknownException):
        return False
    # Another branch took the sequence number; PyIceberg raises a plain ValueError.
    if isinstance(error, ValueError) and "older than last sequence number" in str(error):
        return True
    return isinstance(error, OperationalError) and "database is locked" in str(error)


def _has_landed(
    catalog: Catalog, name: str, uuid: UUID, landed_in: Callable[[TableMetadata], bool]
) -> bool | None:
    """Whether the table has the commit; None when that cannot be determined.

    Another table of that name, or none, proves nothing: the table may have been renamed since.
    """
    try:
        _roll_back(catalog)
        metadata = catalog.load_table(name).metadata
        return landed_in(metadata) if metadata.table_uuid == uuid else None
    except BaseException:  # noqa: BLE001 - the catalog does not answer, or Ctrl-C
        return None
