"""What notebooks show, and `%%lake`: SQL in cells of IPython and Jupyter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import icefloe
from icefloe import DmlResult, ExpireResult, OrphansResult
from icefloe.cli import magics
from icefloe.cli.output import plain_table
from icefloe.cli.records import Records
from icefloe.commands.plan import FileAction, Plan, PlannedFile
from icefloe.display import HtmlRows, block_html, table_html
from icefloe.pruning.candidates import SkippedFile
from icefloe.redaction import register
from icefloe.settings import Isolation, UpdateMode
from icefloe.spark import progress
from icefloe.spark.progress import CellProgress
from support.pyiceberg_tables import make, open_lake

ROOT = Path(__file__).parents[2]
SCRIPT = "<script>alert('x')</script>"


class _Cells(HTMLParser):
    """The texts of an HTML table, and the tags that it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.styles = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.styles += ";".join(value or "" for name, value in attrs if name == "style")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


# -------------------------------------------------------------------------------------------------
# What objects look like


def test_a_result_shows_what_is_not_zero():
    result = DmlResult(
        operation="update",
        mode="merge-on-read",
        snapshot_id=4711,
        rows_updated=1234,
        duration_s=0.5,
    )
    shown = _Cells(result._repr_html_())
    assert shown.texts == [
        "DmlResult",
        *("operation", "update"),
        *("mode", "merge-on-read"),
        *("snapshot_id", "4711"),
        *("rows_updated", "1,234"),
        *("duration_s", "0.5"),
    ]


def test_results_of_maintenance_show_their_files():
    expired = ExpireResult(snapshots_expired=(1, 2), snapshots_kept=3, files_kept=(SCRIPT,))
    shown = _Cells(expired._repr_html_())
    assert shown.texts[:5] == ["ExpireResult", "snapshots_expired", "1, 2", "snapshots_kept", "3"]
    assert SCRIPT in shown.texts
    many = _Cells(OrphansResult(True, files=tuple(f"f{i}" for i in range(25)))._repr_html_())
    (files,) = [text for text in many.texts if text.startswith("f0,")]
    assert files.endswith("f19 … and 5 more")


def _plan(files: int) -> Plan:
    planned = [
        PlannedFile(f"{SCRIPT}{i}", 5, 900, FileAction.DELETES, "may match") for i in range(files)
    ]
    return Plan(
        operation="delete",
        table="shop.orders",
        snapshot_id=7,
        mode=UpdateMode.MERGE_ON_READ,
        isolation=Isolation.SERIALIZABLE,
        files=tuple(planned),
        skipped=(SkippedFile("far.parquet", "region = 'eu' excludes it"),),
        files_skipped=1,
        manifests_read=1,
        manifests_cached=0,
        manifests_skipped=0,
        estimated_bytes_read=1800,
        estimated_bytes_written=0,
        reasons=("mode merge-on-read: default",),
        where="id < 5",
    )


def test_a_plan_shows_its_files():
    shown = _Cells(_plan(2)._repr_html_())
    assert shown.texts[0] == "DELETE shop.orders at snapshot 7"
    for row in (
        ["where", "id < 5"],
        ["files", "2 candidates, 1 skipped"],
        ["write deletes", f"{SCRIPT}0", "5", "900", "may match"],
    ):
        at = shown.texts.index(row[0], 1)
        assert shown.texts[at : at + len(row)] == row
    assert "region = 'eu' excludes it" in shown.texts
    assert "Files (21 of 51)" in _Cells(_plan(50)._repr_html_()).texts


def test_nothing_is_a_tag_that_is_text_and_no_colour_is_fixed():
    """A script in a value stays text; light and dark pages are both readable."""
    register({"s3.secret-access-key": "Zm4rk-secret"})
    html = [
        table_html(HtmlRows((SCRIPT,), [(SCRIPT,), (None,), ("Zm4rk-secret",)]), SCRIPT),
        block_html(SCRIPT),
        _plan(1)._repr_html_(),
        ExpireResult(files_kept=(SCRIPT,))._repr_html_(),
    ]
    for one in map(_Cells, html):
        assert "script" not in one.tags
        assert SCRIPT in "".join(one.texts)
        assert "background:transparent" in one.styles
        colours = re.findall(r"(?<!-)color:([^;]*)", one.styles)
        assert set(colours) == {"inherit"}
    assert "Zm4rk-secret" not in html[0]
    assert "NULL" in html[0]


def test_a_table_and_a_lake_show_metadata_without_spark(tmp_path):
    with open_lake(tmp_path / "lake") as lake:
        table = make(lake, "orders", 1, 2)
        shown = _Cells(table._repr_html_()).texts
        assert shown[0] == "default.orders"
        assert shown[shown.index("id") + 1] == "bigint"
        assert shown[shown.index("rows in files") + 1] == "2"
        assert shown[shown.index("snapshot") + 1] == str(table.snapshot_id)
        assert _Cells(lake._repr_html_()).texts == [
            "Lake('icefloe'): 1 table",
            "table",
            "default.orders",
        ]
        lake.drop_table("default.orders")
        assert "Table default.orders does not exist" in table._repr_html_()


# -------------------------------------------------------------------------------------------------
# %%lake


@pytest.fixture
def shell(tmp_path, monkeypatch) -> Iterator[InteractiveShell]:
    """IPython as it is in a notebook, but for the kernel."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config({"HistoryManager": {"enabled": False}})
    opened = InteractiveShell.instance(colors="nocolor", config=config)
    opened.run_cell("%load_ext icefloe").raise_error()
    yield opened
    opened.run_cell("%unload_ext icefloe").raise_error()
    InteractiveShell.clear_instance()


def failure(shell: InteractiveShell, cell: str) -> str:
    """What a cell that fails shows."""
    with capture_output() as shown:
        result = shell.run_cell(cell)
    assert result.error_in_exec is not None
    return str(shown.stdout + shown.stderr)


def test_options_and_lakes_that_are_wrong_say_so(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(icefloe.lake, "_opened", [])
    told = failure(shell, "%%lake\nSELECT 1")
    assert told.startswith(
        "StatementError: No lake is open. Open one first: lake = icefloe.connect"
    )
    assert "Traceback" not in told
    for option in ("-x 1", "-n many", "-n 0", "-o 'a b'", "-l", "somewhere"):
        told = failure(shell, f"%%lake {option}\nSELECT 1")
        assert (
            f"{option.replace(chr(39), '')!r} is not an option of %%lake. Usage: %%lake [-l" in told
        )
    assert "-l takes a variable that has a lake, and 'mine' is not defined." in failure(
        shell, "%%lake -l mine\nSELECT 1"
    )
    shell.push({"mine": 7})
    assert "'mine' is a int" in failure(shell, "%lake -l mine SELECT 1")


def test_a_table_as_text_is_not_displayed_by_rich(monkeypatch):
    """Rich displays what it prints if it finds itself in a notebook."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with capture_output() as shown:
        text = plain_table(Records(("id",), (True,), [(1,)]))
    assert text.splitlines()[1:4] == ["| id |", "|----|", "|  1 |"]
    assert (shown.outputs, shown.stdout) == ([], "")


def test_a_line_without_sql_is_the_lake(shell, tmp_path):
    with open_lake(tmp_path / "lake") as lake:
        shell.push({"mine": lake})
        assert shell.run_cell("%lake -l mine").result is lake


def test_variables_are_sources_where_the_sql_names_them_as_tables():
    rows = pd.DataFrame({"id": [1]})
    names: dict[str, Any] = {
        "rows": rows,
        "dicts": [{"id": 1}],
        "arrow": pa.table({"id": [1]}),
        "batch": pa.record_batch({"id": [1]}),
        "amount": rows,
        "number": 7,
        "empty": [],
        "text": "rows",
        "cte": rows,
    }

    def sources(text: str) -> list[str]:
        return [name for name, _ in magics._sources(text, names)]

    assert sources("SELECT amount, rows.id FROM rows, number JOIN batch") == ["batch", "rows"]
    assert sources("MERGE INTO t USING arrow AS s ON t.id = s.id WHEN MATCHED THEN DELETE") == [
        "arrow"
    ]
    assert sources(
        "MERGE INTO t USING (SELECT * FROM arrow) s ON true WHEN MATCHED THEN DELETE"
    ) == ["arrow"]
    assert sources("INSERT INTO t SELECT * FROM dicts") == ["dicts"]
    assert sources("INSERT INTO rows VALUES (1)") == []
    assert sources("DELETE FROM t WHERE id IN (SELECT id FROM rows)") == ["rows"]
    assert sources("UPDATE t SET n = (SELECT max(id) FROM rows), m = amount") == ["rows"]
    assert sources("WITH cte AS (SELECT * FROM rows) SELECT * FROM cte") == ["rows"]
    assert sources("WITH cte AS (SELECT * FROM rows) INSERT INTO t SELECT * FROM cte") == [
        "cte",
        "rows",
    ]
    assert sources("EXPLAIN DELETE FROM t WHERE id IN (SELECT id FROM rows)") == ["rows"]
    assert sources("CREATE TABLE t AS SELECT * FROM arrow; SELECT * FROM dicts") == [
        "arrow",
        "dicts",
    ]
    assert sources("SELECT * FROM ns.rows, empty, text, Rows") == []


def test_cells_run_statements_on_the_lake_that_was_opened_last(shell, lake):
    """A session of cells: DDL, variables as sources, results shown, kept and limited."""
    shell.push({"lake": lake, "new": pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", SCRIPT]})})
    done = shell.run_cell("%%lake\nCREATE TABLE people (id BIGINT, name STRING)").result
    assert repr(done) == done._repr_html_() == "done"

    result = shell.run_cell(
        "%%lake -o inserted\nINSERT INTO people SELECT id, name FROM new"
    ).result
    assert isinstance(result, DmlResult)
    assert (result.rows_inserted, shell.user_ns["inserted"]) == (3, result)

    shown = shell.run_cell("%%lake -l lake -o rows -n 2\nSELECT * FROM people ORDER BY id").result
    assert _Cells(shown._repr_html_()).texts == [
        *("id", "name"), *("1", "a"), *("2", "b"), "2 rows shown, there are more",
    ]  # fmt: skip
    assert repr(shown).splitlines()[1:] == [
        "| id | name |",
        "|----+------|",
        "|  1 | a    |",
        "|  2 | b    |",
        "+-----------+",
        "2 rows shown, there are more",
    ]
    assert [row.id for row in shell.user_ns["rows"].orderBy("id").collect()] == [1, 2, 3]

    shell.run_cell("ids = %lake SELECT id, '{new} $new' AS t FROM people WHERE id = 3 -- $new")
    assert [tuple(row) for row in shell.user_ns["ids"].frame.collect()] == [(3, "{new} $new")]
    whole = shell.run_cell("%lake SELECT * FROM people WHERE id = 3").result
    assert SCRIPT in _Cells(whole._repr_html_()).texts
    assert "1 row" in whole._repr_html_()

    plan = shell.run_cell("%lake EXPLAIN DELETE FROM people WHERE id = 1").result
    assert "DELETE default.people at snapshot" in plan._repr_html_()
    assert repr(plan).startswith("DELETE default.people")

    told = failure(shell, "%%lake\nSELECT *\nFORM people")
    assert told.startswith("ParseError: Line 2, column 6")
    assert "Traceback" not in told
    assert lake.spark.range(1).count() == 1  # the lake is open still


def test_the_cells_of_the_page_run_as_written(shell, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = re.findall(r"```ipython\n(.*?)```", (ROOT / "docs/notebooks.md").read_text(), re.DOTALL)
    results = []
    for cell in cells:
        with capture_output() as shown:
            done = shell.run_cell(cell)
        assert done.success, shown.stdout
        results.append(done.result)
    shell.user_ns["lake"].stop()
    sums = next(one for one in results if isinstance(one, magics.ShownRows))
    assert sorted(map(tuple, sums.records.rows)) == [("eu", 20), ("us", 10)]
    assert results[-1] == (1, 1)


def test_the_extension_can_be_unloaded(shell):
    shell.run_cell("%unload_ext icefloe").raise_error()
    assert "lake" not in shell.magics_manager.magics["cell"]
    shell.run_cell("%load_ext icefloe").raise_error()
    assert "lake" in shell.magics_manager.magics["line"]


# -------------------------------------------------------------------------------------------------
# Progress below a cell


class _Publisher:
    """Keeps what a cell shows, and says when there are so many outputs."""

    def __init__(self, most: int = 2) -> None:
        self.most = most
        self.outputs: list[tuple[str, bool]] = []
        self.ids: set[str] = set()
        self.is_full = Event()

    def publish(
        self, data: dict[str, str], metadata: object, *, transient: dict[str, str], update: bool
    ) -> None:
        self.outputs.append((data["text/html"], update))
        self.ids.add(transient["display_id"])
        if len(self.outputs) == self.most:
            self.is_full.set()


@pytest.fixture
def quick_progress(monkeypatch):
    """Two states of Spark, which are shown at once."""
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.001)
    monkeypatch.setattr(progress, "REFRESH_S", 0.001)
    states = iter([(0, 0), (3, 8), (3, 8), (7, 8)])
    monkeypatch.setattr(progress, "_tasks_of", lambda _context: next(states, (7, 8)))
    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)


def test_a_cell_shows_one_bar_that_moves_and_disappears(quick_progress):
    publisher = _Publisher()
    cells = CellProgress(SimpleNamespace(display_pub=publisher))
    cells.start()
    assert publisher.is_full.wait(30)
    cells.stop()
    assert publisher.outputs == [
        ('<progress value="3" max="8"></progress> 3/8 tasks, 0 s', False),
        ('<progress value="7" max="8"></progress> 7/8 tasks, 0 s', True),
        ("", True),
    ]
    assert len(publisher.ids) == 1


def test_maintenance_without_spark_jobs_is_shown_by_its_name(tmp_path, monkeypatch):
    """The bar has no end: nobody knows how long it takes."""
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.001)
    monkeypatch.setattr(progress, "REFRESH_S", 0.001)
    monkeypatch.setattr(progress, "_tasks_of", lambda _context: (0, 0))
    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)
    publisher, shown = _Publisher(1), []

    def wait_for_bar(*_arguments: object) -> ExpireResult:
        shown.append(publisher.is_full.wait(30))
        return ExpireResult()

    monkeypatch.setattr("icefloe.table.expire_snapshots", wait_for_bar)
    with open_lake(tmp_path / "lake") as lake:
        table = make(lake, "orders", 1)
        cells = CellProgress(SimpleNamespace(display_pub=publisher))
        cells.start()
        table.expire_snapshots()
        cells.stop()
    assert shown == [True]
    assert publisher.outputs == [
        ("<progress></progress> expiring snapshots, 0 s", False),
        ("", True),
    ]


def test_a_quick_cell_shows_nothing(monkeypatch):
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 3600)
    publisher = _Publisher()
    cells = CellProgress(SimpleNamespace(display_pub=publisher))
    cells.start()
    cells.stop()
    assert publisher.outputs == []


def test_progress_is_shown_in_a_notebook_alone(shell, quick_progress, monkeypatch):
    progress.show_in_notebook()
    assert progress._cells is None  # a shell without a kernel

    publisher = _Publisher()
    monkeypatch.setattr(shell, "display_pub", publisher)
    monkeypatch.setattr(shell, "kernel", object(), raising=False)
    progress.show_in_notebook()
    assert progress._cells is not None
    assert publisher.is_full.wait(30)
    progress.switch(on=False)
    progress.show_in_notebook()
    assert progress._cells is None  # it was switched off
    progress.switch(on=True)
    progress.show_in_notebook()
    assert progress._cells is not None
