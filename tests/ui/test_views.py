"""Facts that the page shows, compared with what was written; no Spark."""

from __future__ import annotations

import json
import math
import shlex
import socket
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result
from pyiceberg.expressions import EqualTo
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import LongType
from typer.testing import CliRunner

from benchmarks.page import large_table
from icefloe.cli.actions import LakeOptions, show_page
from icefloe.cli.app import app
from icefloe.errors import StatementError, TableNotFoundError
from icefloe.inspection import timeline as timelines
from icefloe.inspection.file_health import MOST_TILES
from icefloe.metadata.table_state import state_of
from icefloe.ui.views import LakeViews
from support.page import orders

MB = 1_000_000


@pytest.fixture
def views(cold_lake) -> LakeViews:
    return LakeViews(cold_lake, "lake")


def facts(views: LakeViews, kind: str, *arguments: object, table: str = "shop.orders"):
    return getattr(views, kind)(table, *arguments)


def test_every_table_is_listed_and_one_that_cannot_be_read_says_why(views, catalog, tmp_path):
    orders(catalog)
    broken = orders(catalog, "shop", "broken")
    (metadata,) = tmp_path.rglob(broken.metadata_location.rpartition("/")[2])
    metadata.unlink()
    assert views.lake()["tables"] == ["shop.broken", "shop.orders"]
    first, second = views.tables()["tables"]
    assert "error" in first
    assert (second["rows"], second["data_files"]) == (4, 3)


def test_a_missing_table_is_an_error_that_names_the_others(views, catalog):
    orders(catalog)
    with pytest.raises(TableNotFoundError, match="orders"):
        views.summary("shop.other")


def test_the_summary_has_the_current_counts_and_ids_as_text(views, catalog):
    table = orders(catalog)
    summary = facts(views, "summary")
    assert (summary["rows"], summary["snapshots"], summary["partition_by"]) == (4, 2, ["region"])
    assert summary["snapshot"]["id"] == str(table.current_snapshot().snapshot_id)
    assert summary["refs"] == [
        {"name": "main", "kind": "branch", "snapshot": summary["snapshot"]["id"]}
    ]
    assert summary["problem"] is None
    assert summary["inline"] is None


def test_the_timeline_has_every_snapshot_with_its_rows(views, catalog):
    table = orders(catalog)
    table.delete(EqualTo("region", "eu"))
    first, second, third = facts(views, "timeline")["snapshots"]
    assert (first["inserted"], first["files_added"], first["total_rows"]) == (3, 2, 3)
    assert (second["inserted"], second["parent"]) == (1, first["id"])
    assert (third["deleted"], third["files_removed"], third["total_rows"]) == (1, 1, 3)
    assert third["refs"] == ["branch main"]
    assert "inserted" not in third


def test_a_snapshot_that_was_rolled_back_is_not_in_main(views, catalog):
    table = orders(catalog)
    table.manage_snapshots().set_current_snapshot(table.snapshots()[0].snapshot_id).commit()
    first, second = facts(views, "timeline")["snapshots"]
    assert (first["current"], second["current"]) == (True, False)


def test_a_compaction_of_another_engine_changes_no_row(catalog):
    state = state_of(orders(catalog), "shop.orders")
    last = state.metadata.snapshots[-1]
    summary = Summary(Operation.REPLACE, **{"added-records": "4", "deleted-records": "4"})
    replaced = last.model_copy(update={"summary": summary})
    metadata = state.metadata.model_copy(update={"snapshots": [replaced]})
    (found,) = timelines.timeline(replace(state, metadata=metadata))["snapshots"]
    assert found["copied"] == 4
    assert "inserted" not in found
    assert "deleted" not in found


@pytest.mark.parametrize("text", ["9" * 5000, "-3", "1e9", "", "4 rows"])
def test_a_count_that_is_no_number_is_left_out(catalog, text):
    state = state_of(orders(catalog), "shop.orders")
    last = state.metadata.snapshots[-1]
    summary = Summary(Operation.APPEND, **{"added-records": text, "added-data-files": "4"})
    changed = last.model_copy(update={"summary": summary})
    metadata = state.metadata.model_copy(update={"snapshots": [changed]})
    (found,) = timelines.timeline(replace(state, metadata=metadata))["snapshots"]
    assert found["files_added"] == 4
    assert "inserted" not in found


def test_of_a_long_history_the_newest_snapshots_are_shown(views, catalog, monkeypatch):
    table = orders(catalog)
    monkeypatch.setattr(timelines, "MOST_SNAPSHOTS", 1)
    found = facts(views, "timeline")
    assert found["older"] == 1
    assert [one["id"] for one in found["snapshots"]] == [str(table.current_snapshot().snapshot_id)]


def test_partitions_add_up_to_the_table(views, catalog):
    table = orders(catalog)
    found = facts(views, "files", None)
    size = sum(table.inspect.files()["file_size_in_bytes"].to_pylist())
    assert found["total"]["bytes"] == size == sum(one["bytes"] for one in found["partitions"])
    by_label = {
        one["label"]: (one["files"], one["rows"], one["short"]) for one in found["partitions"]
    }
    assert by_label == {"region=us": (2, 3, "us"), "region=eu": (1, 1, "eu")}
    assert sum(step["files"] for step in found["histogram"]) == 3
    assert found["total"]["small"] == 3
    inside = facts(views, "files", "region=us")
    assert [one["rows"] for one in inside["files"]] == [2, 1]
    assert facts(views, "files", "region=none")["files"] == []


def test_a_partition_of_null_has_a_name(views, catalog):
    orders(catalog).append(pa.table({"id": [5], "region": pa.array([None], pa.string())}))
    assert "region=NULL" in {one["label"] for one in facts(views, "files", None)["partitions"]}


def test_a_table_without_a_snapshot_has_empty_facts(views, catalog):
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]))
    assert facts(views, "summary")["snapshot"] is None
    assert facts(views, "timeline") == {"snapshots": [], "older": 0}
    assert facts(views, "files", None)["total"]["files"] == 0
    assert facts(views, "opened", "id = 1")["opened"] == 0
    assert facts(views, "upkeep")["compact"]["files_in"] == 0
    assert facts(views, "expired")["files"] == 0
    assert facts(views, "overlap", "id")["lines"] == []
    assert facts(views, "columns")["columns"][0]["opened"] is None


def test_the_evolution_names_what_happened_to_each_column(views, catalog):
    table = orders(catalog)
    with table.update_schema() as update:
        update.add_column("n", LongType())
        update.rename_column("id", "key")
    with table.update_schema() as update:
        update.delete_column("n")
        update.move_first("region")
    found = facts(views, "columns")
    first, second, third = found["versions"]
    assert first["changes"] == []
    assert {"what": "added", "column": "n", "type": "bigint"} in second["changes"]
    assert {"what": "renamed", "column": "key", "from": "id"} in second["changes"]
    assert {"what": "dropped", "column": "n", "type": "bigint"} in third["changes"]
    assert {"what": "reordered", "column": "columns"} in third["changes"]
    assert (first["first_snapshot"] is None, second["first_snapshot"]) == (False, None)
    specs = facts(views, "summary")["specs"]
    assert [spec["fields"] for spec in specs] == [[], ["region"]]


def test_files_from_before_a_column_count_as_null(views, catalog):
    table = orders(catalog)
    with table.update_schema() as update:
        update.add_column("n", LongType())
    table.append(pa.table({"id": [5], "region": ["us"], "n": [1]}))
    columns = {one["name"]: one for one in facts(views, "columns")["columns"]}
    assert columns["n"]["nulls"] == pytest.approx(4 / 5)
    assert columns["id"]["nulls"] == 0


def test_a_condition_opens_the_files_that_metadata_does_not_rule_out(views, catalog):
    orders(catalog)
    found = facts(views, "opened", "region = 'us' AND id = 9")
    assert (found["files"], found["opened"]) == (3, 1)
    assert found["skipped"] == {"partition": 1, "column bounds": 1}
    assert found["understood"] is True
    covered = facts(views, "opened", "orders.region = 'eu'")
    assert (covered["opened"], covered["covered"]) == (1, 1)


@pytest.mark.parametrize("where", ["id + 1 = 2", "no_column = 1", "DROP TABLE x", "'", "", "id = "])
def test_a_condition_that_says_nothing_opens_every_file(views, catalog, where):
    orders(catalog)
    found = facts(views, "opened", where)
    assert (found["opened"], found["understood"]) == (3, False)


def test_bounds_of_a_column_are_intervals_of_files(views, catalog):
    orders(catalog)
    found = facts(views, "overlap", "id")
    assert (found["least"], found["greatest"], found["with_bounds"]) == ("1", "9", 3)
    assert [(one["lower"], one["upper"]) for one in found["lines"]] == [
        ("1", "2"),
        ("3", "3"),
        ("9", "9"),
    ]
    assert found["opened"] == pytest.approx(1 / 3)
    assert max(found["depth"]) == 1
    with pytest.raises(StatementError, match="'none' with bounds"):
        facts(views, "overlap", "none")


def test_columns_of_every_type_are_placed(views, catalog):
    catalog.create_namespace("shop")
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows = [
        pa.table(
            {
                "flag": [bool(i)],
                "number": [float(i) if i else math.nan],
                "price": pa.array([Decimal(i)], pa.decimal128(9, 2)),
                "day": [date(2026, 1, 1) + timedelta(days=i)],
                "at": pa.array([at + timedelta(hours=i)], pa.timestamp("us", "UTC")),
                "name": [f"name {i}"],
                "data": [bytes([i, 255])],
                "inside": [{"deep": i}],
                "many": [[i]],
            }
        )
        for i in range(3)
    ]
    table = catalog.create_table("shop.orders", rows[0].schema)
    for each in rows:
        table.append(each)
    columns = {one["name"]: one for one in facts(views, "columns")["columns"]}
    assert columns["many"]["type"] == "array<bigint>"
    assert "opened" not in columns["many"]
    for name in ("flag", "price", "day", "at", "name", "data"):
        found = facts(views, "overlap", name)
        assert found["with_bounds"] == 3, name
        assert all(0 <= line["from"] <= line["to"] <= 1 for line in found["lines"])
    assert facts(views, "overlap", "day")["least"] == "2026-01-01"
    assert facts(views, "overlap", "inside.deep")["with_bounds"] == 0  # PyIceberg writes none


def test_upkeep_estimates_what_maintenance_does(views, catalog):
    orders(catalog)
    found = facts(views, "upkeep")
    compact = found["compact"]
    assert (compact["files"], compact["files_in"], compact["files_after"]) == (3, 2, 2)
    assert found["expire"]["expired"] == 0
    assert found["flush"] is None
    assert found["indexes"] == []


def test_old_snapshots_would_expire_with_the_files_that_only_they_need(views, catalog):
    table = orders(catalog)
    table.delete(EqualTo("region", "us"))
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "1"})
    found = facts(views, "upkeep")["expire"]
    assert (found["snapshots"], found["expired"]) == (3, 2)
    files = facts(views, "expired")
    assert files["by_kind"]["data"] == 2
    assert files["by_kind"]["manifest list"] == 2
    assert files["bytes"] > 0


def test_a_table_whose_files_others_share_is_not_expired(views, catalog):
    with orders(catalog).transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    assert "gc.enabled" in facts(views, "upkeep")["expire"]["refused"]


def test_facts_are_computed_once_for_each_version_of_a_table(views, catalog):
    table = orders(catalog)
    before = views.view("shop.orders")
    assert facts(views, "files", None) is before.file_map
    table.append(pa.table({"id": [10], "region": ["us"]}))
    views._views["shop.orders"] = (0.0, before)  # as if a second had passed
    assert facts(views, "files", None)["total"]["files"] == 4


@pytest.mark.slow
def test_of_a_large_table_the_page_gets_aggregates(views, catalog):
    """Of 3,000 files and 1,200 snapshots; each answer is small enough to draw at once."""
    large_table(catalog, "shop.orders", files=3000, snapshots=1200)
    found = facts(views, "files", None)
    assert (
        sum(one["files"] for one in found["partitions"])
        + (found["others"] or {"files": 0})["files"]
        == 3000
    )
    assert len(found["partitions"]) <= MOST_TILES
    assert len(facts(views, "files", "day=day 007")["files"]) <= MOST_TILES
    assert len(facts(views, "overlap", "c1")["lines"]) <= 160
    assert facts(views, "opened", "c2 = 'value 0150000'")["opened"] <= 10
    answers = {kind: facts(views, kind) for kind in ("timeline", "columns", "upkeep", "summary")}
    assert len(answers["timeline"]["snapshots"]) == 1200
    sizes = {kind: len(json.dumps(answer)) for kind, answer in answers.items()}
    assert all(size < 300 * 1200 for size in sizes.values()), sizes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LakeOptions(Path("lake"), None), ["icefloe", "compact"]),
        (
            LakeOptions(Path("my lakes/$x"), None),
            ["icefloe", "--warehouse", "my lakes/$x", "compact"],
        ),
        (LakeOptions(None, "prod"), ["icefloe", "--catalog", "prod", "compact"]),
    ],
)
def test_commands_to_copy_open_the_lake_and_take_any_name_as_a_word(
    cold_lake, catalog, options, words
):
    """Who copies a command into a shell runs nothing that a table's name says."""
    name = "shop.a$(touch pwned)'; touch pwned"
    orders(catalog, *name.split("."))
    commands = LakeViews(cold_lake, "lake", options.command).upkeep(name)["commands"]
    assert shlex.split(commands["compact"]) == [*words, name]
    assert list(commands) == ["compact", "expire", "flush"]


def invoke(folder: Path, *options: str) -> Result:
    command = ["--warehouse", str(folder), "ui", "--no-browser", *options]
    return CliRunner().invoke(app, command)


def test_the_command_says_which_package_is_missing(tmp_path, catalog, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "icefloe.ui.server", raising=False)
    done = invoke(tmp_path / "lake")
    assert done.exit_code == 1
    message = " ".join(done.stderr.split())
    assert "'uvicorn', which is not installed here: pip install 'icefloe[ui]'" in message


def test_the_command_needs_a_lake_and_a_free_port(tmp_path, catalog):
    assert "There is no lake in" in invoke(tmp_path / "none").stderr
    assert not (tmp_path / "none").exists()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoke(tmp_path / "lake", "--port", str(port))
    assert done.exit_code == 1
    assert f"Port {port} cannot be used" in done.stderr
    assert invoke(tmp_path / "lake", "--port", "99999").exit_code == 2


def test_the_browser_gets_the_token_in_a_file_of_the_user(tmp_path, catalog, monkeypatch, capsys):
    """Not in its command line, which every user of the machine can see."""
    opened: list[tuple[str, int, str]] = []

    def look(uri: str) -> None:
        file = Path(uri.removeprefix("file://"))
        opened.append((uri, file.stat().st_mode & 0o777, file.read_text()))

    def serve(lake, place, port, ready, start_spark, command):
        assert command[1:] == ("--warehouse", str(tmp_path / "lake"))
        ready("http://127.0.0.1:1/?token=secret&x")

    monkeypatch.setattr("webbrowser.open", look)
    monkeypatch.setattr("icefloe.ui.server.serve", serve)
    show_page(LakeOptions(tmp_path / "lake", None), 0, opens_browser=True)
    [(uri, mode, text)] = opened
    assert "secret" not in uri
    assert mode == 0o600
    assert 'url=http://127.0.0.1:1/?token=secret&amp;x"' in text
    assert not Path(uri.removeprefix("file://")).exists()
    assert "http://127.0.0.1:1/?token=secret&x\n" in capsys.readouterr().out
