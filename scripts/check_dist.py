"""Check what `python -m build` made: `make dist` runs this after it.

The wheel has the files of the package and no others; it is installed into a new environment outside
of the checkout, in which the README's example, `icefloe doctor` and `icefloe demo` run and a typed
program passes mypy. The SBOM (CycloneDX) lists what was installed, with every extra.

python scripts/check_dist.py dist
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"{PROJECT['name']}-{PROJECT['version']}"
TYPED_PROGRAM = """\
from datetime import datetime

import icefloe
from icefloe import DmlResult, Lake, Table

with icefloe.connect("lake") as lake:
    opened: Lake = lake
    table: Table = lake.table("shop.orders")
    result: DmlResult = table.delete().where("id = 7").execute()
    rows: int = result.rows_deleted
    since: datetime | None = None if table.inline is None else table.inline.oldest
    reveal_type(table.merge(table.scan(), ["id"]).when_matched().delete().explain().files_skipped)
"""
WRONG_LINE = 'rows: str = icefloe.connect("lake").table("t").count()\n'


def main(folder: Path) -> None:
    """Run all checks, in the order in which one needs the other."""
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    with tempfile.TemporaryDirectory(prefix="icefloe-dist-") as made:
        home = Path(made)
        python = new_environment(home)
        install(python, str(wheel))
        try_it(python, home)
        check_types(python, home)
        extras = ",".join(sorted(PROJECT["optional-dependencies"]))
        install(python, f"{wheel}[{extras}]")
        write_sbom(python, folder / f"{NAME}.cdx.json")
    say("all checks passed")


def say(text: str) -> None:
    """Write a line of the report."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def fail(text: str) -> None:
    """End with an error."""
    raise SystemExit(f"check_dist: {text}")


# -------------------------------------------------------------------------------------------------
# What the archives have


def package_files() -> set[str]:
    """The files of the package that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "icefloe"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.splitlines())


def check_wheel(wheel: Path) -> None:
    """The wheel has exactly the package, and says what pyproject.toml says."""
    info = f"{NAME}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(info)}
        metadata = archive.read(f"{info}METADATA").decode()
        licenses = [name for name in archive.namelist() if name == f"{info}licenses/LICENSE"]
    if names != package_files():
        fail(f"the wheel differs from the package in {sorted(names ^ package_files())}")
    if "icefloe/py.typed" not in names or not licenses:
        fail("the wheel lacks py.typed or its license")
    fields = [tuple(line.partition(": ")[::2]) for line in metadata.splitlines()]
    for field in (
        ("Version", PROJECT["version"]),
        ("License-Expression", PROJECT["license"]),
        *(("Provides-Extra", extra) for extra in PROJECT["optional-dependencies"]),
    ):
        if field not in fields:
            fail(f"the metadata lacks {field}")
    python = dict(fields)["Requires-Python"]
    if sorted(python.split(",")) != sorted(PROJECT["requires-python"].split(",")):
        fail(f"the metadata requires Python {python}")
    say(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size:,} bytes")


def check_sdist(sdist: Path) -> None:
    """The sdist has the package and what it is built with, and no tests."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", *package_files()}
    if missing := needed - names:
        fail(f"the sdist lacks {sorted(missing)}")
    if stray := [name for name in names if re.match(r"tests|benchmarks|\.|build|dist", name)]:
        fail(f"the sdist has {sorted(stray)}")
    say(f"{sdist.name}: {len(names)} entries, {sdist.stat().st_size:,} bytes")


# -------------------------------------------------------------------------------------------------
# A clean environment


def new_environment(home: Path) -> Path:
    """The Python of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    return home / "venv" / "bin" / "python"


def install(python: Path, requirement: str) -> None:
    """Install with the versions of the lock."""
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "requirements.lock",
    ]
    subprocess.run([*command, requirement], check=True)


def run(home: Path, *command: str | Path, status: int = 0) -> str:
    """Run a program in the new environment's folder; its output."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "SPARK_REMOTE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=home,
        env={**kept, "XDG_STATE_HOME": str(home / "state")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != status:
        fail(f"{command[1:]} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def try_it(python: Path, home: Path) -> None:
    """Run what a new user runs."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (home / "example.py").write_text(example)
    say(run(home, python, "example.py"))
    where = run(home, python, "-c", "import icefloe; print(icefloe.__file__)")
    if not where.startswith(str(home)):
        fail(f"icefloe was imported from {where}")
    icefloe = python.parent / "icefloe"
    say(run(home, icefloe, "doctor"))
    demo = run(home, icefloe, "demo")
    say(f"icefloe demo: {len(demo.splitlines())} lines, the last: {demo.splitlines()[-1]}")


def check_types(python: Path, home: Path) -> None:
    """The types of the installed package are seen by mypy, right and wrong ones."""
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python]
    (home / "typed.py").write_text(TYPED_PROGRAM)
    seen = run(home, *mypy, "typed.py")
    if 'Revealed type is "int"' not in seen and 'Revealed type is "builtins.int"' not in seen:
        fail(f"mypy does not see the types: {seen}")
    (home / "wrong.py").write_text(f"import icefloe\n\n{WRONG_LINE}")
    run(home, *mypy, "wrong.py", status=1)
    say("mypy --strict: a program with right types passes, one with a wrong type does not")


# -------------------------------------------------------------------------------------------------
# The bill of materials


def write_sbom(python: Path, target: Path) -> None:
    """What an installation with every extra has, in CycloneDX; without paths of this machine."""
    arguments = ["--output-reproducible", "--output-format", "JSON", "--pyproject"]
    listed = subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", "environment", *arguments,
         ROOT / "pyproject.toml", python],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    bom = json.loads(listed.stdout)
    for component in bom["components"]:
        references = component.get("externalReferences", [])
        component["externalReferences"] = [
            r for r in references if not r["url"].startswith("file:")
        ]
    bom["components"] = [c for c in bom["components"] if c["name"] not in ("icefloe", "pip")]
    target.write_text(f"{json.dumps(bom, indent=2)}\n")
    names = {component["name"].lower() for component in bom["components"]}
    needed = {"pyspark", "pyiceberg", "pyarrow", "py4j", "psycopg", "usearch"}
    if needed - names or str(python.parent) in target.read_text():
        fail(f"the SBOM lacks {sorted(needed - names)}, or has paths of this machine")
    say(f"{target.name}: {len(names)} components")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
