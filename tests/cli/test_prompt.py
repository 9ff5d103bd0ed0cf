"""The prompt, driven through a real terminal; one program for the whole story."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from icefloe import Lake
from icefloe.cli.prompt import SqlCompleter

UP, CTRL_C, CTRL_D = "\x1b[A", "\x03", "\x04"
LONG_QUERY = "SELECT sum(id % 7) FROM range(1000000000000000);"


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.program = pexpect.spawn(
            sys.executable,
            ["-m", "icefloe", "--warehouse", str(folder / "lake"), "sql"],
            env={
                **os.environ,
                "XDG_STATE_HOME": str(folder / "state"),
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "PROMPT_TOOLKIT_COLOR_DEPTH": "DEPTH_1_BIT",
                "TERM": "xterm",
            },
            dimensions=(50, 200),
            encoding="utf-8",
            timeout=120,
        )

    def types(self, text: str) -> None:
        self.program.send(text)

    def enters(self, *lines: str) -> None:
        for line in lines:
            self.program.send(line + "\r")

    def shows(self, *texts: str) -> None:
        for text in texts:
            self.program.expect_exact(text)


@pytest.fixture
def terminal(tmp_path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    yield found
    found.program.close(force=True)


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_at_the_prompt(terminal, tmp_path):
    """Several lines, an error with its place, history, Ctrl-C during a query, Ctrl-D."""
    terminal.shows("icefloe>")
    terminal.enters("CREATE TABLE accounts (id BIGINT, city STRING);")
    terminal.shows("starting Spark", "done in")
    terminal.enters("INSERT INTO accounts VALUES (1, 'Oslo'), (2, 'Bergen');")
    terminal.shows("append: 2 inserted", "snapshot")

    terminal.enters(
        "MERGE INTO accounts AS a",
        "USING (VALUES (2, 'Narvik'), (3, 'Bodø') AS v(id, city)) AS c",
        "ON a.id = c.id",
        "WHEN MATCHED THEN UPDATE SET *",
        "WHEN NOT MATCHED THEN INSERT *;",
    )
    terminal.shows("...>", "merge: 1 inserted, 1 updated in")

    terminal.enters("SELECT * FORM accounts;")
    terminal.shows("Line 1", "SELECT * FORM accounts", "^")

    terminal.enters(LONG_QUERY)
    terminal.shows(" tasks")
    terminal.types(CTRL_C)
    terminal.shows("Cancelled.", "icefloe>")

    terminal.enters("UPDATE accounts SET city = (SELECT sum(id % 7) FROM range(1000000000000000));")
    terminal.shows(" tasks")
    terminal.types(CTRL_C)
    terminal.shows("Cancelled.", "icefloe>")

    terminal.types("SELECT nothing")
    terminal.types(CTRL_C)
    terminal.shows("icefloe>")
    terminal.enters("SELECT id, city FROM accounts ORDER BY id;")
    terminal.shows("id", "city", "Oslo", "Narvik", "Bodø", "3 rows", "icefloe>")
    terminal.types(UP)
    terminal.shows("ORDER")
    terminal.types("\r")
    terminal.shows("3 rows", "icefloe>")

    terminal.enters("\\d")
    terminal.shows("default.accounts", "icefloe>")
    terminal.types(CTRL_D)
    terminal.program.expect(pexpect.EOF)
    terminal.program.wait()
    assert terminal.program.exitstatus == 0
    kept = (tmp_path / "state" / "icefloe" / "history").read_text()
    assert "+WHEN MATCHED THEN UPDATE SET *\n" in kept


@pytest.fixture
def offered(lake: Lake):
    lake.create_table("shop.orders", "id BIGINT, region STRING")
    lake.create_table("customers", "name STRING, info STRUCT<mail: STRING>")
    completer = SqlCompleter(lake)

    def offer(text: str, after: str = "") -> list[str]:
        document = Document(text + after, len(text))
        return [found.text for found in completer.get_completions(document, CompleteEvent())]

    return offer


def test_keywords_follow_the_case_that_is_typed(offered):
    assert offered("SEL") == ["SELECT"]
    assert offered("sel") == ["select"]


def test_tables_come_after_from(offered):
    assert offered("SELECT * FROM ") == ["default.customers", "shop.orders"]
    assert offered("update sh") == ["shop.orders"]
    assert offered("\\d de") == ["default.customers"]


def test_columns_of_the_tables_that_are_named(offered):
    assert offered("SELECT re", " FROM shop.orders") == ["region", "rename", "replace"]
    assert offered("DELETE FROM customers WHERE na") == ["name"]
    assert offered("DELETE FROM customers WHERE reg") == []
