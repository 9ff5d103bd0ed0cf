"""Writers in processes of their own on one embedded lake: none loses a change, none sees half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from support.tables import rows, summary
from support.unreferenced_files import leftovers

SCHEMA = "id BIGINT, region STRING, n BIGINT"
REGIONS = ("eu", "jp", "uk", "us")
ROWS = [{"id": i, "region": region, "n": 0} for i, region in enumerate(REGIONS)]
COW, MOR = "copy-on-write", "merge-on-read"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts writers, each with a Spark session of its own; whatever still runs is ended."""
    running: list[subprocess.Popen[str]] = []

    def begin(table: Any, *arguments: str) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("writer_process.py")
        with (tmp_path / f"writer{len(running)}.log").open("w") as log:
            running.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(tmp_path / "lake"), table.name, *arguments],
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            )
        return running[-1]

    yield begin
    for process in running:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """`kill -9` of a writer and its JVM."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def run_together(writers: list[subprocess.Popen[str]]) -> list[list[str]]:
    """Let all begin at the same moment; what each said afterwards."""
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate(timeout=300)[0].splitlines() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * len(writers)
    return said


@pytest.mark.requirement("M27", "D6")
@pytest.mark.slow
@pytest.mark.parametrize("how", [COW, MOR])
def test_four_writers_of_the_same_rows_lose_no_increment(table_of, start, how):
    """Three increments each, the losers run their statement again."""
    table = table_of(SCHEMA, ROWS)

    said = run_together([start(table, how, "20", "3") for _ in range(4)])

    assert said == [[f"done {i} rows 4" for i in (1, 2, 3)]] * 4
    assert rows(table, "n") == [(12,)] * 4
    assert summary(table)["total-position-deletes"] == "0"
    assert leftovers(table) == set()


@pytest.mark.requirement("D6")
@pytest.mark.slow
@pytest.mark.parametrize("how", [COW, MOR])
def test_writers_of_different_partitions_all_succeed_at_once(table_of, start, how):
    """Lost races are retried by the commit alone; no statement is run twice."""
    table = table_of(SCHEMA, ROWS, partition_by=("region",))

    writers = [start(table, how, "0", "3", f"region = '{region}'") for region in REGIONS]
    said = run_together(writers)

    assert said == [[f"done {i} rows 1" for i in (1, 2, 3)]] * 4
    assert rows(table, "n") == [(3,)] * 4
    assert leftovers(table) == set()


@pytest.mark.requirement("X10")
@pytest.mark.slow
@pytest.mark.parametrize("how", [COW, MOR])
def test_writer_killed_at_any_time_leaves_all_or_nothing(table_of, start, tmp_path, how):
    """Five kills per mode; what was said to be done is there, and no row has half of it."""
    table = table_of(SCHEMA, ROWS, partition_by=("region",))
    moments = random.Random(f"kill -9 {how}")
    done = 0
    for _ in range(5):
        said = killed_after(start(table, how, "0", "0"), moments.random())
        found = set(fresh_read(tmp_path / "lake", table.name))
        assert len(found) == 1
        assert found <= {done + said, done + said + 1}
        done = found.pop()

    table.update().set("n", "n + 1").execute()
    assert rows(table, "n") == [(done + 1,)] * 4


def killed_after(writer: subprocess.Popen[str], part: float) -> int:
    """Kill a writer a part of a statement after its second one; how many it said were done."""
    assert writer.stdout is not None
    assert writer.stdin is not None
    assert writer.stdout.readline() == "ready\n"
    writer.stdin.write("go\n")
    writer.stdin.flush()
    assert writer.stdout.readline().startswith("done 1 ")
    begun = time.monotonic()
    assert writer.stdout.readline().startswith("done 2 ")
    time.sleep(part * (time.monotonic() - begun))
    os.killpg(writer.pid, signal.SIGKILL)
    return 2 + len(writer.communicate()[0].splitlines())


def fresh_read(folder: Path, name: str) -> list[int]:
    """The counters as another reader finds them: PyIceberg with a catalog of its own."""
    catalog = load_catalog("icefloe", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    try:
        return catalog.load_table(name).scan().to_arrow()["n"].to_pylist()
    finally:
        catalog.close()


@pytest.mark.requirement("M27")
def test_threads_of_one_program_lose_no_increment(table_of, mode):
    """One lake, two threads, the same rows."""
    table = table_of(SCHEMA, ROWS, mode=mode)
    failed: list[BaseException] = []

    def increment() -> None:
        try:
            for _ in range(2):
                table.update().set("n", "n + 1").with_options(retries=10).execute()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=increment) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert rows(table, "n") == [(4,)] * 4
    assert leftovers(table) == set()
