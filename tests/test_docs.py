"""The examples of the README, of the pages in docs/ and in examples/ run as written."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import app

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.every_variant
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.requirement("R27")
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/operations.md",
        "docs/merge.md",
        "docs/replace_where.md",
        "docs/sql.md",
        "docs/maintenance.md",
        "docs/search.md",
        "docs/small_writes.md",
        "docs/indexes.md",
    ],
)
def test_examples_run_as_written(page, spark, tmp_path, monkeypatch, capsys):
    """The worked daily reload is docs/replace_where.md."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_change_feed_example_applies_each_event_once(spark, tmp_path, capsys):
    module = importlib.util.spec_from_file_location("cdc", ROOT / "examples" / "cdc.py")
    assert module is not None
    assert module.loader is not None
    cdc = importlib.util.module_from_spec(module)
    module.loader.exec_module(cdc)

    cdc.main(tmp_path)

    lake = icefloe.connect(tmp_path / "lake")
    accounts = lake.table("bank.accounts").scan(["id", "city", "balance", "deleted"])
    assert sorted(map(tuple, accounts.collect())) == [
        (1, "Tromsø", 10, False),
        (2, "Bergen", 25, False),
        (4, "Narvik", 40, False),
    ]
    history = lake.table("bank.history").scan(["id", "city"], where="valid_to IS NULL")
    assert sorted(map(tuple, history.collect())) == [(1, "Tromsø"), (2, "Bergen"), (4, "Narvik")]
    assert lake.table("bank.history").count() == 5
    printed = capsys.readouterr().out
    assert "batch 1: rows per clause (1, 1, 1)" in printed
    assert "rows per clause (1, 1, 1), as in the first run; table changed: False" in printed


def test_the_readme_example_is_short():
    (block,) = BLOCK.findall((ROOT / "README.md").read_text())
    assert len(block.splitlines()) <= 25


def test_links_of_the_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_command_line_prints_what_its_page_shows(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```console\n(.*?)```", (ROOT / "docs/cli.md").read_text(), re.DOTALL)
    for command, shown in re.findall(r"^\$ icefloe (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        done = CliRunner().invoke(app, shlex.split(command))
        assert unmeasured(done.stdout + done.stderr) == unmeasured(shown)


def unmeasured(text: str) -> str:
    """A text without times, sizes and snapshots."""
    masked = re.sub(r"\d+\.\d (s|kB)|snapshot \d+|,\d{4,},", "…", text)
    return masked.replace("\r\n", "\n")


@pytest.mark.requirement("U40", "T38")
def test_modes_are_explained():
    text = (ROOT / "docs" / "modes.md").read_text()
    for word in ("Choosing a mode", "Troubleshooting", "partition columns", "Cast", "cast"):
        assert word.lower() in text.lower()
