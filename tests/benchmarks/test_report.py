"""Goals, tables and plots made from results."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks import plots, report
from benchmarks.goals import GOALS, findings, statements_of_goals
from benchmarks.peers import PEERS
from benchmarks.statements import STATEMENTS

SVG = "{http://www.w3.org/2000/svg}"


def document(seconds, *, size="wide", rows=2_000_000, columns=40, statements=("update-1-spread",)):
    """A result: `seconds` by peer and statement; a text instead is why there are none."""
    chosen = [s for s in STATEMENTS if s.name in statements]
    return {
        "name": size,
        "date": "2026-11-15T12:00:00+00:00",
        "commit": "abc",
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "memory_bytes": 2**34,
            "system": "Linux",
            "python": "3.11",
        },
        "size": {"name": size, "rows": rows, "columns": columns, "files": 8, "seed": 1},
        "repetitions": 2,
        "warm_ups": 1,
        "warm_up_seconds": 60.0,
        "statements": [
            {
                "statement": {
                    "name": s.name,
                    "kind": str(s.kind),
                    "fraction": s.fraction,
                    "placement": str(s.placement),
                    "merge": {"title": s.merge.title} if s.merge else None,
                    "all_columns": s.all_columns,
                    "statements_before": s.statements_before,
                }
            }
            for s in chosen
        ],
        "peers": [
            {
                "name": peer,
                "status": "ok",
                "data_files": 8,
                "data_bytes": 2**30,
                "load_average_before": 0.1,
                "versions": {"itself": "1"},
                "results": [result(name, value) for name, value in found.items()],
            }
            for peer, found in seconds.items()
        ],
    }


def result(statement, value):
    if isinstance(value, str):
        return {"statement": statement, "status": "failed", "reason": value}
    run = {"seconds": value, "bytes_written": 2**20, "io": {"read_chars": 3 * 2**20}}
    memory = {"driver": 2**20, "jvm": 0, "workers": 0, "total": 2**20}
    return {
        "statement": statement,
        "status": "ok",
        "best_seconds": value,
        "runs": [run],
        "memory_peak": memory,
    }


def verdicts(found):
    return {(f.statement, f.peer): (f.measured, f.verdict) for f in findings(found)}


def test_goals_name_statements_and_peers_that_there_are():
    names = {statement.name for statement in STATEMENTS}
    assert statements_of_goals() <= names
    assert {goal.ours for goal in GOALS} | {p for goal in GOALS for p, _ in goal.peers} <= {*PEERS}


def test_a_goal_is_met_missed_or_not_measured():
    found = document(
        {
            "icefloe-cow": {"update-1-spread": 2.0, "update-10-spread": 2.0},
            "iceberg-cow": {"update-1-spread": 20.0, "update-10-spread": "out of memory"},
            "deltars": {"update-1-spread": 5.9, "update-10-spread": 6.0},
        },
        statements=("update-1-spread", "update-10-spread"),
    )

    assert verdicts(found) == {
        ("update-1-spread", "iceberg-cow"): (10.0, "met"),
        ("update-1-spread", "deltars"): (2.95, "**missed**"),
        ("update-10-spread", "iceberg-cow"): (None, "not measured"),
        ("update-10-spread", "deltars"): (3.0, "met"),
        ("update-1-spread", "iceberg-mor"): (None, "not measured"),
        ("update-10-spread", "iceberg-mor"): (None, "not measured"),
    }


@pytest.mark.parametrize(
    ("size", "rows", "columns", "ratios"),
    [
        ("wide", 2_000_000, 40, {"iceberg-cow": 10, "deltars": 3}),
        ("wide-gb", 3_360_000, 60, {"iceberg-cow": 10, "deltars": 3}),
        ("narrow", 4_000_000, 4, {"iceberg-cow": 2.5}),
        ("narrow-gb", 35_200_000, 8, {"iceberg-cow": 2.5}),
        ("narrow", 800_000, 4, {}),
        ("tiny", 40_000, 4, {}),
    ],
)
def test_which_goals_count_depends_on_the_size(size, rows, columns, ratios):
    found = document({}, size=size, rows=rows, columns=columns)

    told = {f.peer: f.at_least for f in findings(found) if f.goal.ours == "icefloe-cow"}

    assert told == ratios


def test_the_report_shows_missed_goals_plainly(tmp_path, capsys):
    path = tmp_path / "wide.json"
    found = document({"icefloe-cow": {"update-1-spread": 2.0}, "deltars": {"update-1-spread": 4.0}})
    path.write_text(json.dumps(found))

    assert report.main([str(path)]) == 0

    told = capsys.readouterr().out
    assert "0 met, 1 missed, 2 not measured." in told
    assert "| update 1 %, spread | deltars | 3× | 2.00× | **missed** |" in told
    assert "| update 1 %, spread | iceberg-cow | 10× | – | not measured |" in told
    assert "best of 2 after 1 untimed run of each kind (no further one after 60 s of them)" in told
    assert "](images/benchmark-wide-update.svg)" in told
    for fact in ("commit abc", "2 cores (a processor), 16 GiB", "itself 1", "4.00 (2.00×)"):
        assert fact in told


def test_a_plot_has_a_bar_for_each_time_and_says_what_is_missing(tmp_path):
    found = document(
        {
            "icefloe-cow": {"delete-1-spread": 0.5, "delete-1-clustered": 0.1},
            "deltars": {"delete-1-spread": 5.0, "delete-1-clustered": "it <broke>"},
        },
        statements=("delete-1-spread", "delete-1-clustered"),
    )
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(found))

    assert plots.main(["--into", str(tmp_path / "images"), str(path)]) == 0

    (image,) = (tmp_path / "images").iterdir()
    assert image.name == "benchmark-wide-delete.svg"
    drawn = ElementTree.fromstring(image.read_text())
    texts = [element.text.replace("\u00a0", " ") for element in drawn.iter(f"{SVG}text")]
    for text in ("delete 1 %, spread", "delete 1 %, in one file", "0.50", "0.10", "5.00"):
        assert text in texts
    assert "deltars failed" in texts
    widths = [float(r.get("width")) for r in drawn.iter(f"{SVG}rect") if r.get("x") == "270"]
    assert len(widths) == 3
    assert max(widths) == widths[1]
    assert plots.plot(found, "delete") == image.read_text()


def test_a_peer_that_all_statements_leave_out_is_not_in_the_plot():
    found = document({"icefloe-mor": {"scan-after-1": 1.0}}, statements=("scan-after-1",))
    left_out = {"statement": "scan-after-1", "status": "left out", "reason": "no deletes"}
    found["peers"].append({"name": "sail-cow", "status": "ok", "results": [left_out]})
    found["peers"].append({"name": "sail-mor", "status": "failed", "reason": "no table"})

    drawn = plots.plot(found, "scan")

    assert "icefloe-mor" in drawn
    assert "sail" not in drawn


def test_equal_ratios_are_equal_distances():
    axis = plots.Axis(0.1, 100)

    assert axis.x(1) - axis.x(0.1) == pytest.approx(axis.x(100) - axis.x(10))
    assert [*axis.ticks()] == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100])


def test_large_merges_have_no_plots(tmp_path):
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"kind": "large-merge", "name": "large"}))

    assert plots.main(["--into", str(tmp_path), str(path)]) == 0

    assert [*tmp_path.glob("*.svg")] == []
