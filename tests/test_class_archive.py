"""The archive of Spark's classes that sessions map: made in the background, never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from icefloe.spark import class_archive as archives
from icefloe.spark.class_archive import ClassArchive, _Dump, class_archive, dump
from test_session import run_script

ENOUGH = 8 * 2**30


@pytest.fixture
def java(tmp_path, monkeypatch) -> str:
    """A Java that makes an archive of whatever the list has, and the jars of a Spark."""
    for variable in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").write_text("")
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        'for o in "$@"; do case "$o" in\n'
        "  -XX:SharedClassListFile=*) list=${o#*=};;\n"
        "  -XX:SharedArchiveFile=*) out=${o#*=};;\n"
        'esac; done\n[ -s "$list" ] && cp "$list" "$out"\n'
    )
    program.chmod(0o755)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark.jar").write_text("1")
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    monkeypatch.setenv(archives.FOLDER, str(tmp_path / "cache"))
    return str(program)


def options_of(java: str | None, memory: int = ENOUGH) -> tuple[ClassArchive | None, str]:
    """What a session finds, and the options that its JVM gets."""
    with class_archive(java, memory) as archive:
        return archive, os.environ.get("SPARK_SUBMIT_OPTS", "")


def session(java: str, classes: int) -> ClassArchive:
    """A session that loads so many classes, and has ended."""
    archive, _ = options_of(java)
    assert archive is not None
    Path(archive.class_list).write_text("a/b/C id: 1\n" * classes)
    return archive


def ended() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def task(archive: ClassArchive, jvm: int | None = None) -> _Dump:
    return _Dump(archive, ended() if jvm is None else jvm, "a.jar:b.jar", ("-Xmx1g",))


def files(tmp_path: Path, suffix: str) -> list[Path]:
    return list((tmp_path / "cache").glob(f"*{suffix}"))


def test_the_first_session_lists_its_classes_and_the_next_one_maps_them(java, tmp_path):
    archive = session(java, 100)
    with class_archive(java, ENOUGH):
        options = os.environ["SPARK_SUBMIT_OPTS"]
    assert "-XX:DumpLoadedClassList=" in options
    assert "SharedArchiveFile" not in options
    assert "SPARK_SUBMIT_OPTS" not in os.environ

    assert dump(task(archive))

    [made] = files(tmp_path, ".jsa")
    assert made.read_text().count("a/b/C") == 100
    assert files(tmp_path, ".classes") == []
    assert files(tmp_path, ".unfinished") == []
    _, options = options_of(java)
    assert f'-XX:SharedArchiveFile="{made}"' in options


def test_only_a_list_that_is_longer_by_a_tenth_replaces_an_archive(java, tmp_path):
    assert dump(task(session(java, 100)))
    [first] = files(tmp_path, ".jsa")
    assert not dump(task(session(java, 105)))
    assert files(tmp_path, ".jsa") == [first]
    assert dump(task(session(java, 120)))
    [second] = files(tmp_path, ".jsa")
    assert second.read_text().count("a/b/C") == 120
    assert files(tmp_path, ".classes") == []


def test_an_archive_is_of_one_java_and_one_set_of_jars(java, tmp_path):
    assert dump(task(session(java, 100)))
    (tmp_path / "spark" / "jars" / "spark.jar").write_text("another")
    _, options = options_of(java)
    assert "SharedArchiveFile" not in options


def test_an_archive_is_of_one_set_of_options(java, monkeypatch):
    assert dump(task(session(java, 100)))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:-UseCompressedOops")
    _, options = options_of(java)
    assert "SharedArchiveFile" not in options


def test_the_users_own_options_are_kept_and_given_back(java, monkeypatch):
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    _, options = options_of(java)
    assert options.startswith("-Dmine=1 -XX:DumpLoadedClassList=")
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Dmine=1"


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=own.jsa"])
def test_a_user_who_shares_classes_otherwise_is_left_alone(java, monkeypatch, option):
    monkeypatch.setenv("JDK_JAVA_OPTIONS", option)
    assert options_of(java) == (None, "")


def test_nothing_is_done_where_it_may_be_a_burden(java, tmp_path, monkeypatch):
    assert options_of(None) == (None, "")
    assert options_of(java, memory=2**30) == (None, "")
    (tmp_path / "jdk" / "lib" / "server" / "classes.jsa").rename(tmp_path / "other")
    assert options_of(java) == (None, "")
    monkeypatch.setenv(archives.FOLDER, "off")
    assert options_of(java) == (None, "")


def test_a_link_is_followed_once(java, tmp_path):
    """Another user may put another link in its place."""
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "mine")
    archive, options = options_of(java)
    assert archive is not None
    assert archive.folder == str((tmp_path / "mine").resolve())
    assert str(tmp_path / "cache") not in options


def test_a_folder_that_others_may_write_to_is_not_used(java, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert options_of(java) == (None, "")


def test_a_folder_that_cannot_be_made_or_quoted_is_not_used(java, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "cache", tmp_path / 'a"b'):
        monkeypatch.setenv(archives.FOLDER, str(folder))
        assert options_of(java) == (None, "")


def test_the_default_folder_is_the_users_cache(java, tmp_path, monkeypatch):
    monkeypatch.delenv(archives.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    archive, _ = options_of(java)
    assert archive is not None
    assert archive.folder == str(tmp_path / "xdg" / "icefloe" / "classes")


def test_a_java_that_cannot_make_one_is_not_asked_again(java, tmp_path):
    archive = session(java, 0)
    Path(archive.class_list).write_text("")
    longer = Path(java)
    longer.write_text("#!/bin/sh\nexit 1\n")
    archive = session(java, 10)
    assert not dump(task(archive))
    assert files(tmp_path, ".jsa") == []
    assert files(tmp_path, ".unfinished") == []
    assert len(files(tmp_path, ".failed")) == 1
    archives._start_dump(task(session(java, 10)))
    assert [f for f in files(tmp_path, ".classes") if f.stat().st_size] == []


def test_processes_that_end_at_once_make_one_archive(java, tmp_path):
    first, second = session(java, 100), session(java, 200)
    with archives._only_one(first):
        assert not dump(task(second))
    assert not Path(second.class_list).exists()
    assert dump(task(first))
    assert len(files(tmp_path, ".jsa")) == 1


def test_a_list_is_not_read_before_its_jvm_has_ended(java, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_JVM_EXIT_S", 0.2)
    assert not dump(task(session(java, 100), jvm=os.getpid()))
    assert files(tmp_path, ".jsa") == []


def test_files_that_nobody_needs_any_more_are_deleted(java, tmp_path):
    folder = Path(session(java, 1).folder)
    long_ago = time.time() - 90 * 86_400
    for name in ("x-1.jsa", "x-2-3.classes", "x.failed"):
        (folder / name).write_text("")
        os.utime(folder / name, (long_ago, long_ago))
    (folder / "x-5.jsa").write_text("")
    options_of(java)
    assert sorted(f.name for f in folder.iterdir() if f.name.startswith("x")) == ["x-5.jsa"]


def test_the_program_makes_an_archive(java, tmp_path):
    """As a process that imports nothing of the package."""
    given = json.dumps(asdict(task(session(java, 100)))).encode()
    subprocess.run([sys.executable, "-I", archives.__file__], input=given, check=True, cwd="/")
    assert len(files(tmp_path, ".jsa")) == 1


# -------------------------------------------------------------------------------------------------
# With a real Java

SESSION = """
    import icefloe
    with icefloe.connect("lake") as lake:
        print(lake.spark.range(10).count())
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 150
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert condition()


@pytest.mark.spark
@pytest.mark.slow
def test_a_second_session_maps_the_classes_of_the_first(tmp_path):
    cache, log = tmp_path / "cache", tmp_path / "loaded.log"
    environment = {archives.FOLDER: str(cache), "JAVA_HOME": ""}
    assert run_script(SESSION, tmp_path, **environment).endswith("10\n")
    wait_for(lambda: list(cache.glob("*.jsa")))
    environment["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-java-options -Xlog:class+load:file={log} pyspark-shell"
    )
    assert run_script(SESSION, tmp_path, **environment).endswith("10\n")
    [context] = [
        line for line in log.read_text().splitlines() if " org.apache.spark.SparkContext " in line
    ]
    assert "source: shared objects file" in context


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_starts_with_an_archive_that_is_no_archive(tmp_path):
    environment = {archives.FOLDER: str(tmp_path / "cache"), "JAVA_HOME": ""}
    program = """
        from pathlib import Path
        from icefloe.spark import class_archive, environment
        with class_archive.class_archive(environment.check_java().path, 2**40) as archive:
            Path(archive.folder, f"{archive.key}-999999999.jsa").write_bytes(b"x" * 100_000)
    """
    assert run_script(program, tmp_path, **environment) == ""
    told = run_script(SESSION, tmp_path, **environment)
    assert told.endswith("10\n")
    assert "cds" not in told
