"""Summaries of results, and the goals, tables and plots made from them."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks import docs_page, plots, report
from benchmarks.goals import GOALS, findings, statements_of_goals
from benchmarks.peers import PEERS
from benchmarks.statements import STATEMENTS
from benchmarks.summary import RESULTS, save, summarize, to_text

SVG = "{http://www.w3.org/2000/svg}"


def document(seconds, *, size="wide", rows=2_000_000, columns=40, statements=("update-1-spread",)):
    """A summary: `seconds` by peer and statement; a text instead is why there are none."""
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
            {"name": s.name, "kind": str(s.kind), "title": s.title}
            for s in STATEMENTS
            if s.name in statements
        ],
        "peers": [
            {
                "name": peer,
                "status": "ok",
                "data_files": 8,
                "data_bytes": 2**30,
                "load_average_before": 0.1,
                "versions": {"itself": "1"},
                "results": [result(name, value) for name, value in by_statement.items()],
            }
            for peer, by_statement in seconds.items()
        ],
    }


def result(statement, value):
    if isinstance(value, str):
        return {"statement": statement, "status": "failed", "reason": value}
    return {
        "statement": statement,
        "status": "ok",
        "best_seconds": value,
        "bytes_written": 2**20,
        "bytes_read": 3 * 2**20,
        "memory_peak": {"driver": 2**20, "jvm": 0, "workers": 0, "total": 2**20},
    }


def verdicts(summary):
    return {(f.statement, f.peer): (f.measured, f.verdict) for f in findings(summary)}


def test_goals_name_existing_statements_and_peers():
    names = {statement.name for statement in STATEMENTS}
    assert statements_of_goals() <= names
    assert {goal.ours for goal in GOALS} | {p for goal in GOALS for p, _ in goal.peers} <= {*PEERS}


def test_a_goal_is_met_missed_or_not_measured():
    summary = document(
        {
            "icefloe-cow": {"update-1-spread": 2.0, "update-10-spread": 2.0},
            "iceberg-cow": {"update-1-spread": 20.0, "update-10-spread": "out of memory"},
            "deltars": {"update-1-spread": 5.9, "update-10-spread": 6.0},
        },
        statements=("update-1-spread", "update-10-spread"),
    )

    assert verdicts(summary) == {
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
    summary = document({}, size=size, rows=rows, columns=columns)

    goals = {f.peer: f.at_least for f in findings(summary) if f.goal.ours == "icefloe-cow"}

    assert goals == ratios


def test_the_report_shows_missed_goals_plainly(tmp_path):
    path = tmp_path / "wide.json"
    seconds = {"icefloe-cow": {"update-1-spread": 2.0}, "deltars": {"update-1-spread": 4.0}}
    path.write_text(json.dumps(document(seconds)))

    assert report.main(["--into", str(tmp_path), str(path)]) == 0

    text = (tmp_path / "report.md").read_text()
    assert "0 met, 1 missed, 2 not measured." in text
    assert "| update 1 %, spread | deltars | 3× | 2.00× | **missed** |" in text
    assert "| update 1 %, spread | iceberg-cow | 10× | – | not measured |" in text
    assert "best of 2 after 1 untimed run of each kind (no more after 60 s)" in text
    assert "](plots/wide-update.svg)" in text
    for fact in ("commit abc", "2 cores (a processor), 16 GiB", "itself 1", "4.00 (2.00×)"):
        assert fact in text


def test_a_plot_has_a_bar_for_each_time_and_says_what_is_missing(tmp_path):
    summary = document(
        {
            "icefloe-cow": {"delete-1-spread": 0.5, "delete-1-clustered": 0.1},
            "deltars": {"delete-1-spread": 5.0, "delete-1-clustered": "it <broke>"},
        },
        statements=("delete-1-spread", "delete-1-clustered"),
    )
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(summary))

    assert report.main(["--into", str(tmp_path), str(path)]) == 0

    (image,) = (tmp_path / "plots").iterdir()
    assert image.name == "wide-delete.svg"
    drawn = ElementTree.fromstring(image.read_text())
    texts = [element.text.replace("\u00a0", " ") for element in drawn.iter(f"{SVG}text")]
    for text in ("delete 1 %, spread", "delete 1 %, in one file", "0.50", "0.10", "5.00"):
        assert text in texts
    assert "deltars failed" in texts
    widths = [float(r.get("width")) for r in drawn.iter(f"{SVG}rect") if r.get("x") == "270"]
    assert len(widths) == 3
    assert max(widths) == widths[1]


def test_a_peer_that_all_statements_leave_out_is_not_in_the_plot():
    summary = document({"icefloe-mor": {"scan-after-1": 1.0}}, statements=("scan-after-1",))
    left_out = {"statement": "scan-after-1", "status": "left out", "reason": "no deletes"}
    summary["peers"].append({"name": "sail-cow", "status": "ok", "results": [left_out]})
    summary["peers"].append({"name": "sail-mor", "status": "failed", "reason": "no table"})

    drawn = plots.plots_of(summary)["scan"]

    assert "icefloe-mor" in drawn
    assert "sail" not in drawn


def test_equal_ratios_are_equal_distances():
    axis = plots.Axis(0.1, 100)

    assert axis.x(1) - axis.x(0.1) == pytest.approx(axis.x(100) - axis.x(10))
    assert [*axis.ticks()] == pytest.approx([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100])


def test_a_large_merge_has_a_row_and_no_plots(tmp_path):
    path = RESULTS / "large_merge-mor-local.json"

    assert report.main(["--into", str(tmp_path), str(path)]) == 0

    assert "| large_merge-mor-local | 20,000,000 |" in (tmp_path / "report.md").read_text()
    assert [*(tmp_path / "plots").iterdir()] == []


MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 2**34, "system": "Linux"}
FACTS = {"date": "2026-11-15", "commit": "abc", "machine": MACHINE, "command": "python -m x"}


def samples(*seconds, failure=None, mib=1):
    return {
        "seconds": list(seconds),
        "cpu_seconds": [2 * each for each in seconds],
        "bytes_read": [mib * 2**20 for _ in seconds],
        "failure": failure,
    }


def test_many_files_have_seconds_growth_and_the_ratio_to_icebergs_runtime(tmp_path):
    small = {
        "scan, files": {"icefloe": {"100": samples(9, 2)}, "iceberg": {"100": samples(4, 3)}},
        "append, files": {"icefloe": {"100": samples(1)}, "iceberg": {"100": samples(2)}},
    }
    large = {
        "scan, files": {
            "icefloe": {"10000": samples(9, 4, 5, mib=3)},
            "iceberg": {"10000": samples(9, 6)},
        },
        "append, files": {
            "icefloe": {"10000": samples(3)},
            "iceberg": {"10000": samples(failure="out of memory")},
        },
    }
    held = {"10000": {"read": 10, "cached": 10, "skipped": 2}}
    for name, results, manifests in (("a", small, {}), ("b", large, held)):
        document = {"kind": "scale", **FACTS, "manifests": manifests, "results": results}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))

    assert report.main(["--into", str(tmp_path), *map(str, sorted(tmp_path.glob("*.json")))]) == 0

    text = (tmp_path / "report.md").read_text()
    first = "| scan | icefloe | 2.00 (9.00); 11.00; 1.0 | 4.00 (9.00); 10.00; 3.0 |"
    assert f"{first} 2.0×; 0.9×; 3.0× | 1.50× |" in text
    assert (
        "| append | Iceberg's runtime | 2.00 (2.00); 4.00; 1.0 | failed: out of memory | – |"
        in text
    )
    assert "12 manifests, 2 skipped by partition, 0 read, 10 held since an earlier" in text


def test_cold_starts_have_medians_of_seconds_and_of_processor_seconds(tmp_path):
    runs = [
        {"size": "wide", "engine": engine, "statement": "scan", "seconds": s, "cpu_seconds": s / 2}
        for engine, seconds in (("icefloe", [3, 9, 4]), ("deltars", [1]))
        for s in seconds
    ]
    path = tmp_path / "wide.json"
    path.write_text(json.dumps({"kind": "cold", **FACTS, "runs": runs}))

    assert report.main(["--into", str(tmp_path), str(path)]) == 0

    text = (tmp_path / "report.md").read_text()
    assert "| table | first statement | icefloe | deltars |" in text
    assert "| wide | scan | 4.00 (2.00) | 1.00 (0.50) |" in text


def test_the_report_and_the_docs_page_are_those_of_the_results(tmp_path):
    committed = RESULTS.parent
    docs = committed.parent / "docs"
    (tmp_path / "benchmarks.md").write_text((docs / "benchmarks.md").read_text())

    assert report.main(["--into", str(tmp_path)]) == 0
    assert docs_page.main(["--docs", str(tmp_path)]) == 0

    plot_names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert plot_names == {path.name for path in (committed / "plots").iterdir()}
    for written, page in [
        (tmp_path / "report.md", committed / "report.md"),
        (tmp_path / "benchmarks.md", docs / "benchmarks.md"),
        *((image, docs / "images" / image.name) for image in (tmp_path / "images").iterdir()),
        *((tmp_path / "plots" / name, committed / "plots" / name) for name in plot_names),
    ]:
        assert written.read_text() == page.read_text(), f"{page.name}: run make bench-report"


def test_the_table_of_the_docs_page_marks_the_fastest_of_each_mode():
    peers = {
        "icefloe-cow": {"delete-1-spread": 2.0},
        "iceberg-cow": {"delete-1-spread": "out of memory"},
        "deltars": {"delete-1-spread": 1.0, "scan-after-10": 0.5},
        "icefloe-mor": {"delete-1-spread": 0.2, "scan-after-10": 1.0},
        "iceberg-mor": {"delete-1-spread": 0.3, "scan-after-10": 0.7},
    }
    run = document(peers, statements=("delete-1-spread", "scan-after-10"))

    table = docs_page.table({"wide": run})

    assert "| delete 1 %, spread | 2.00 | – | **1.00** | **0.20** | 0.30 |" in table
    assert "| – | – | **0.50** | 1.00 | 0.70 |" in table


def test_a_docs_page_without_markers_is_an_error():
    with pytest.raises(ValueError, match="must have the lines"):
        docs_page.with_table("# Benchmarks", {})


def test_a_summary_has_no_repetitions_and_the_first_line_of_a_reason(tmp_path):
    run = {"seconds": 2.0, "bytes_written": 10, "files_written": 1, "metadata_bytes_written": 5}
    memory = {"total": 7}
    done = {"statement": "a", "status": "ok", "warm_ups": 1, "runs": [run, {**run, "seconds": 4.0}]}
    done |= {"memory_at_start": memory, "memory_peak": memory}
    lost = {"statement": "b", "status": "failed", "reason": "it ended\nTraceback"}
    facts = {"load_average_before": 0.1, "setup_seconds": 1.0, "data_files": 8, "data_bytes": 9}
    peer = {"name": "deltars", "status": "ok", **facts, "versions": {}, "results": [done, lost]}
    raw = {"name": "tiny", "peers": [peer]}

    save(tmp_path / "tiny.json", summarize(raw, ()), raw)

    summary = json.loads((tmp_path / "tiny.json").read_text())
    assert summary["peers"][0]["results"] == [
        {
            "statement": "a",
            "status": "ok",
            "best_seconds": 2.0,
            "median_seconds": 3.0,
            "repetitions": 2,
            "warm_ups": 1,
            "bytes_written": 10,
            "files_written": 1,
            "metadata_bytes_written": 5,
            "bytes_read": None,
            "memory_at_start": memory,
            "memory_peak": memory,
        },
        {"statement": "b", "status": "failed", "reason": "it ended"},
    ]
    assert json.loads((tmp_path / "raw" / "tiny.json").read_text()) == raw


COMMITTED = [path for path in sorted(RESULTS.rglob("*.json")) if path.parent.name != "raw"]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_are_compact(path):
    text = path.read_text()

    assert text == to_text(json.loads(text))
    assert len(text.splitlines()) < 400
