"""The demo: it runs as told, and deletes nothing that it did not make."""

from __future__ import annotations

from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import app


def test_the_demo_shows_each_step(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-lake").mkdir()
    done = CliRunner().invoke(app, ["demo"])
    assert (done.exit_code, done.stderr) == (0, "")
    for told in (
        "append: 20,000 inserted in",
        "update: 12 updated in",
        "merge: 300 inserted, 240 updated, 60 deleted in",
        "replace_where: 3,900 inserted, 4,000 deleted in",
        "0 of 22 files read",
        "1,000 inserts in ",
        "; 0 snapshots",
        "update: 1 updated in",
        "flush: 1,000 rows moved to data files in",
        "ParseError: ",
        "ColumnNotFoundError: Column 'amuont' is not in the table. Did you mean 'amount'?",
        "TypeMismatchError: ",
        "CardinalityError: ",
        "ConstraintError: ",
        "| as loaded |  20000 | 4999000.00 |",
        "The lake is in demo-lake.",
    ):
        assert told in done.stdout
    assert "Traceback" not in done.stdout
    lake = icefloe.connect("demo-lake", spark=spark)
    assert lake.table("shop.orders").count() == 20_000


def test_the_demo_leaves_other_folders_alone(tmp_path):
    (tmp_path / "mine").write_text("precious")
    done = CliRunner().invoke(app, ["--warehouse", str(tmp_path), "demo"])
    assert done.exit_code == 1
    assert "is not empty and was not created by the demo" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
