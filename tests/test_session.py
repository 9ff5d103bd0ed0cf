"""What icefloe needs of the machine and the session, and how it says so."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import icefloe
from icefloe.errors import ColumnNotFoundError, SetupError, StatementError
from icefloe.spark import environment, session
from icefloe.spark.errors import _message_of, translate_spark_errors


def run_script(text: str, folder: Path, **environment: str) -> str:
    """Run a Python program of its own; what it printed, errors included."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=folder,
        env={**_environment(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    return done.stdout


def _environment() -> dict[str, str]:
    left_out = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {key: value for key, value in os.environ.items() if key not in left_out}


CONNECT = """
    import icefloe
    try:
        icefloe.connect("lake")
    except icefloe.errors.SetupError as error:
        print(error)
"""


@pytest.mark.requirement("U22")
def test_no_java_is_one_clear_message(tmp_path):
    """No stack trace of Spark's."""
    told = run_script(CONNECT, tmp_path, PATH=str(tmp_path))

    assert told.startswith("No Java was found. Spark needs Java 17 or newer: install it")
    assert "JAVA_HOME" in told
    assert len(told.splitlines()) == 1


def test_java_home_without_java_is_the_same_message(tmp_path):
    told = run_script(CONNECT, tmp_path, JAVA_HOME=str(tmp_path))
    assert told.startswith("No Java was found.")
    assert len(told.splitlines()) == 1


@pytest.mark.requirement("U22")
@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "Java 11 was found"),
        ('java version "1.8.0_292"', "Java 8 was found"),
        ("what?", "Java of an unknown version was found"),
    ],
)
def test_java_that_is_too_old_is_refused(tmp_path, monkeypatch, printed, told):
    """The version and where it is are told."""
    java = _java(tmp_path, printed)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=f"{told} at {java}. Spark needs Java 17"):
        environment.check_java()


@pytest.mark.parametrize("printed", ['openjdk version "17.0.2"', 'openjdk version "21" 2023-09-19'])
def test_java_that_is_new_enough_is_taken(tmp_path, monkeypatch, printed):
    _java(tmp_path, printed)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    environment.check_java()


def _java(home: Path, printed: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.requirement("U22")
@pytest.mark.parametrize(
    ("package", "found"),
    [("pyspark", "4.0.1"), ("pyspark", "4.4.0"), ("pyiceberg", "0.11.1"), ("pyiceberg", "0.13.0"),
     ("pyarrow", "20.0.0"), ("pyarrow", "27.0.0")],
)  # fmt: skip
def test_library_version_out_of_range_is_refused_with_the_way_out(monkeypatch, package, found):
    """The versions are those that pyproject.toml declares."""
    installed = environment.version
    monkeypatch.setattr(
        environment, "version", lambda name: found if name == package else installed(name)
    )
    with pytest.raises(
        SetupError, match=f"{package} {found} is installed.*pip install '{package}>="
    ):
        environment.check_versions()


@pytest.mark.parametrize("found", ["4.1.0", "4.1.0.dev2", "4.3.9", "4.2"])
def test_library_version_in_range_is_taken(monkeypatch, found):
    installed = environment.version
    monkeypatch.setattr(
        environment, "version", lambda name: found if name == "pyspark" else installed(name)
    )
    environment.check_versions()


def test_versions_checked_are_the_versions_declared():
    """One truth: what pip is told is what is checked at run time."""
    declared = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for package, (least, below) in environment._VERSIONS.items():
        assert f"{package}>={least},<{below}" in declared.replace("[sql-sqlite]", "")


@pytest.mark.parametrize(
    ("gigabytes", "heap"), [(0, 1), (2, 1), (6, 1.5), (8, 2), (24, 4), (512, 4)]
)
def test_the_heap_is_a_quarter_of_the_memory(gigabytes, heap):
    assert environment.heap_bytes(gigabytes * 2**30) == heap * 2**30


def test_the_memory_of_a_container_counts(tmp_path, monkeypatch):
    limits = [tmp_path / "memory.max", tmp_path / "none"]
    monkeypatch.setattr(environment, "_MEMORY_LIMITS", limits)
    limits[0].write_text("max\n")
    machine = environment.memory_bytes()
    limits[0].write_text(f"{2**20}\n")
    assert machine > environment.memory_bytes() == 2**20


def test_session_of_the_callers_gets_what_reading_needs(spark):
    spark.conf.unset("spark.sql.parquet.fieldId.read.enabled")
    assert session.session_of(spark) is spark
    assert spark.conf.get("spark.sql.parquet.fieldId.read.enabled") == "true"


def test_connecting_in_another_thread_takes_the_running_session_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark tells that thread of no active session; none is started or set up anew."""
    session.session_of(spark)
    before = spark.conf.getAll

    def connect() -> tuple[SparkSession | None, SparkSession, int]:
        active = SparkSession.getActiveSession()
        with icefloe.connect(tmp_path / "lake") as lake:
            table = lake.create_table("t", "id BIGINT")
            table.append([{"id": 1}])
            return active, lake.spark, table.count()

    with ThreadPoolExecutor(1) as thread:
        active, used, count = thread.submit(connect).result()

    assert active is None
    assert used is spark
    assert count == 1
    assert spark.conf.getAll == before
    assert spark.range(3).count() == 3


def test_stopping_a_lake_leaves_the_callers_session_running(spark, tmp_path):
    lake = icefloe.connect(tmp_path / "lake", spark=spark)
    lake.stop()
    assert spark.range(3).count() == 3


def test_errors_of_the_callers_own_queries_stay_sparks_own(spark):
    """PySpark logs errors through a logger class of its own, which must not be replaced."""
    with translate_spark_errors():
        assert isinstance(logging.getLogger("SQLQueryContextLogger"), PySparkLogger)
    with pytest.raises(AnalysisException, match="nowhere"):
        spark.sql("SELECT nowhere")


@pytest.mark.slow
def test_workers_without_pyarrow_are_reported_and_the_table_is_unchanged(tmp_path):
    """The caller's own session, whose Python is a bare virtual environment."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    script = """
        import os, sys
        import icefloe
        from icefloe.errors import SetupError
        from pyspark.sql import SparkSession

        def session(python):
            os.environ["PYSPARK_PYTHON"] = python
            builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
            return builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()

        spark = session(sys.executable)
        table = icefloe.connect("lake", spark=spark).create_table("t", "id BIGINT, n INT")
        table.append([{"id": 1, "n": 0}, {"id": 2, "n": 0}])
        spark.stop()
        spark = session(sys.argv[1] if len(sys.argv) > 1 else os.environ["BARE"])
        spark.sparkContext.setLogLevel("OFF")
        table = icefloe.connect("lake", spark=spark).table("t")
        before = table.snapshot_id
        for mode in ("merge-on-read", "copy-on-write"):
            for statement in (
                lambda: table.append(spark.sql("SELECT 3L AS id, 0 AS n")),
                table.update().set("n", "n + 1").with_options(mode=mode).execute,
                table.delete().where("id % 2 = 1").with_options(mode=mode).execute,
            ):
                try:
                    statement()
                    print("DONE?")
                except SetupError as error:
                    print("TOLD", error)
        files = [name for _, _, names in os.walk("lake/default/t/data") for name in names]
        print("SAME", table.snapshot_id == before, len(files), table.count())
        spark.stop()
    """
    told = run_script(script, tmp_path, BARE=str(bare / "bin" / "python"))

    lines = [line for line in told.splitlines() if line.startswith(("TOLD", "DONE", "SAME"))]
    assert [line.partition(".")[0] for line in lines[:-1]] == [
        "TOLD Spark's Python workers lack PyArrow"
    ] * 6, told
    assert "spark.pyspark.python" in lines[0]
    assert lines[-1] == "SAME True 1 2"


@pytest.mark.slow
def test_a_jvm_that_exits_in_a_statement_is_reported_and_the_table_is_unchanged(spark, tmp_path):
    """As when it runs out of memory: no ConnectionRefusedError, no half a statement."""
    script = """
        import os
        import icefloe
        from icefloe.errors import SetupError
        from icefloe.spark.environment import heap_bytes, memory_bytes
        from pyspark.sql import functions as F

        lake = icefloe.connect("lake")
        table = lake.create_table("t", "id BIGINT")
        table.append([{"id": 1}])
        jvm = lake.spark.sparkContext._gateway.proc.pid
        heap = lake.spark.sparkContext._jvm.Runtime.getRuntime().maxMemory()
        print("HEAP", heap / heap_bytes(memory_bytes()))
        deadly = F.udf(lambda _: os.kill(jvm, 9), "long")
        rows = lake.spark.range(1).select(deadly("id").alias("id"))
        for statement in (
            table.upsert(rows, on=["id"]).execute,
            table.delete().where("id % 2 = 1").execute,
            lambda: table.append([{"id": 2}] * 20_000),  # more than the driver writes itself
        ):
            try:
                statement()
                print("DONE?")
            except SetupError as error:
                print("TOLD", error)
    """
    told = run_script(script, tmp_path)

    # Threads of PySpark write between the lines.
    assert (told.count("The Spark JVM exited"), told.count("DONE?")) == (3, 0), told
    assert told.count("Give it more with spark.driver.memory") == 3
    assert 0.9 < float(re.search(r"HEAP ([\d.]+)", told)[1]) <= 1
    table = icefloe.connect(str(tmp_path / "lake"), spark=spark).table("t")
    assert (table.history().count(), table.count()) == (1, 1)


@pytest.mark.slow
@pytest.mark.spark
def test_a_heap_that_is_asked_for_is_taken(tmp_path):
    script = """
        import icefloe
        spark = icefloe.connect("lake").spark
        print("HEAP", spark.sparkContext._jvm.Runtime.getRuntime().maxMemory() >> 20)
    """
    asked = "--conf spark.driver.memory=700m pyspark-shell"
    told = run_script(script, tmp_path, PYSPARK_SUBMIT_ARGS=asked)
    assert 600 < int(re.search(r"HEAP (\d+)", told)[1]) <= 700


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_that_icefloe_starts_listens_on_loopback_alone(tmp_path):
    script = """
        import icefloe, psutil
        rows = [{"id": n, "text": str(n) * 2000} for n in range(2000)]
        with icefloe.connect("lake") as lake:
            table = lake.create_table("t", "id BIGINT, text STRING")
            table.append(rows)
            print("ROWS", len(table.scan().collect()))
            ours = psutil.Process()
            for process in (ours, *ours.children(recursive=True)):
                for each in process.net_connections():
                    if each.status == psutil.CONN_LISTEN:
                        print("LISTENS", each.laddr.ip)
    """
    told = run_script(script, tmp_path)
    assert "ROWS 2000" in told
    listening = re.findall(r"LISTENS (\S+)", told)
    assert len(listening) >= 3
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Job 3 cancelled because SparkContext was shut down", SetupError),
        ("A value like 'OutOfMemoryError' cannot be cast", StatementError),
        ("java.lang.OutOfMemoryError: unable to create native thread", StatementError),
    ],
)
def test_an_error_that_ended_a_job_says_what_to_do(text, expected):
    with pytest.raises(expected), translate_spark_errors():
        raise PySparkException(text)


def test_a_mistake_in_a_statement_about_memory_stays_a_mistake(spark):
    rows = spark.createDataFrame([("a",)], "message STRING")
    with pytest.raises(ColumnNotFoundError), translate_spark_errors():
        rows.filter("mesage LIKE '%java.lang.OutOfMemoryError%'").count()


def test_too_little_memory_is_reported_with_the_way_out():
    failed = PySparkException("Job aborted: java.lang.OutOfMemoryError: Java heap space\n\tat a.b")
    told = r"\(Java heap space\)\. Give it more with spark\.driver"
    with pytest.raises(SetupError, match=told), translate_spark_errors():
        raise failed


class Thrown:
    """A Java exception as Py4J shows it."""

    def __init__(self, text, cause=None):
        self.toString = lambda: text
        self.getCause = lambda: cause


@pytest.mark.parametrize(
    ("thrown", "told"),
    [
        (
            Thrown("Exception thrown in awaitResult:", Thrown("the disk is full")),
            "the disk is full",
        ),
        (Thrown("no such file", Thrown("something deeper")), "no such file"),
        (Thrown("Exception thrown in awaitResult:"), "Exception thrown in awaitResult:"),
    ],
)
def test_the_cause_is_reported_where_spark_only_waited_for_it(thrown, told):
    assert _message_of(thrown) == told
