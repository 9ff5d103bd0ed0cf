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

from icefloe.cli.actions import Place, worker_on
from icefloe.cli.output import Format, Output, size, stdout
from icefloe.cli.records import Records, of_dicts
from icefloe.cli.shell import Shell
from icefloe.errors import IcefloeError, StatementError
from icefloe.results import DmlResult

# -------------------------------------------------------------------------------------------------
# The chapters of the demo: what is said, and the statements that are shown and run.

TABLE = "shop.orders"

_ORDERS = """
  SELECT id,
         element_at(array('us', 'eu', 'asia'), int(id % 3) + 1) AS region,
         date_add(DATE '2026-01-01', int(id / 4000)) AS day,
         concat('customer-', id % 997) AS customer,
         cast({amount} AS decimal(10, 2)) AS amount,
         {status} AS status
  FROM range({ids})""".rstrip()


def _orders(ids: str, amount: str = "id % 5000 / 10", status: str = "'new'") -> str:
    return _ORDERS.format(ids=ids, amount=amount, status=status)


@dataclass(frozen=True, slots=True)
class Chapter:
    """Some words and the statements after them; `{loaded}` is the snapshot of the load."""

    title: str
    words: str
    statements: tuple[str, ...]
    fails: bool = False


CHAPTERS = (
    Chapter(
        "Load 20,000 orders of five days",
        "A table partitioned by region and day: one file for each region of each day.",
        (
            """\
CREATE TABLE shop.orders (
  id BIGINT NOT NULL, region STRING, day DATE, customer STRING, amount DECIMAL(10, 2),
  status STRING
) PARTITIONED BY (region, days(day))""",
            f"INSERT INTO shop.orders{_orders('20000')}",
            "SELECT * FROM shop.orders ORDER BY id LIMIT 5",
        ),
    ),
    Chapter(
        "Update a few rows",
        "Ask first: which files would be looked at, which are ruled out, and why. Then do it. The "
        "old files stay as they are; new rows and a list of deleted positions go beside them.",
        (
            "EXPLAIN UPDATE shop.orders SET status = 'late' WHERE region = 'eu' AND amount > 499",
            "UPDATE shop.orders SET status = 'late' WHERE region = 'eu' AND amount > 499",
        ),
    ),
    Chapter(
        "The same by copy-on-write",
        "A property of the table decides how. Now the one file that holds such rows is written "
        "anew, and readers have nothing to apply.",
        (
            "ALTER TABLE shop.orders SET TBLPROPERTIES ('write.update.mode' = 'copy-on-write')",
            """\
UPDATE shop.orders SET amount = amount * 2
WHERE region = 'us' AND day = DATE '2026-01-02' AND customer = 'customer-7'""",
        ),
    ),
    Chapter(
        "Merge a change feed",
        "Orders 19,700 and later: changed, cancelled, new. Their keys rule out the files of all "
        "other days before a row is read.",
        (
            """\
CREATE TABLE shop.changes AS
SELECT if(id >= 20000, 'insert', if(id % 5 = 0, 'delete', 'update')) AS op, *
FROM ("""
            + _orders("19700, 20300", "id / 100", "'paid'")
            + ")",
            "SELECT op, count(*) AS changes FROM shop.changes GROUP BY op ORDER BY op",
            """\
MERGE INTO shop.orders AS o USING shop.changes AS c ON o.id = c.id
WHEN MATCHED AND c.op = 'delete' THEN DELETE
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND c.op <> 'delete' THEN INSERT *""",
        ),
    ),
    Chapter(
        "Replace a day",
        "The third of January was loaded wrong. Its files go and new ones come in one commit; no "
        "old file is opened, and nobody sees the day empty.",
        (
            "INSERT INTO shop.orders REPLACE WHERE day = DATE '2026-01-03'"
            + _orders("8000, 11900", status="'corrected'"),
        ),
    ),
    Chapter(
        "Delete",
        "A region's day falls on the borders of files: metadata alone. One customer is in nearly "
        "all files: with `auto` each is rewritten or gets a list of positions, by how many of "
        "its rows go.",
        (
            "DELETE FROM shop.orders WHERE region = 'asia' AND day = DATE '2026-01-01'",
            "ALTER TABLE shop.orders SET TBLPROPERTIES ('write.delete.mode' = 'auto')",
            "DELETE FROM shop.orders WHERE customer = 'customer-13'",
        ),
    ),
    Chapter(
        "Travel in time",
        "One snapshot per statement, and every one of them can still be read.",
        (
            """\
SELECT committed_at, summary['icefloe.operation'] AS statement, summary['icefloe.mode'] AS mode,
       summary['total-data-files'] AS data_files, summary['total-delete-files'] AS delete_files
FROM shop.orders.snapshots ORDER BY committed_at""",
            """\
SELECT 'now' AS what, count(*) AS orders, sum(amount) AS amount FROM shop.orders
UNION ALL
SELECT 'as loaded', count(*), sum(amount)
FROM shop.orders VERSION AS OF {loaded}""",
        ),
    ),
    Chapter(
        "Mistakes change nothing",
        "Each of these is refused before anything is published, and says what to do.",
        (
            "DELETE FORM shop.orders",
            "UPDATE shop.orders SET amuont = 0",
            "DELETE FROM shop.orders WHERE rand() < 0.5",
            "UPDATE shop.orders SET amount = 'a lot' WHERE id = 1",
            """\
MERGE INTO shop.orders AS o
USING (VALUES (1, 'paid'), (1, 'lost') AS v(id, status)) AS c ON o.id = c.id
WHEN MATCHED THEN UPDATE SET status = c.status""",
            "INSERT INTO shop.orders REPLACE WHERE day = DATE '2026-01-03'" + _orders("7999, 8001"),
        ),
        fails=True,
    ),
)


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
