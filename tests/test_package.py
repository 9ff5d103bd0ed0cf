"""What the package declares agrees with the code, with the pages, and with the policies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import icefloe
from icefloe.cli.doctor import _EXTRAS, PYTHONS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_one():
    assert PROJECT["version"] == icefloe.__version__
    assert f"## {icefloe.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_pythons_are_those_that_are_tested():
    named = [
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if re.search(r":: Python :: \d", classifier)
    ]
    assert named == [f"{major}.{minor}" for major, minor in PYTHONS]
    assert PROJECT["requires-python"] == f">=3.{PYTHONS[0][1]},<3.{PYTHONS[-1][1] + 1}"
    shown = ", ".join(named)
    assert f"| Python | {shown} |" in (ROOT / "docs/support.md").read_text()
    assert f"Python {shown.replace(', 3.13', ' or 3.13')}" in (ROOT / "docs/install.md").read_text()


def test_every_extra_is_locked_documented_and_looked_for():
    extras = PROJECT["optional-dependencies"]
    assert set(_EXTRAS) == set(extras)
    page = (ROOT / "docs/install.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == sorted(extras)
    locked = (ROOT / "requirements.lock").read_text()
    for requirement in (one for group in extras.values() for one in group):
        name = re.split(r"[\[<>=]", requirement)[0]
        assert re.search(rf"^{re.escape(name)}==", locked, re.MULTILINE), name


@pytest.mark.parametrize("name", ["SECURITY.md", "CONTRIBUTING.md"])
def test_links_of_the_policies_lead_somewhere(name):
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / name).read_text()):
        assert (ROOT / target).exists(), target


def test_hooks_use_this_environment_alone():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", text) == ["local"]
    entries = re.findall(r"entry: (\S+)", text)
    assert len(entries) == 4
    assert {entry.partition("/bin/")[0] for entry in entries} == {".venv"}
