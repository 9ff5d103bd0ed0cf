"""`icefloe sql`: rows in each format, statements from files and stdin, failures."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

import icefloe
from icefloe import DmlResult, Lake
from icefloe.cli.output import Format, Output
from icefloe.cli.shell import Shell
from icefloe.cli.worker import CancelledError, Worker
from icefloe.errors import CommitStateUnknownError, ParseError
from support.cli import run

VALUES = """
SELECT CAST(1 AS BIGINT) AS id, 'a,"b"' AS text, CAST(NULL AS INT) AS none,
       DATE '2026-01-02' AS day, TIMESTAMP '2026-01-02 03:04:05.6' AS at,
       TIMESTAMP_NTZ '2026-01-02 03:04:05' AS local, CAST(1.50 AS DECIMAL(10,2)) AS amount,
       X'00FF' AS bytes, array(1, NULL) AS list, map(1, TIMESTAMP '2026-01-01') AS pairs,
       named_struct('x', 1, 'y', array(named_struct('d', DATE '2026-01-01'))) AS nested,
       double('NaN') AS nan, true AS yes
"""


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory) -> Path:
    """A lake with one table of three rows."""
    found: Path = tmp_path_factory.mktemp("sql") / "lake"
    with icefloe.connect(found, spark=spark) as lake:
        orders = lake.create_table("shop.orders", "id BIGINT, status STRING")
        orders.append([{"id": n, "status": "new"} for n in (1, 2, 3)])
    return found


def test_every_type_as_json(folder):
    done = run(folder, "sql", VALUES, "--format", "json")
    assert json.loads(done.stdout) == {
        "id": 1,
        "text": 'a,"b"',
        "none": None,
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.600000+00:00",
        "local": "2026-01-02T03:04:05",
        "amount": "1.50",
        "bytes": "AP8=",
        "list": [1, None],
        "pairs": {"1": "2026-01-01T00:00:00+00:00"},
        "nested": {"x": 1, "y": [{"d": "2026-01-01"}]},
        "nan": "NaN",
        "yes": True,
    }
    assert (done.exit_code, done.stderr) == (0, "")


def test_every_type_as_csv_and_as_a_table(folder):
    done = run(folder, "--format", "csv", "sql", VALUES)
    (row,) = csv.DictReader(io.StringIO(done.stdout, newline=""))
    assert (row["text"], row["none"], row["list"], row["yes"]) == ('a,"b"', "", "[1, null]", "true")

    told = run(folder, "sql", VALUES).stdout
    for cell in ("NULL", "X'00FF'", "2026-01-02 03:04:05.600000+00:00", '{"x": 1, "y": [{"d":'):
        assert cell in told


def test_rows_of_a_table_are_limited_and_those_for_programs_are_not(folder):
    query = "SELECT id FROM range(150)"
    told = run(folder, "sql", query).stdout.splitlines()
    assert len(told) == 4 + 100 + 1
    assert told[-1].startswith("100 rows shown, there are more")
    assert len(run(folder, "sql", query, "--format", "json").stdout.splitlines()) == 150
    assert (
        len(run(folder, "sql", query, "--format", "csv", "--limit", "7").stdout.splitlines()) == 8
    )
    assert run(folder, "sql", query, "--limit", "150").stdout.splitlines()[-1] == "150 rows"


def test_a_file_of_statements_stops_at_the_first_that_fails(folder, tmp_path):
    script = tmp_path / "job.sql"
    script.write_text(
        "-- first ; no statement\n"
        "CREATE TABLE t (id BIGINT);\n\n"
        "INSERT INTO t VALUES (1), (2);\n"
        "UPDATE t\n  SET idd = 3;\n"
        "DROP TABLE t;\n"
    )
    done = run(tmp_path / "lake", "sql", "-f", str(script))
    assert done.exit_code == 1
    assert "append: 2 inserted in " in done.stdout
    assert "Column 'idd' is not in the table. Did you mean 'id'?" in done.stderr
    assert done.stderr.endswith(f"The statement starts at line 5 of {script}.\n")
    again = run(
        tmp_path / "lake",
        "sql",
        "--format",
        "json",
        stdin="DELETE FROM t WHERE id = 2; SELECT * FROM t",
    )
    result, row = map(json.loads, again.stdout.splitlines())
    assert (result["operation"], result["rows_deleted"]) == ("delete", 1)
    assert row == {"id": 1}
    assert (again.exit_code, again.stderr) == (0, "")


def test_errors_show_the_place_and_no_traceback(folder):
    done = run(folder, "sql", "SELECT *\nFORM shop.orders")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "    FORM shop.orders\n" in done.stderr or "FORM shop.orders" in done.stderr
    assert "^" in done.stderr
    assert "Traceback" not in done.stderr
    failing = run(folder, "sql", "SELECT raise_error('too bad') FROM shop.orders")
    assert (failing.exit_code, failing.stdout) == (1, "")
    assert "too bad" in failing.stderr
    assert "Traceback" in run(folder, "--debug", "sql", "SELECT nothing").stderr


def test_an_unexpected_error_says_how_to_see_more(folder, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(icefloe.Lake, "sql", broken)
    done = run(folder, "sql", "SELECT 1")
    assert (done.exit_code, done.stderr) == (
        1,
        "ZeroDivisionError: by zero (--debug shows a traceback)\n",
    )


def test_a_file_that_cannot_be_read(folder):
    done = run(folder, "sql", "-f", "nowhere.sql")
    assert done.exit_code == 1
    assert done.stderr.startswith("nowhere.sql cannot be read: ")


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program in a process of its own, with pipes for its output."""
    program = subprocess.Popen(
        [sys.executable, "-m", "icefloe", "--warehouse", str(folder / "lake"), *arguments],
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()


@pytest.mark.slow
@pytest.mark.spark
def test_a_program_of_its_own_writes_rows_and_nothing_else(tmp_path):
    """Spark's own lines go to a log; Ctrl-C stops the statement and is told by the status."""
    long = "SELECT sum(id % 7) AS n FROM range(1000000000000000)"
    arguments = ("sql", f"SELECT 1 AS one; {long}", "--format", "json")
    with started(tmp_path, *arguments) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == '{"one": 1}\n'
        time.sleep(1)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=120)
    assert (program.returncode, out) == (130, "")
    assert err in ("Cancelled.\n", "Ctrl-C came too late for this statement.\n")
    assert (tmp_path / "state" / "icefloe" / "spark.log").stat().st_size


def test_help_does_not_wait_for_spark():
    code = "import sys, icefloe.cli.app; print(sorted({'pyspark', 'pyiceberg', 'pyarrow'} & {*sys.modules}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


@pytest.fixture
def worker(lake: Lake) -> Iterator[Worker]:
    found = Worker(lake)
    yield found
    found.stop()


def interrupt(after: float) -> None:
    """Ctrl-C, soon."""
    Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_stops_the_jobs_of_a_statement(worker, lake):
    interrupt(0.5)
    with pytest.raises(CancelledError, match=r"^Cancelled\.$"):
        worker.run(lambda _: lake.sql("SELECT sum(id % 7) FROM range(1000000000000000)").collect())
    assert worker.run(lambda _: lake.sql("SELECT 1 AS one").collect()) == [(1,)]


def test_ctrl_c_that_comes_too_late_runs_no_further_statement(worker, lake, capsys, monkeypatch):
    """What was being published when Ctrl-C came is told; those after it do not run."""
    done = DmlResult("update", rows_updated=1)
    monkeypatch.setattr(lake, "sql", lambda _: time.sleep(1) or done)
    interrupt(0.3)
    with pytest.raises(CancelledError, match="Ctrl-C came too late for this statement"):
        Shell(lake, worker, Output(Format.TABLE)).run("SELECT 1; SELECT 2")
    assert capsys.readouterr().out == "update: 1 updated in 0.0 s\n"


def test_an_unknown_outcome_is_reported_even_when_cancelled(worker):
    def unknown(_: object) -> None:
        time.sleep(1)
        raise CommitStateUnknownError("Look at the table.")

    interrupt(0.3)
    with pytest.raises(CommitStateUnknownError):
        worker.run(unknown)


def test_nothing_runs_unless_everything_can_be_parsed(worker, lake):
    lake.create_table("t", "id INT")
    with pytest.raises(ParseError, match="SELEKT"):
        Shell(lake, worker, Output(Format.TABLE)).run("DROP TABLE t; SELEKT 1")
    assert lake.tables() == ["default.t"]
