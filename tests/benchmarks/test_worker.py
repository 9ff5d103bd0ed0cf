"""The state of a peer's table between statements, and a whole run without Spark."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from benchmarks import peer_runs, run, worker
from benchmarks.digest import Digest
from benchmarks.measure import MeasuredProcess, StatementUsage, TooSlowError, measure
from benchmarks.peers import PEERS
from benchmarks.statements import STATEMENTS, BoundStatement, Kind, Placement, Statement
from benchmarks.table_state import Repetitions, TableState, WarmUps

BY_NAME = {statement.name: statement for statement in STATEMENTS}
BEFORE = [
    BoundStatement(Statement(f"before-{n}", Kind.DELETE, 0.1, Placement.SPREAD), 1, Digest())
    for n in range(50)
]


class RecordingPeer:
    """Records the calls; every statement writes a file."""

    def __init__(self, folder):
        self.table_folder = folder
        self.calls = []
        self.live = None
        (folder / "first.parquet").touch()
        (folder / "metadata").mkdir()

    def run(self, bound):
        self.calls.append(bound.statement.name)
        for name in (f"{len(self.calls)}.parquet", f"metadata/{len(self.calls)}.json"):
            (self.table_folder / name).touch()

    def restore(self):
        self.calls.append("restore")

    def live_files(self):
        return self.live


class Silent:
    def send(self, event, **facts):
        pass


@pytest.fixture
def peer(tmp_path):
    return RecordingPeer(tmp_path)


@pytest.fixture
def state(peer):
    return TableState(peer, BEFORE, Silent())


def test_a_state_is_built_upon_the_one_before(state, peer):
    state.bring_to(BY_NAME["scan-after-1"])
    state.bring_to(BY_NAME["scan-part-after-1"])
    state.bring_to(BY_NAME["scan-after-10"])

    assert peer.calls == [f"before-{n}" for n in range(10)]


def test_an_earlier_state_is_reached_from_the_initial_table(state, peer):
    state.bring_to(BY_NAME["scan-after-10"])
    peer.calls.clear()

    state.bring_to(BY_NAME["scan-after-1"])
    state.bring_to(BY_NAME["delete-1-spread"])

    assert peer.calls == ["restore", "before-0", "restore"]


def test_restoring_removes_data_files_but_keeps_metadata(state, peer):
    state.bring_to(BY_NAME["scan-after-1"])

    state.restore()

    left = {str(p.relative_to(peer.table_folder)) for p in peer.table_folder.rglob("*.*")}
    assert left == {"first.parquet", "metadata/1.json"}


def files_of(peer):
    return {str(p.relative_to(peer.table_folder)) for p in peer.table_folder.rglob("*.parquet")}


def test_unused_files_of_an_earlier_statement_are_deleted(state, peer):
    peer.live = frozenset({"10.parquet"})

    state.bring_to(BY_NAME["scan-after-10"])

    assert files_of(peer) == {"first.parquet", "10.parquet"}


def test_files_are_not_deleted_when_the_peer_lists_none(state, peer):
    state.bring_to(BY_NAME["scan-after-1"])

    assert files_of(peer) == {"first.parquet", "1.parquet"}


@pytest.mark.parametrize(("most", "most_s", "expected"), [(3, 60, 3), (3, 0.0, 0), (0, 60, 0)])
def test_warm_ups_are_limited_by_number_and_time(most, most_s, expected, peer):
    warm_ups = WarmUps(most, most_s)
    bound = BoundStatement(BY_NAME["delete-1-spread"], 1, Digest())

    while warm_ups.due(bound.statement):
        warm_ups.run(peer, bound)

    assert warm_ups.done(BY_NAME["delete-10-clustered"]) == expected == len(peer.calls)
    assert warm_ups.done(BY_NAME["scan-after-1"]) == 0


@pytest.mark.parametrize(
    ("peer", "requested", "expected"),
    [("icefloe-mor", 5, 5), ("iceberg-cow", 5, 5), ("deltars", 5, 1), ("sail-mor", 0, 0)],
)
def test_only_what_runs_on_a_jvm_is_warmed_up_more_than_once(peer, requested, expected):
    assert PEERS[peer].warm_ups(requested) == expected


def test_a_slow_kind_is_not_warmed_up_again(peer, monkeypatch):
    clock = iter(range(0, 1000, 40))
    monkeypatch.setattr("benchmarks.table_state.time.perf_counter", lambda: next(clock))
    warm_ups = WarmUps(5, 60)
    bound = BoundStatement(BY_NAME["update-1-spread"], 1, Digest())

    while warm_ups.due(bound.statement):
        warm_ups.run(peer, bound)

    assert warm_ups.done(bound.statement) == 2


@pytest.mark.parametrize("peer", ["deltars", pytest.param("pyiceberg", marks=pytest.mark.slow)])
def test_a_run_with_a_peer_that_needs_no_spark(peer, tmp_path):
    output = tmp_path / "result.json"
    names = ["delete-1-spread", "update-all-1-spread", "merge-upsert-1-spread", "scan-after-10"]
    options = f"--rows 8000 --peers {peer} --repetitions 1 --warm-ups 1 --output {output}"

    python = f"{peer}={sys.executable}"  # the peer's own environment may not exist

    status = run.main([*options.split(), "--python", python, "--statements", *names])

    summary = json.loads(output.read_text())
    (peer_summary,) = summary["peers"]
    results = peer_summary["results"]
    assert status == 0
    assert [r["statement"] for r in results] == names
    assert {(r["status"], r["warm_ups"]) for r in results} == {("ok", 1)}
    assert results[3]["bytes_written"] == 0
    assert [s["name"] for s in summary["statements"]] == names
    assert summary["command"].startswith(f"python -m benchmarks.run --rows 8000 --peers {peer}")
    assert str(tmp_path) not in output.read_text()
    raw = json.loads((tmp_path / "raw" / "result.json").read_text())
    assert len(raw["peers"][0]["results"][0]["runs"]) == 1


def test_goals_select_the_statements_that_have_them(tmp_path, capsys):
    output = tmp_path / "result.json"
    options = f"--rows 800 --peers sail-cow --python sail-cow={tmp_path}/none --statements goals"

    status = run.main([*options.split(), "--output", str(output)])

    summary = json.loads(output.read_text())
    assert status == 0
    assert summary["peers"][0]["status"] == "left out"
    assert "make .venv-sail/.installed" in summary["peers"][0]["reason"]
    assert {s["name"] for s in summary["statements"]} == {
        "delete-1-spread",
        "delete-1-clustered",
        "update-1-spread",
        "update-10-spread",
        "merge-upsert-1-spread",
        "merge-upsert-1-clustered",
        "scan-after-10",
        "scan-part-after-10",
    }


@pytest.mark.parametrize("error", [ConnectionRefusedError, RuntimeError])
@pytest.mark.parametrize("lost_in", ["warm-up", "run"])
def test_a_peer_that_lost_its_jvm_gets_a_new_process(lost_in, error, peer, state, monkeypatch):
    """Every further statement would fail, so the worker exits.

    Some peers raise their own error in the statement, but not when the table is restored.
    """

    def run_without(_bound):
        raise error

    def restore_without():
        raise ConnectionRefusedError

    monkeypatch.setattr(peer, "run", run_without)
    monkeypatch.setattr(peer, "restore", restore_without)
    monkeypatch.setattr(peer, "reason_to_leave_out", lambda _bound: None, raising=False)
    parent = worker.Parent(io.StringIO(), io.StringIO("go\n" * 9))
    bound = BoundStatement(BY_NAME["delete-1-spread"], 1, Digest())
    warm_ups, repetitions = WarmUps(1, 30), Repetitions(1, None)

    with pytest.raises(ConnectionRefusedError):
        if lost_in == "warm-up":
            worker._warm_up_once(state, [bound], warm_ups, parent)
        else:
            worker._run_statement(state, bound, repetitions, warm_ups, parent)


@pytest.mark.parametrize(
    ("most", "most_s", "seconds", "expected"),
    [
        (3, None, [9, 9, 9, 9], 3),
        (3, 10, [9, 9, 9], 2),
        (3, 10, [30, 1], 1),
        (1, 10, [1, 1], 1),
        (3, 0, [1, 1], 1),
    ],
)
def test_repetitions_are_limited_by_number_and_time(most, most_s, seconds, expected):
    repetitions = Repetitions(most, most_s)
    runs = []
    while repetitions.due(runs):
        runs.append({"seconds": seconds[len(runs)]})
    assert len(runs) == expected


@pytest.mark.parametrize("peer", ["deltars", "pyiceberg"])
@pytest.mark.parametrize(("before", "left_out"), [(10, False), (50, True)])
def test_peers_that_only_rewrite_leave_out_scans_after_fifty_statements(
    peer, before, left_out, tmp_path
):
    bound = BoundStatement(BY_NAME[f"scan-after-{before}"], 8000, Digest())
    reason = PEERS[peer].make(tmp_path).reason_to_leave_out(bound)
    assert bool(reason) == left_out


def test_a_process_that_sends_nothing_for_too_long_is_killed(tmp_path):
    events = []
    code = 'import sys, time; print(\'{"event": "here"}\', flush=True); time.sleep(60)'
    process = measure(
        [sys.executable, "-c", code],
        folder=tmp_path,
        environment=os.environ,
        silence_s=3,
        show=events.append,
    )
    assert events == [{"event": "here"}]
    assert process.too_slow
    assert "longer than 3 s" in process.failure


@pytest.mark.parametrize(("peer", "status"), [("deltars", "left out"), ("icefloe-mor", "failed")])
def test_a_statement_that_takes_too_long_is_stopped_and_larger_ones_are_left_out(
    peer, status, tmp_path, monkeypatch
):
    """The others run in a new process; for icefloe, taking too long is a failure."""
    names = ["merge-upsert-1-spread", "merge-upsert-1-clustered", "merge-upsert-50-spread"]
    table = {"event": "table", "data_files": 8}
    done = {"event": "result", "statement": names[1], "status": "ok"}
    usage = StatementUsage()
    processes = iter(
        [
            MeasuredProcess((table,), usage, 0.0, str(TooSlowError("slow")), too_slow=True),
            MeasuredProcess((table, done), usage, 0.0),
        ]
    )
    started_with = []
    monkeypatch.setattr(
        peer_runs,
        "_measure",
        lambda _name, _run, statements: started_with.append(statements) or next(processes),
    )
    bound = tuple(BoundStatement(BY_NAME[name], 1, Digest()) for name in names)
    pythons = {peer: sys.executable}  # the peer's own environment may not exist
    job = peer_runs.Run(tmp_path, (), bound, (), 1, None, 0, 0.0, 240, pythons, "1g", False)

    results = peer_runs.run_peer(peer, job)["results"]

    assert {r["statement"]: r["status"] for r in results} == {
        names[0]: status,
        names[1]: "ok",
        names[2]: "left out",
    }
    assert "longer than 240 s" in results[0]["reason"]
    assert names[0] in results[1]["reason"]
    assert [[b.statement.name for b in left] for left in started_with] == [names, names[1:2]]
