"""`icefloe demo`: the life of an orders table, each statement with what it cost."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent

from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from icefloe.cli.commands import Place, worker_on
from icefloe.cli.output import Format, Output, stdout
from icefloe.cli.records import Records, of_dicts
from icefloe.cli.shell import Shell
from icefloe.cli.story import CHAPTERS, TABLE, Chapter
from icefloe.cli.told import size
from icefloe.errors import IcefloeError, StatementError
from icefloe.results import DmlResult

_MARKER = ".icefloe-demo"  # only a folder that has it is ever deleted
_WIDTH = 90


def run_demo(folder: Path) -> None:
    """Tell the story on a lake made anew in `folder`."""
    _make_anew(folder)
    with Place(folder, None).opened() as lake, worker_on(lake) as worker:
        telling = _Telling(Shell(lake, worker, Output(Format.TABLE)))
        for chapter in CHAPTERS:
            telling.tell(chapter)
        telling.tell_costs()
        telling.roll_back()
    _say(f"The lake stays in {folder}. Look around: icefloe --warehouse {folder} sql")


def _make_anew(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).exists():
            raise StatementError(
                f"{str(folder)!r} is not empty and was not made by the demo: it is left alone. "
                "Choose another folder with --warehouse."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).write_text("`icefloe demo` deletes this folder when it is run again.\n")


@dataclass(slots=True)
class _Telling:
    """Runs the chapters and remembers what each statement cost."""

    shell: Shell
    costs: list[dict[str, object]] = field(default_factory=list)

    def tell(self, chapter: Chapter) -> None:
        """Say, show and run one chapter."""
        _head(chapter.title)
        _say(chapter.words)
        for statement in chapter.statements:
            text = statement.format(loaded=self._loaded()) if "{" in statement else statement
            _show_sql(text)
            if chapter.fails:
                self._refused(text)
            else:
                self._run(text)

    def tell_costs(self) -> None:
        """All statements once more, side by side."""
        _head("What each statement cost")
        _say("Every number is measured, and stands in the summary of the statement's snapshot too.")
        self.shell.output.records(of_dicts(self.costs))

    def roll_back(self) -> None:
        """End where the story began."""
        _head("Back to the load")
        loaded = self._loaded()
        _say(f'From Python: lake.table("{TABLE}").rollback({loaded})')
        table = self.shell.lake.table(TABLE)
        self.shell.worker.run(lambda _progress: table.rollback(loaded))
        self._run(f"SELECT count(*) AS orders FROM {TABLE}")  # noqa: S608  no outside text

    def _run(self, text: str) -> None:
        found = self.shell.found_by(text)
        if isinstance(found, DmlResult):
            self.costs.append(_cost(found))
        elif isinstance(found, Records) and found.names == ("plan",):
            found = self._shortened(found)
        self.shell.write(found)

    def _shortened(self, plan: Records) -> Records:
        """A plan that names files from the table's folder on."""
        folder = self.shell.lake.table(TABLE).location + "/data/"
        rows = [(str(text).replace(folder, ""),) for (text,) in plan.rows]
        return replace(plan, rows=rows)

    def _refused(self, text: str) -> None:
        try:
            self.shell.run_one(text)
        except IcefloeError as error:
            stdout().print(Text(f"{type(error).__name__}: {error}", style="red"))

    def _loaded(self) -> int:
        """The first snapshot of the table."""
        return self.shell.lake.table(TABLE).iceberg.metadata.snapshots[0].snapshot_id


def _cost(result: DmlResult) -> dict[str, object]:
    return {
        "statement": result.operation,
        "inserted": result.rows_inserted,
        "updated": result.rows_updated,
        "deleted": result.rows_deleted,
        "files read": result.files_scanned,
        "skipped": result.files_skipped,
        "added": result.data_files_added + result.delete_files_added,
        "removed": result.data_files_removed + result.delete_files_removed,
        "written": size(result.bytes_written),
        "seconds": round(result.duration_s, 2),
    }


def _head(title: str) -> None:
    stdout().print()
    stdout().print(Rule(Text(title, style="bold"), align="left"), width=_WIDTH)


def _say(words: str) -> None:
    stdout().print(Text(words), width=_WIDTH)


def _show_sql(text: str) -> None:
    stdout().print()
    if stdout().is_terminal:
        coloured = Syntax(text, "sql", background_color="default", word_wrap=True)
        stdout().print(Padding(coloured, (0, 0, 0, 2)), width=_WIDTH)
    else:
        stdout().print(Text(indent(text, "  ")))
