"""The data files that a condition needs, each with the delete files that apply to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyiceberg.transforms import IdentityTransform

from icefloe.errors import UnsupportedTableError
from icefloe.indexes.lookup import IndexAnswer, look_up
from icefloe.metadata.files import DeleteIndex, LiveFile, SnapshotFiles, unpartitioned_specs
from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import TableState
from icefloe.pruning.comparisons import FilePredicate
from icefloe.pruning.file_matcher import FileMatcher, Matcher
from icefloe.redaction import masked_repr


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file that may hold rows a condition is TRUE for, and its delete files."""

    live: LiveFile
    position_deletes: tuple[LiveFile, ...] = ()
    equality_deletes: tuple[LiveFile, ...] = ()
    covered: bool = False  # the condition is provably TRUE for every row
    lacks_identity_columns: bool = False  # values of a partition column may be in metadata only
    answer: IndexAnswer | None = None  # what the table's indexes say; None: nothing

    @property
    def path(self) -> str:
        """The data file's location."""
        return self.live.path

    @property
    def has_deletes(self) -> bool:
        """Whether any row of the file may be deleted already."""
        return bool(self.position_deletes or self.equality_deletes)


@masked_repr
@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A data file that provably holds no row of interest, and what proves it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The files of one snapshot, divided by whether a condition needs them."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[SkippedFile, ...]
    files_in_skipped_manifests: int
    manifests_read: int
    manifests_cached: int
    manifests_skipped: int
    files: SnapshotFiles
    notes: tuple[str, ...] = ()  # on the use of indexes, for people

    @property
    def files_skipped(self) -> int:
        """Data files that are not read."""
        return len(self.skipped) + self.files_in_skipped_manifests


def plan_files(state: TableState, lowered: FilePredicate) -> FilePlan:
    """Select the files that may hold rows the condition is TRUE for; never too few.

    Of the files that partitions and bounds do not rule out, the table's indexes rule out more.
    """
    matcher = FileMatcher(lowered, state.schema, state.metadata.specs())
    return _narrowed_by_indexes(state, lowered, choose_files(state, matcher))


def _narrowed_by_indexes(state: TableState, lowered: FilePredicate, plan: FilePlan) -> FilePlan:
    asked = [candidate.live for candidate in plan.candidates if not candidate.covered]
    lookup = look_up(state, lowered.inclusive, asked)
    if not lookup.indexes:
        return plan
    answers = lookup.answers
    candidates: list[Candidate] = []
    skipped = list(plan.skipped)
    for candidate in plan.candidates:
        answer = answers.get(candidate.path)
        if answer is not None and not answer.positions:
            skipped.append(SkippedFile(candidate.path, f"index {', '.join(answer.indexes)}"))
        else:
            candidates.append(replace(candidate, answer=answer))
    return replace(plan, candidates=tuple(candidates), skipped=tuple(skipped), notes=lookup.notes)


def choose_files(
    state: TableState, matcher: Matcher, snapshot_files: SnapshotFiles | None = None
) -> FilePlan:
    """Select the files that a matcher does not rule out; manifests are read once.

    `snapshot_files` are all files of the snapshot, if they have been read already.
    """
    files = snapshot_files or read_snapshot_files(state.io, state.snapshot, matcher)
    deletes = DeleteIndex.of(files.deletes, unpartitioned_specs(state.metadata))
    identity = _identity_sources(state)
    candidates: list[Candidate] = []
    skipped: list[SkippedFile] = []
    for live in files.data:
        reason = matcher.why_not(live.file, live.spec_id)
        if reason is not None:
            skipped.append(SkippedFile(live.path, reason))
            continue
        _refuse_unreadable(live)
        counts = live.file.value_counts or {}
        candidates.append(
            Candidate(
                live,
                deletes.position_deletes(live),
                deletes.equality_deletes(live),
                matcher.matches_every_row(live.file, live.spec_id),
                any(source not in counts for source in identity[live.spec_id]),
            )
        )
    return FilePlan(
        tuple(candidates),
        tuple(skipped),
        files.files_in_skipped_manifests,
        files.manifests_read,
        files.manifests_cached,
        files.manifests_skipped,
        files,
    )


def narrowed(plan: FilePlan, matcher: Matcher) -> FilePlan:
    """The same plan without the candidates that `matcher` rules out."""
    candidates: list[Candidate] = []
    skipped = list(plan.skipped)
    for candidate in plan.candidates:
        reason = matcher.why_not(candidate.live.file, candidate.live.spec_id)
        if reason is None:
            candidates.append(candidate)
        else:
            skipped.append(SkippedFile(candidate.path, reason))
    return replace(plan, candidates=tuple(candidates), skipped=tuple(skipped))


def _identity_sources(state: TableState) -> dict[int, tuple[int, ...]]:
    """The columns of the read schema that each spec has identity transforms of."""
    field_ids = set(state.schema.field_ids)
    return {
        spec_id: tuple(
            field.source_id
            for field in spec.fields
            if isinstance(field.transform, IdentityTransform) and field.source_id in field_ids
        )
        for spec_id, spec in state.metadata.specs().items()
    }


def _refuse_unreadable(live: LiveFile) -> None:
    if not live.is_parquet:
        raise UnsupportedTableError(
            f"Data file {live.path} is {live.file.file_format}; icefloe reads and writes only "
            "Parquet. Rewrite the table as Parquet with the engine that wrote it."
        )
    name = live.path.rpartition("/")[2]
    if name.startswith(("_", ".")):
        raise UnsupportedTableError(
            f"Data file {live.path} has a name that Spark treats as hidden and does not read. "
            "Rewrite the file under another name."
        )
