"""What a REPLACE WHERE on partitions removes: files told by their partition tuples, none read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icefloe.metadata.files import PartitionKey
from icefloe.metadata.manifests import schema_for_spec
from icefloe.metadata.table_state import TableState
from icefloe.plan.plan import FileAction, Plan, PlannedFile
from icefloe.pruning.candidates import Candidate, FilePlan, SkippedFile, plan_files
from icefloe.pruning.comparisons import Lowered, any_of
from icefloe.replace.bind import PartitionPredicate, bind_predicate
from icefloe.replace.borders import refuse_between_borders, straddling
from icefloe.replace.match import Match, match_partition
from icefloe.replace.parse import parse_predicate
from icefloe.replace.translate import as_lowered
from icefloe.settings import UpdateKind
from icefloe.statements import ReplaceStatement


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The files that go, and those that stay."""

    predicates: tuple[PartitionPredicate, ...]
    lowered: Lowered
    removed: tuple[Candidate, ...]
    files: FilePlan

    @property
    def files_kept(self) -> int:
        """Live data files that are not touched."""
        return self.files.files_skipped + len(self.files.candidates) - len(self.removed)


def bind_predicates(
    statement: ReplaceStatement, state: TableState, time_zone: str
) -> tuple[PartitionPredicate, ...]:
    """The predicates of a statement, known to fit the table's partitions."""
    spec = state.metadata.spec()
    bound = []
    for replacement in statement.replacements:
        text = replacement.predicate
        tree = parse_predicate(text)
        predicate = bind_predicate(
            text, tree, state.schema, spec, table=state.name, time_zone=time_zone
        )
        refuse_between_borders(predicate, spec)
        bound.append(predicate)
    return tuple(bound)


def plan_partitions(state: TableState, predicates: tuple[PartitionPredicate, ...]) -> PartitionPlan:
    """Choose the files to remove; raises where a file may hold rows that stay besides some that go.

    Files are judged by their partition tuple, of whatever spec. Where the tuple does not tell, as
    in files of an older spec, column bounds may.
    """
    lowered = any_of([as_lowered(predicate) for predicate in predicates])
    files = plan_files(state, lowered)
    known: dict[PartitionKey, Match] = {}
    removed = []
    for candidate in files.candidates:
        key = candidate.live.partition_key
        if key not in known:
            known[key] = _match(state, predicates, candidate)
        if known[key] is Match.ALL or (known[key] is Match.SOME and candidate.covered):
            removed.append(candidate)
        elif known[key] is Match.SOME:
            raise _straddling(state, predicates, candidate)
    return PartitionPlan(predicates, lowered, tuple(removed), files)


def _match(
    state: TableState, predicates: Sequence[PartitionPredicate], candidate: Candidate
) -> Match:
    spec = state.metadata.specs()[candidate.live.spec_id]
    found = {match_partition(p, spec, candidate.live.file.partition) for p in predicates}
    if Match.ALL in found:
        return Match.ALL
    return Match.SOME if Match.SOME in found else Match.NONE


def _straddling(
    state: TableState, predicates: Sequence[PartitionPredicate], candidate: Candidate
) -> Exception:
    spec = state.metadata.specs()[candidate.live.spec_id]
    partition = candidate.live.file.partition
    text = next(p.text for p in predicates if match_partition(p, spec, partition) is Match.SOME)
    return straddling(text, spec, schema_for_spec(state.metadata, spec), partition)


def explain_partitions(
    statement: ReplaceStatement, state: TableState, planned: PartitionPlan
) -> Plan:
    """The plan for people: every file that goes is dropped by metadata."""
    options = statement.options
    gone = {candidate.path for candidate in planned.removed}
    kept = [c for c in planned.files.candidates if c.path not in gone]
    return Plan(
        operation="replace_where",
        table=state.name,
        snapshot_id=state.snapshot_id,
        mode=options.mode or state.settings.mode(UpdateKind.DELETE),
        isolation=options.isolation or state.settings.isolation(UpdateKind.DELETE),
        where=statement.text,
        assignments=(),
        files=tuple(
            PlannedFile(c.path, c.live.rows, c.live.size, FileAction.DROP, "its partition matches")
            for c in planned.removed
        ),
        skipped=(
            *planned.files.skipped,
            *(SkippedFile(c.path, "partition") for c in kept),
        ),
        files_skipped=planned.files_kept,
        manifests_read=planned.files.manifests_read,
        manifests_skipped=planned.files.manifests_skipped,
        estimated_bytes_read=0,
        estimated_bytes_written=0,
        reasons=(
            "scope partitions: whole files go by metadata, so no mode is needed",
            check_told(statement),
        ),
    )


def as_replace(plan: Plan, statement: ReplaceStatement) -> Plan:
    """The plan of the DELETE inside a REPLACE WHERE, told as the whole."""
    reasons = ("scope rows: any file may hold rows to replace", check_told(statement))
    return replace(
        plan,
        operation="replace_where",
        where=statement.text,
        reasons=(*plan.reasons, *reasons),
    )


def check_told(statement: ReplaceStatement) -> str:
    """What happens to new rows that do not satisfy the predicate."""
    if statement.options.check:
        return "new rows are checked while they are written"
    return "new rows are not checked (check=False)"
