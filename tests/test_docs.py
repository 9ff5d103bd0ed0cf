"""The examples of the README, of the pages in docs/ and in examples/ run as written."""

from __future__ import annotations

import doctest
import importlib.util
import io
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb_extensions
import pytest
from typer.testing import CliRunner

import icefloe
from icefloe.cli.app import app
from icefloe.sql.parse import parse_statements
from support.rest_catalog import running_catalog

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.every_variant
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
WITH_OUTPUT = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def pages() -> list[str]:
    """README, CONTRIBUTING and the pages of docs/, relative to the root."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *(str(page.relative_to(ROOT)) for page in found)]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


# Their examples run many Spark jobs, or show nothing that those of another page do not.
SLOW_PAGES = {
    "docs/index.md",
    "docs/operators.md",
    "docs/ui.md",
    "docs/other_engines.md",
    "docs/tutorials/change_data.md",
    "docs/tutorials/erase_a_person.md",
    "docs/tutorials/keep_history.md",
    "docs/tutorials/reload_a_day.md",
    "docs/concepts/commits.md",
    "docs/concepts/inline_tier.md",
    "docs/concepts/rewrites.md",
    "docs/concepts/statements.md",
}


@pytest.mark.requirement("R27")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else [])
        for page in pages()
        if BLOCK.search(text_of(page))
    ],
)
def test_examples_run_as_written(page, spark, tmp_path, monkeypatch, capsys):
    """The worked daily reload is docs/replace_where.md; shell commands run after the Python.

    A `text` block after a `python` block is what that prints.
    """
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Polars warns without its own
    if "import duckdb" in text_of(page):
        for extension in ("avro", "iceberg"):  # in place of INSTALL, which downloads them
            duckdb_extensions.import_extension(extension)
    outputs = []
    for block, shown in WITH_OUTPUT.findall(text_of(page)):
        exec(compile(block, page, "exec"), names)
        outputs.append(capsys.readouterr().out)
        if shown:
            assert is_printed(shown, outputs[-1]), (
                f"{page} shows:\n{shown}\nPrinted:\n{outputs[-1]}"
            )
    assert any(outputs)

    for line in commands(text_of(page), "icefloe "):
        words = shlex.split(line.replace("--catalog prod", "--warehouse lake"), comments=True)
        if words[-1] == "ui":  # serves until Ctrl-C; tests/ui are about it
            continue
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{line}: {done.output}"


def is_printed(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed; … is any text within a line."""
    pattern = "[^\n]*".join(map(re.escape, without_spaces(shown).split("…")))
    return re.fullmatch(pattern, without_spaces(printed)) is not None


def without_spaces(text: str) -> str:
    """A text without spaces at the ends of its lines."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_outputs_that_differ_from_a_page_are_found():
    assert is_printed("a … c\nd\n", "\na 123 c  \nd\n\n")
    assert is_printed("(…)", "(1)")
    assert not is_printed("a … c\nd", "a 1\n2 c\nd")
    assert not is_printed("a\nd", "a\nb\nd")
    assert not is_printed("2 rows", "12 rows")


def commands(page: str, start: str) -> list[str]:
    """The commands of shell blocks that start with some words."""
    text = page.replace("\\\n", " ")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).splitlines() + re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return [line for line in lines if line.startswith(start)]


def test_every_block_is_of_a_kind_that_is_tested():
    """`text` is no code: grammars and output; tests/cli/test_notebooks.py runs `ipython`."""
    kinds = {
        (page, kind)
        for page in pages()
        for kind in re.findall(r"^```(\w*)\n.*?^```$", text_of(page), re.MULTILINE | re.DOTALL)
    }
    tested = {"python", "py", "sql", "bash", "console", "text", "ipython"}
    drawings = {("CONTRIBUTING.md", "")}
    assert {(page, kind) for page, kind in kinds if kind not in tested} - drawings == set()


def test_shell_commands_of_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    for page in pages():
        for line in commands(text_of(page), ""):
            words = shlex.split(line, comments=True)
            match words:
                case ["make", target]:
                    assert target in targets, f"{page}: {line}"
                case ["python", "-m", module, *_]:
                    assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"{page}: {line}"
                case _:
                    assert words[0] == "icefloe" or words[:2] == ["pip", "install"], line


@pytest.mark.parametrize("page", [p for p in pages() if "```sql\n" in text_of(p)])
def test_sql_of_the_pages_is_parsed(page):
    for block in re.findall(r"```sql\n(.*?)```", text_of(page), re.DOTALL):
        assert parse_statements(block)


@pytest.mark.slow
def test_inline_rows_of_another_catalog_as_documented(spark, tmp_path, monkeypatch):
    """With a REST catalog on loopback, and SQLite, in place of the addresses of the page."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```py\n(.*?)```", text_of("docs/small_writes.md"), re.DOTALL)
    database = f"sqlite:///{tmp_path}/inline.db"
    names: dict[str, Any] = {"icefloe": icefloe}
    with running_catalog(tmp_path / "rest") as server:
        block = block.replace("https://catalog.example", server.uri)
        exec(block.replace("postgresql://me:secret@db/inline", database), names)
        with names["lake"] as lake:
            inline = {"icefloe.inline.enabled": True}
            clicks = lake.create_table("web.clicks", "id BIGINT", properties=inline)
            assert clicks.insert([{"id": 1}]).mode == "inline"
            assert clicks.count() == 1


def documented_objects() -> list[doctest.DocTest]:
    """The docstrings of the public modules that have examples."""
    found = []
    for name in ("lake", "table", "builders", "results", "writer", "errors", "commands.plan"):
        module = import_module(f"icefloe.{name}")
        found += [test for test in doctest.DocTestFinder().find(module) if test.examples]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("example", documented_objects(), ids=lambda test: test.name)
def test_examples_of_docstrings_have_the_results_that_they_show(
    example, spark, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with icefloe.connect("lake", spark=spark) as lake:
        orders = lake.create_table(
            "shop.orders", "id BIGINT, region STRING, n INT", partition_by="region"
        )
        orders.append(
            [
                {"id": 1, "region": "us", "n": 10},
                {"id": 2, "region": "us", "n": 20},
                {"id": 3, "region": "eu", "n": 30},
            ]
        )
        example.globs = {"icefloe": icefloe, "lake": lake, "orders": orders}
        shown = io.StringIO()
        failed, attempted = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
            example, out=shown.write
        )
    assert (failed, attempted) == (0, len(example.examples)), shown.getvalue()


PUBLIC = ["connect", "Lake", "Table", "Update", "Delete", "Merge", "ReplaceWhere", "ReplaceUsing"]
PUBLIC += ["DmlResult", "IndexResult", "Plan", "IcefloeError", "write"]


def test_public_classes_have_examples():
    names = {test.name.rpartition(".")[2] for test in documented_objects()}
    assert set(PUBLIC) - names == set()


def test_the_reference_lists_every_call_of_a_table():
    """Add a new method or property to a section of docs/api/table.md."""
    listed = re.findall(
        r"^::: icefloe\.table\.Table\.(\w+)$", text_of("docs/api/table.md"), re.MULTILINE
    )
    public = [name for name in vars(icefloe.Table) if not name.startswith("_")]
    assert sorted(listed) == sorted(public)


@pytest.mark.slow
def test_the_change_feed_example_applies_each_event_once(spark, tmp_path, capsys):
    cdc = module_of(ROOT / "examples" / "cdc.py")

    cdc.main(tmp_path)

    lake = icefloe.connect(tmp_path / "lake")
    accounts = lake.table("bank.accounts").scan(["id", "city", "balance", "deleted"])
    assert sorted(map(tuple, accounts.collect())) == [
        (1, "Tromsø", 10, False),
        (2, "Bergen", 25, False),
        (4, "Narvik", 40, False),
    ]
    history = lake.table("bank.history").scan(["id", "city"], where="valid_to IS NULL")
    assert sorted(map(tuple, history.collect())) == [(1, "Tromsø"), (2, "Bergen"), (4, "Narvik")]
    assert lake.table("bank.history").count() == 5
    printed = capsys.readouterr().out
    assert "batch 1: rows per clause (1, 1, 1)" in printed
    assert "rows per clause (1, 1, 1), as in the first run; table changed: False" in printed


def test_the_readme_example_is_short():
    (block,) = BLOCK.findall(text_of("README.md"))
    assert len([line for line in block.splitlines() if line]) <= 15


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("page", pages())
def test_links_of_the_pages_lead_somewhere(page):
    """Pages of the site link to pages of the site: the repository has no address to link to."""
    here = ROOT / page
    for target, anchor in LINK.findall(prose(text_of(page))):
        there = (here.parent / target).resolve() if target else here
        assert there.exists(), f"{page}: {target}"
        if page.startswith("docs/"):
            assert there.is_relative_to(ROOT / "docs"), f"{page}: {target} is not on the site"
        if anchor:
            assert anchor in anchors(there.read_text()), f"{page}: {target}#{anchor}"


def prose(text: str) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "``", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page: of its headings, and of the objects that it documents."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    slugs = {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}
    documented = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    classes = {f"icefloe.errors.{name}" for name in vars(icefloe.errors)}
    return slugs | set(documented) | (classes if "icefloe.errors" in documented else set())


def test_the_page_about_installing_lists_every_extra():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    listed = re.findall(r"^\| `(\w+)` \|", text_of("docs/install.md"), re.MULTILINE)
    assert sorted(listed) == sorted(project["optional-dependencies"])


def test_every_page_is_in_the_navigation():
    """Add a new page to `nav` in mkdocs.yml."""
    listed = re.findall(r"^ +- .*?: (\S+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {f"docs/{name}" for name in listed} == {p for p in pages() if p.startswith("docs/")}


@pytest.mark.parametrize("name", ["properties.md", "errors.md"])
def test_generated_tables_are_those_of_the_code(name):
    """`make docs-tables` writes them."""
    tables = module_of(ROOT / "scripts" / "docs_tables.py")
    page = text_of(f"docs/{name}")
    assert tables.with_table(page, tables.TABLES[name]()) == page


def test_sites_that_fetch_from_other_hosts_are_found(tmp_path):
    check = module_of(ROOT / "scripts" / "check_site.py")
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="https://iceberg.apache.org">x</a><img src="a.svg"><link href="b.css">'
    )
    assert check.main([str(tmp_path)]) == 0
    page.write_text('<script src="https://cdn.example/x.js"></script>')
    (tmp_path / "a.css").write_text('@import "//fonts.example/a.css"; a { background: url(b.png) }')
    assert list(check.foreign_addresses(tmp_path)) == [
        "index.html: https://cdn.example/x.js",
        "a.css: //fonts.example/a.css",
    ]
    assert check.main([str(tmp_path)]) == 1
    assert check.main([str(tmp_path / "nothing")]) == 1


def module_of(path: Path) -> Any:
    """A module that is not part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_prints_what_its_page_shows(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```console\n(.*?)```", (ROOT / "docs/cli.md").read_text(), re.DOTALL)
    for command, shown in re.findall(r"^\$ icefloe (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        done = CliRunner().invoke(app, shlex.split(command))
        assert unmeasured(done.stdout + done.stderr) == unmeasured(shown)


def unmeasured(text: str) -> str:
    """A text without times, sizes and snapshots."""
    masked = re.sub(r"\d+\.\d (s|kB)|snapshot \d+|,\d{4,},", "…", text)
    return masked.replace("\r\n", "\n")


@pytest.mark.requirement("U40", "T38")
def test_modes_are_explained():
    text = (ROOT / "docs" / "modes.md").read_text()
    for word in ("Choosing a mode", "Troubleshooting", "partition columns", "Cast", "cast"):
        assert word.lower() in text.lower()
