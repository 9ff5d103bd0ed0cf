"""Class data sharing: the JVM maps Spark's classes from an archive instead of loading each.

1. A session that icefloe starts has its JVM list the classes that it loads, which costs nothing.
2. When the process has ended, and the list has more than the archive there is, another process
   makes an archive of the list, with low priority: this module, run as a program.
3. Later sessions map the archive of their Java and their jars.

The JVM ignores an archive that does not fit, and a session starts without one if anything fails.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # nor does the program need it
    from pyspark import SparkContext

FOLDER = "ICEFLOE_CLASS_ARCHIVES"  # environment variable: a folder, or "off"
_JVM_OPTIONS = "SPARK_SUBMIT_OPTS"
_JVM_OPTION_PLACES = (_JVM_OPTIONS, "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_OPTION_PLACES = (*_JVM_OPTION_PLACES, "PYSPARK_SUBMIT_ARGS")
_OWN_OPTIONS = ("-Xshare", "SharedArchiveFile", "DumpLoadedClassList", "ArchiveClassesAtExit")
# Options that an archive depends on.
_HEAP_OPTIONS = ("-Xmx", "--add-modules", "-XX:+Use", "-XX:-Use", "-XX:ObjectAlignmentInBytes")

_GROWTH = 1.1  # by which a list must be longer than that of the archive there is
_UNUSED_S = 60 * 86_400  # after which an archive is deleted
_STALE_S = 86_400  # after which a list that its process left behind is deleted
_LEAST_MEMORY = 4 * 2**30  # making an archive takes less than 1 GB
_JVM_EXIT_S, _DUMP_S = 60, 900


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one set of jars, which need not exist yet."""

    folder: str
    key: str
    java: str
    class_list: str  # of this process

    @property
    def file(self) -> Path | None:
        """The archive, if there is one: that of the longest list."""
        return max(self._files(), key=_listed_bytes, default=None)

    def has_enough(self, class_list: Path) -> bool:
        """Whether the archive has almost all that a list has."""
        archive = self.file
        held = 0 if archive is None else _listed_bytes(archive)
        return class_list.stat().st_size <= held * _GROWTH

    def _files(self) -> list[Path]:
        return list(Path(self.folder).glob(f"{self.key}-*.jsa"))


@contextmanager
def class_archive(java: str | None, memory: int) -> Iterator[ClassArchive | None]:
    """Have a JVM that is launched in the block share classes, and list those that it loads.

    Nothing is done without `java`, or with so little memory that making an archive is a burden.
    """
    archive = None if java is None or memory < _LEAST_MEMORY else _find(java)
    if archive is None:
        yield None
        return
    options = [f'-XX:DumpLoadedClassList="{archive.class_list}"', "-Xlog:cds*=off"]
    if (file := archive.file) is not None:
        with suppress(OSError):
            os.utime(file)
        options.append(f'-XX:SharedArchiveFile="{file}"')
    before = os.environ.get(_JVM_OPTIONS)
    os.environ[_JVM_OPTIONS] = " ".join([before or "", *options]).strip()
    try:
        yield archive
    finally:
        if before is None:
            del os.environ[_JVM_OPTIONS]
        else:
            os.environ[_JVM_OPTIONS] = before


def update_at_exit(archive: ClassArchive | None, context: SparkContext) -> None:
    """Register the making of an archive of the classes that the context's JVM lists, if needed."""
    if archive is None:
        return
    with suppress(Exception):  # a session is no worse without
        java: Any = context._jvm.java.lang  # type: ignore[union-attr]
        options = java.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
        task = _Dump(
            archive,
            java.ProcessHandle.current().pid(),
            java.System.getProperty("java.class.path"),
            tuple(option for option in options if option.startswith(_HEAP_OPTIONS)),
        )
        atexit.register(_start_dump, task)


def _find(java: str) -> ClassArchive | None:
    """The archive of this Java and Spark's jars; None where classes are not shared."""
    given = os.environ.get(FOLDER, "")
    options = " ".join(os.environ.get(place, "") for place in _OPTION_PLACES)
    is_off = given.lower() == "off" or any(option in options for option in _OWN_OPTIONS)
    if is_off or os.name != "posix":
        return None
    try:
        folder = Path(given) if given else _cache_folder()
        folder = _private(folder.absolute())
        key = _key(Path(java).resolve().parents[1])
        _delete_stale(folder)
    except (OSError, LookupError):  # also a Java without an archive of its own classes
        return None
    if any(character in str(folder) for character in "\"'\\\n$"):
        return None  # it is part of a text that a shell and Spark's launcher read
    class_list = folder / f"{key}-{os.getpid()}-{time.time_ns()}.classes"
    return ClassArchive(str(folder), key, java, str(class_list))


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "icefloe" / "classes"


def _private(folder: Path) -> Path:
    """The folder, which no other user may write to: an archive is code."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()  # a link to it may be replaced after this check
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} belongs to others")
    return folder


def _key(java_home: Path) -> str:
    """Changes with the Java, the jars and the user's options; the JVM checks the first two again.

    Some options make it refuse the archive, and then also that of Java's own classes.
    """
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(str(package and package.origin)).parent)
    jars = sorted(Path(home, "jars").iterdir())
    files = [java_home / "lib/server/classes.jsa", *jars]
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    options = [os.environ.get(place, "") for place in _JVM_OPTION_PLACES]
    return sha256(json.dumps([str(java_home), facts, options]).encode()).hexdigest()[:16]


def _listed_bytes(archive: Path) -> int:
    """The length of the list that an archive was made of, which is part of its name."""
    with suppress(ValueError):
        return int(archive.stem.rpartition("-")[2])
    return -1


def _delete_stale(folder: Path) -> None:
    now = time.time()
    for file in folder.iterdir():
        limit = _UNUSED_S if file.suffix in (".jsa", ".failed") else _STALE_S
        with suppress(OSError):
            if file.suffix and now - file.stat().st_mtime > limit:
                file.unlink()


# -------------------------------------------------------------------------------------------------
# Making an archive, in a process of its own


@dataclass(frozen=True, slots=True)
class _Dump:
    archive: ClassArchive
    jvm: int  # the process that writes the list
    class_path: str
    options: tuple[str, ...]


def _start_dump(task: _Dump) -> None:
    """Start the process, if the list has more than the archive; it outlives this one."""
    class_list = Path(task.archive.class_list)
    with suppress(OSError):
        if task.archive.has_enough(class_list) or _failed(task.archive).exists():
            class_list.unlink()
            return
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        with process.stdin as stdin:  # type: ignore[union-attr]
            stdin.write(json.dumps(asdict(task)).encode())


def dump(task: _Dump) -> bool:
    """Make the archive of a list that is complete; whether there is a new one."""
    class_list = Path(task.archive.class_list)
    try:
        with _only_one(task.archive):
            if not _has_ended(task.jvm) or task.archive.has_enough(class_list):
                return False
            return _make(task, class_list)
    except BlockingIOError:  # another process makes one
        return False
    finally:
        class_list.unlink(missing_ok=True)


def _make(task: _Dump, class_list: Path) -> bool:
    name = f"{task.archive.key}-{class_list.stat().st_size}"
    unfinished = class_list.with_suffix(".unfinished")
    command = [task.archive.java, *task.options, "-Xshare:dump", "-Xlog:cds*=off"]
    command += [f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={unfinished}"]
    command += ["-cp", task.class_path]
    old = task.archive.file
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DUMP_S, check=False)  # noqa: S603
        if done.returncode or not unfinished.exists():
            _failed(task.archive).touch()  # no session tries again
            return False
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())  # the JVM does not check what is in it
        unfinished.rename(class_list.with_name(f"{name}.jsa"))
        if old is not None:
            old.unlink()
        return True
    finally:
        unfinished.unlink(missing_ok=True)


def _failed(archive: ClassArchive) -> Path:
    return Path(archive.folder) / f"{archive.key}.failed"


@contextmanager
def _only_one(archive: ClassArchive) -> Iterator[None]:
    import fcntl  # noqa: PLC0415 - Windows, where no archives are made, has no such module

    with Path(archive.folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _has_ended(process: int) -> bool:
    deadline = time.monotonic() + _JVM_EXIT_S
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def main() -> None:
    """Run `dump` with the lowest priority."""
    fields = json.load(sys.stdin)
    archive = ClassArchive(**fields.pop("archive"))
    os.nice(19)
    dump(_Dump(archive, fields["jvm"], fields["class_path"], tuple(fields["options"])))


if __name__ == "__main__":
    main()
