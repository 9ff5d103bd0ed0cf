"""The command line, run in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from icefloe.cli.app import app


def run(folder: Path, *arguments: str, stdin: str = "") -> Result:
    """One command on the lake in a folder."""
    return CliRunner().invoke(app, ["--warehouse", str(folder), *arguments], input=stdin)
