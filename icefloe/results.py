"""What statements and maintenance calls return: measured counts, as in the snapshot summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from icefloe.display import ShownAsTable
from icefloe.redaction import masked_repr

SUMMARY_PREFIX = "icefloe."
FLUSH = "flush"  # the operation that moves inline rows to files, in results and summaries
INLINE_MODE = "inline"  # the mode of statements that changed inline rows alone


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Rows by what happened to them, and how their bytes were written; counts add up."""

    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_copied: int = 0
    bytes_copied: int = 0  # copy-on-write: taken over as bytes
    bytes_encoded: int = 0  # copy-on-write: encoded again
    row_groups_copied: int = 0  # taken over as bytes, with every column

    def __add__(self, other: RowCounts) -> RowCounts:
        names = [counter.name for counter in fields(RowCounts)]
        return RowCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})


@masked_repr
@dataclass(frozen=True)
class DmlResult(ShownAsTable, RowCounts):
    """What one statement did. Every number is measured.

    Attributes:
        operation: `"update"`, `"delete"`, `"merge"`, `"append"` and so on.
        mode: the mode that ran; `"inline"` if only the inline tier changed.
        snapshot_id: None when nothing had to change, in which case no snapshot was made.
        rows_inserted: new rows.
        rows_updated: rows with new values.
        rows_deleted: rows that are no longer in the table.
        rows_copied: rows carried unchanged into new files.
        data_files_added: new data files.
        data_files_removed: data files that left the table.
        delete_files_added: new delete files.
        delete_files_removed: delete files that left the table.
        files_scanned: data files that were read.
        files_skipped: data files that were ruled out.
        bytes_written: bytes of new data and delete files.
        bytes_copied: bytes of them that a rewrite copied.
        bytes_encoded: bytes of new data files that a rewrite encoded.
        row_groups_copied: row groups that were copied with every column.
        dpp_applied: MERGE: whether partitions were skipped by the source's values.
        dpp_partition_count: MERGE: partitions that the source has rows for.
        clauses: MERGE: rows that each clause applied to, in clause order.
        attempts: attempts to commit; 1 when no other writer committed in between.
        duration_s: seconds from the call to the result.

    Examples:
        >>> result = orders.delete().where("n >= 20").execute()
        >>> result.operation, result.rows_deleted, result.attempts
        ('delete', 2, 1)
    """

    operation: str
    mode: str | None = None
    snapshot_id: int | None = None
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    files_scanned: int = 0
    files_skipped: int = 0
    bytes_written: int = 0
    dpp_applied: bool = False
    dpp_partition_count: int = 0
    attempts: int = 0
    duration_s: float = 0.0
    clauses: tuple[int, ...] = ()  # MERGE: rows that each clause applied to, in clause order

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"DmlResult({values})"

    def counting(self, counts: RowCounts) -> DmlResult:
        """The same result with these counts."""
        return replace(self, **vars(counts))

    def as_dict(self) -> dict[str, object]:
        """Every figure by name: operation, rows, files, times, then how bytes were written."""
        counters = [counter.name for counter in fields(RowCounts)]
        rows = [name for name in counters if name.startswith("rows_")]
        first = ["operation", "mode", "snapshot_id", *rows]
        last = [*(name for name in counters if name not in rows), "clauses"]
        middle = [f.name for f in fields(self) if f.name not in (*first, *last)]
        return {name: getattr(self, name) for name in (*first, *middle, *last)}

    def _figures(self) -> Mapping[str, object]:
        return self.as_dict()

    def as_json(self) -> str:
        """Every figure as JSON, which `from_json` reads."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> DmlResult:
        """The result of a text that `as_json` wrote; fields of other versions are ignored."""
        names = {field.name for field in fields(cls)}
        figures = {name: value for name, value in json.loads(text).items() if name in names}
        return cls(**{**figures, "clauses": tuple(figures.get("clauses", ()))})

    @property
    def total_affected(self) -> int:
        """Rows inserted, updated and deleted."""
        return self.rows_inserted + self.rows_updated + self.rows_deleted

    @property
    def total_rows_written(self) -> int:
        """Rows inserted, updated and copied."""
        return self.rows_inserted + self.rows_updated + self.rows_copied

    @property
    def write_amplification(self) -> float:
        """Rows written for each row changed; 1.0 when nothing was copied."""
        return self.total_rows_written / max(1, self.total_affected)

    def as_summary(self) -> dict[str, str]:
        """The counts as snapshot summary entries, under `icefloe.` and Spark's own names."""
        counts = {
            f"{SUMMARY_PREFIX}{name.replace('_', '-')}": str(getattr(self, name))
            for name in _SUMMARISED
            if getattr(self, name) is not None
        }
        if self.clauses:
            counts[f"{SUMMARY_PREFIX}clauses"] = ",".join(map(str, self.clauses))
        return {**counts, **self._as_spark_summary()}

    def _as_spark_summary(self) -> dict[str, str]:
        """The same counts under the keys that Iceberg's Spark runtime writes."""
        counts = {
            "append": {"insert.num-inserted-rows": self.rows_inserted},
            "overwrite": {"insert.num-inserted-rows": self.rows_inserted},
            "overwrite_partitions": {"insert.num-inserted-rows": self.rows_inserted},
            "update": {
                "update.num-updated-rows": self.rows_updated,
                "update.num-copied-rows": self.rows_copied,
            },
            "delete": {
                "delete.num-deleted-rows": self.rows_deleted,
                "delete.num-copied-rows": self.rows_copied,
            },
        }
        return {f"spark.{k}": str(v) for k, v in counts.get(self.operation, {}).items()}

    @classmethod
    def from_summary(cls, summary: Mapping[str, str], snapshot_id: int) -> DmlResult:
        """The result of an earlier statement, read back from its snapshot's summary."""
        kinds = {f.name: f.type for f in fields(cls)}
        values: dict[str, object] = {"snapshot_id": snapshot_id}
        for name in _SUMMARISED:
            text = summary.get(f"{SUMMARY_PREFIX}{name.replace('_', '-')}")
            if text is not None:
                values[name] = _READ.get(str(kinds[name]), str)(text)
        if clauses := summary.get(f"{SUMMARY_PREFIX}clauses"):
            values["clauses"] = tuple(map(int, clauses.split(",")))
        return cls(**values)  # type: ignore[arg-type]


@masked_repr
@dataclass(frozen=True)
class ExpireResult(ShownAsTable):
    """What expiring the history of a table did.

    `files_failed` could not be deleted; nothing refers to them any more, so `remove_orphans` finds
    them. `files_kept` were left on purpose: they are outside the table's folders, or may be files
    that another table or a remaining snapshot needs.
    """

    snapshots_expired: tuple[int, ...] = ()
    snapshots_kept: int = 0
    refs_removed: tuple[str, ...] = ()
    data_files_deleted: int = 0
    delete_files_deleted: int = 0
    manifests_deleted: int = 0
    manifest_lists_deleted: int = 0
    statistics_files_deleted: int = 0
    bytes_deleted: int = 0
    files_failed: tuple[str, ...] = ()
    files_kept: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def files_deleted(self) -> int:
        """Files of every kind."""
        return (
            self.data_files_deleted
            + self.delete_files_deleted
            + self.manifests_deleted
            + self.manifest_lists_deleted
            + self.statistics_files_deleted
        )


@masked_repr
@dataclass(frozen=True)
class OrphansResult(ShownAsTable):
    """Files that nothing refers to; deleted, unless it was a dry run."""

    dry_run: bool
    files: tuple[str, ...] = ()
    bytes: int = 0
    files_deleted: int = 0
    bytes_deleted: int = 0
    files_failed: tuple[str, ...] = ()
    files_listed: int = 0
    files_too_young: int = 0  # nothing refers to them, but a writer may be about to
    files_unrecognised: int = 0  # outside the table's location, named as no Iceberg writer does
    inline_tables: tuple[str, ...] = ()  # dropped ones whose inline rows were left in the database
    # Files in S3 that were begun and never completed; None without boto3, which sees them.
    uploads: tuple[str, ...] | None = ()
    uploads_aborted: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True)
class RewriteManifestsResult(ShownAsTable):
    """What rewriting the manifests did; `snapshot_id` is None when they were well laid out."""

    snapshot_id: int | None = None
    manifests_before: int = 0
    manifests_after: int = 0
    manifests_removed: int = 0
    manifests_added: int = 0
    entries_rewritten: int = 0
    bytes_written: int = 0
    attempts: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True)
class IndexResult(ShownAsTable):
    """What building an index did: its coverage of the table's data files, new and old.

    Files that it does not cover are read as if there were no index.

    Examples:
        >>> built = orders.create_index("by_id", "btree", ["id"])
        >>> built.files_covered == built.files
        True
    """

    name: str
    kind: str
    files: int = 0
    files_covered: int = 0
    files_skipped: Mapping[str, str] = field(default_factory=dict)  # why, by location
    rows: int = 0  # of the covered files
    bytes: int = 0  # of the sidecars
    duration_s: float = 0.0


_NOT_SUMMARISED = frozenset({"snapshot_id", "attempts", "duration_s", "clauses"})
_SUMMARISED = tuple(f.name for f in fields(DmlResult) if f.name not in _NOT_SUMMARISED)
_READ: Mapping[str, Callable[[str], object]] = {"int": int, "bool": lambda text: text == "True"}
