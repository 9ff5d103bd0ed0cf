"""A writer that is killed at any step leaves all or nothing, and a table that works at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icefloe import Table
from support.pyiceberg_tables import open_lake

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])
PROGRAM = Path(__file__).parent / "killed_writer.py"
INSERT_STEPS = [("after", "insert rows"), ("before", "commit"), ("after", "commit")]
FLUSH_STEPS = [
    ("before", "write files"),
    ("after", "write files"),
    ("after", "lay out manifests"),
    ("after", "stage metadata"),
    ("after", "swap pointer"),
    ("after", "remove rows"),
    ("before", "commit"),
    ("after", "commit"),
]


def cases() -> list[Any]:
    steps = [("insert", *step) for step in INSERT_STEPS] + [
        ("flush", *step) for step in FLUSH_STEPS
    ]
    return [
        pytest.param(
            *step, id=" ".join(step), marks=[] if step[2] == "commit" else [pytest.mark.slow]
        )
        for step in steps
    ]


def everything(table: Table) -> list[tuple[int, str]]:
    """The rows of both tiers, each read by itself: a row in both would be here twice."""
    filed = table.iceberg.scan().to_arrow().to_pylist()
    cut = table._lake.tier.cut(table._state())
    inline = [] if cut is None else cut.arrow().to_pylist()
    return sorted((found["id"], found["s"]) for found in (*filed, *inline))


@pytest.mark.requirement("X02", "L07")
@pytest.mark.parametrize(("operation", "when", "name"), cases())
def test_a_killed_writer_leaves_all_or_nothing(tmp_path, operation, when, name):
    folder = tmp_path / "lake"
    with open_lake(folder) as lake:
        lake.create_namespace("default")
        table = lake.create_table("t", SCHEMA, properties={"icefloe.inline.enabled": "true"})
        table.insert([{"id": 1, "s": "a"}, {"id": 2, "s": None}])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), operation, when, name],
        cwd=PROGRAM.parent.parent,
        env={"PYTHONPATH": f"{PROGRAM.parent.parent}:{PROGRAM.parents[2]}", "PATH": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with open_lake(folder) as lake:
        table = lake.table("t")
        landed = operation == "insert" and (when, name) == ("after", "commit")
        expected = [(1, "a"), (2, None), *([(3, "new")] if landed else [])]
        assert everything(table) == expected
        table.insert([{"id": 4, "s": "later"}])
        table.flush()
        assert everything(table) == [*expected, (4, "later")]
        assert (table.inline.rows, len(table.iceberg.scan().to_arrow())) == (0, len(expected) + 1)
