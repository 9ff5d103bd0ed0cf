"""Rules of the code base that a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import icefloe
from icefloe.settings import Settings

PACKAGE = Path(icefloe.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A room may import from itself and from those of an earlier rank; rooms of one rank have no cycle.
RANKS = [
    ["version", "redaction", "display", "errors", "results", "settings"],
    ["storage", "spark", "schema", "parquet", "tasks"],
    ["metadata"],
    ["file_changes", "statements"],
    ["pruning", "deletes", "scan", "writing", "inline", "indexes"],
    ["commit"],
    ["commands"],
    ["maintenance", "inspection", "builders"],
    ["table"],
    ["sql"],
    ["lake"],
    ["writer"],
    ["ui"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
# Code that Spark's workers run is cut by what a task needs, not by who imports it.
IN_WORKERS = ("tasks", "parquet")


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(module: Path) -> str:
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


NAMES = {name_of(module): module for module in MODULES}


def imports_of(module: Path) -> list[str]:
    """What a module imports when it runs; imports for type checking alone do not count."""
    tree = ast.parse(module.read_text())
    imported = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            imported += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
    return imported


def modules_imported_by(module: Path) -> set[str]:
    """The package's modules that a module imports."""
    names = {
        name if name in NAMES else name.rpartition(".")[0]
        for name in imports_of(module)
        if name.startswith("icefloe.")
    }
    return names & set(NAMES)


def lines_of(module: Path) -> int:
    return len(module.read_text().splitlines())


def test_every_module_has_a_room():
    assert {room_of(m) for m in MODULES} - {"__init__"} == set(RANK)


def test_the_house_has_few_modules():
    modules = [m for m in MODULES if m.name != "__init__.py"]
    # 130 for what there was before the inline tier, the indexes, object stores, REST, the web page and
    # `doctor`, which have rooms and commands of their own; and what files held.
    assert len(modules) <= 205
    # 12, and `display`: results, plans, tables and lakes are shown as HTML by the same functions.
    assert len([m for m in modules if m.parent == PACKAGE]) <= 13


def test_imports_point_one_way():
    backwards = [
        f"{name_of(module)} imports {name}"
        for module in MODULES
        for name in modules_imported_by(module)
        if room_of(module) in RANK and "." in name
        if RANK.get(name.split(".")[1], -1) > RANK[room_of(module)]
    ]
    assert backwards == []


def test_no_cycle_of_rooms():
    below: dict[str, set[str]] = {}
    for module in MODULES:
        if room_of(module) in RANK:
            rooms = {name.split(".")[1] for name in modules_imported_by(module) if "." in name}
            below.setdefault(room_of(module), set()).update(rooms & set(RANK))

    def reachable(room: str, seen: frozenset[str]) -> frozenset[str]:
        for other in below.get(room, set()) - {room}:
            if other not in seen:
                seen = reachable(other, seen | {other})
        return seen

    assert [room for room in below if room in reachable(room, frozenset())] == []


def test_small_modules_have_two_importers():
    """A module under 80 lines that one other module imports is a section of that module."""
    importers: dict[str, set[str]] = {}
    for module in MODULES:
        for name in modules_imported_by(module):
            importers.setdefault(name, set()).add(name_of(module))
    small = [
        f"{name} ({lines_of(module)} lines) is used by {importers.get(name, set())}"
        for name, module in NAMES.items()
        if module.stem not in ("__init__", "__main__", "version")
        and room_of(module) not in IN_WORKERS
        and lines_of(module) < 80
        and len(importers.get(name, set())) <= 1
    ]
    assert small == []


def test_public_class_names_are_unique():
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(module))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_functions_have_at_most_six_parameters():
    long = [
        f"{name_of(module)}.{node.name}: {count} parameters"
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef)
        if (count := _parameters(node)) > 6 and not _is_public_api(module, node)
    ]
    assert long == []


def _parameters(node: ast.FunctionDef) -> int:
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _is_public_api(module: Path, node: ast.FunctionDef) -> bool:
    """Calls that users write have as many named options as they need."""
    return module.stem in ("lake", "table", "app") and not node.name.startswith("_")


def test_no_context_variables():
    assert [name_of(m) for m in MODULES if "ContextVar" in m.read_text()] == []


def test_tasks_import_nothing_that_workers_lack():
    allowed = ("icefloe.tasks", "icefloe.parquet", "icefloe.storage.filesystem")
    strangers = [
        f"{module.name} imports {name}"
        for module in (
            *(PACKAGE / "tasks").glob("*.py"),
            *(PACKAGE / "parquet").glob("*.py"),
            PACKAGE / "storage" / "filesystem.py",
        )
        for name in imports_of(module)
        if name.split(".")[0] in ("icefloe", "pyiceberg", "pyroaring", "sqlglot", "pandas")
        and not name.startswith(allowed)
    ]
    assert strangers == []


def test_files_are_created_and_deleted_in_storage_alone():
    """So that an object store is a change of one room."""
    by_hand = re.compile(
        r"\.(open_output_stream|new_output|delete_file|create_dir|type_name)\b|"
        r"\bio\.delete\(|LocalFileSystem|S3FileSystem|FileSelector|\bs3[an]?:"
    )
    outside = [
        f"{name_of(module)}: {hit[0]}"
        for module in MODULES
        if room_of(module) != "storage"
        for hit in by_hand.finditer(module.read_text())
    ]
    assert outside == []


def test_private_names_of_pyiceberg_stay_in_metadata():
    private = re.compile(r"from pyiceberg\S* import .*\b_\w+|pyiceberg\S*\._\w+")
    outside = [
        str(module.relative_to(PACKAGE))
        for module in MODULES
        if (
            room_of(module) != "metadata"
            and any(
                name.startswith("pyiceberg")
                and any(part.startswith("_") for part in name.split("."))
                for name in imports_of(module)
            )
        )
        or (room_of(module) != "metadata" and private.search(module.read_text()))
    ]
    assert outside == []


def test_modules_fit_one_sitting():
    too_long = [
        f"{module.relative_to(PACKAGE)}: {len(module.read_text().splitlines())} lines"
        for module in MODULES
        if len(module.read_text().splitlines()) > 500
    ]
    assert too_long == []


def test_every_setting_is_read_somewhere():
    code = "\n".join(m.read_text() for m in MODULES if m.name != "settings.py")
    through_methods = {f.name for f in fields(Settings) if f.name.endswith(("_mode", "_isolation"))}
    unread = [
        f.name
        for f in fields(Settings)
        if f"settings.{f.name}" not in code and f.name not in through_methods
    ]
    assert unread == []


def test_public_names():
    assert set(icefloe.__all__) == {
        "DmlResult",
        "ExpireResult",
        "Lake",
        "OrphansResult",
        "RewriteManifestsResult",
        "Table",
        "__version__",
        "connect",
        "errors",
        "write",
    }


def test_contributing_names_what_exists():
    """`folder/module.py: name` in CONTRIBUTING is a module and a name that it defines."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    missing = []
    for path, name in re.findall(r"`([a-z_/]+\.py)(?:: ([A-Za-z_.]+))?`", text):
        module = PACKAGE / path
        if not module.exists():
            if not (PACKAGE.parent / path).exists():
                missing.append(path)
        elif name and not _defines(ast.parse(module.read_text()), name.split(".")):
            missing.append(f"{path}: {name}")
    assert missing == []


def _defines(node: ast.Module | ast.ClassDef, names: list[str]) -> bool:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == names[0]:
            return len(names) == 1 or (
                isinstance(child, ast.ClassDef) and _defines(child, names[1:])
            )
    return False
