"""The examples of the README and of the guides in docs run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md", "docs/replace_where.md"])
def test_examples_run_as_written(page, spark, tmp_path, monkeypatch, capsys):
    """R27: docs/replace_where.md is the worked daily reload."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out


def test_the_readme_example_is_short():
    (block,) = BLOCK.findall((ROOT / "README.md").read_text())
    assert len(block.splitlines()) <= 25


def test_links_of_the_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
