"""`icefloe demo`: a guided tour of SQL statements on an orders table, with the cost of each."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent

from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from icefloe.cli.actions import LakeOptions, worker_on
from icefloe.cli.output import Format, Output, size, stdout
from icefloe.cli.records import Records, of_dicts
from icefloe.cli.shell import Shell
from icefloe.errors import IcefloeError, StatementError
from icefloe.results import DmlResult
from icefloe.table import Table

TABLE = "shop.orders"
_MARKER = ".icefloe-demo"  # the demo deletes only folders that contain this file
_WIDTH = 90
_SINGLE_ROWS = 1000


def run_demo(folder: Path) -> None:
    """Run the chapters on a new lake in `folder`."""
    _create_folder(folder)
    with LakeOptions(folder, None).open() as lake, worker_on(lake) as worker:
        tour = _Tour(Shell(lake, worker, Output(Format.TABLE)))
        for chapter in CHAPTERS:
            tour.run_chapter(chapter)
        tour.write_single_rows()
        tour.search_texts()
        tour.show_costs()
        tour.roll_back()
    _print_text(f"The lake is in {folder}. To explore it: icefloe --warehouse {folder} sql")


def _create_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).exists():
            raise StatementError(
                f"{str(folder)!r} is not empty and was not created by the demo, so the demo does "
                "not replace it. Set another folder with --warehouse."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).write_text("`icefloe demo` deletes this folder when it runs again.\n")


@dataclass(slots=True)
class _Tour:
    """Runs the chapters and records the cost of each statement."""

    shell: Shell
    costs: list[dict[str, object]] = field(default_factory=list)

    def run_chapter(self, chapter: Chapter) -> None:
        """Print the text of a chapter, then show and run its statements."""
        _print_heading(chapter.title)
        _print_text(chapter.text)
        for statement in chapter.statements:
            text = statement.format(loaded=self._loaded()) if "{" in statement else statement
            _print_sql(text)
            if chapter.fails:
                self._run_failing(text)
            else:
                self._run(text)

    def write_single_rows(self) -> None:
        """Insert a thousand rows one by one, read and change them, and flush them."""
        _print_heading("Insert single rows")
        _print_text(
            "A table with an inline tier takes a row as one transaction of the catalog's database: "
            "no Spark job, no file, no snapshot. Queries and statements see these rows and the "
            "files as one table, until a flush moves them to data files."
        )
        self._run_shown(
            "CREATE TABLE shop.clicks (id BIGINT, page STRING, n INT) "
            "TBLPROPERTIES ('icefloe.inline.enabled' = 'true')"
        )
        clicks = self.shell.lake.table("shop.clicks")
        _print_text(f"In Python: clicks.insert([row]) {_SINGLE_ROWS:,} times")
        started = time.monotonic()
        for number in range(_SINGLE_ROWS):
            clicks.insert([{"id": number, "page": f"page-{number % 7}", "n": 1}])
        seconds = time.monotonic() - started
        _print_text(
            f"{_SINGLE_ROWS:,} inserts in {seconds:.1f} s, {1000 * seconds / _SINGLE_ROWS:.1f} ms "
            f"each; {len(clicks.iceberg.metadata.snapshots)} snapshots"
        )
        self._run_shown("INSERT INTO shop.clicks SELECT 1000 + id, 'page-1', 1 FROM range(500)")
        self._run_shown(
            "SELECT page, count(*) AS clicks FROM shop.clicks GROUP BY page ORDER BY page LIMIT 3"
        )
        self._run_shown("UPDATE shop.clicks SET n = n + 1 WHERE id = 7")
        self._flush(clicks)
        _print_text(
            "Rows of files can be changed in the database, too, if they are few: the next flush "
            "writes the delete file."
        )
        self._run_shown("DELETE FROM shop.clicks WHERE id = 8")
        self._flush(clicks)

    def search_texts(self) -> None:
        """Find rows by key and by words with indexes."""
        _print_heading("Find rows with indexes")
        _print_text(
            "Ids in random order are in every file: bounds rule nothing out. An index beside "
            "each file says which rows have a value. A DELETE by key then runs no Spark job and "
            "reads no data file."
        )
        self._run_shown(_NOTES)
        self._run_shown("CREATE INDEX by_id ON shop.notes USING btree (id)")
        self._run_shown("DELETE FROM shop.notes WHERE id IN (7, 77, 777)")
        self._run_shown("CREATE INDEX words ON shop.notes USING bm25 (text)")
        query = '+blue -chair "lamp no" 1003'
        _print_text(f"In Python: lake.table('shop.notes').search('words', {query!r}, limit=3)")
        notes = self.shell.lake.table("shop.notes")
        started = time.monotonic()
        best = self.shell.worker.run(
            lambda _progress: notes.search("words", query, limit=3).toArrow()
        )
        seconds = time.monotonic() - started
        self.shell.output.records(of_dicts(best.to_pylist()))
        _print_text(f"{notes.count():,} texts searched in {seconds:.2f} s")
        self._run_shown("SHOW INDEXES ON shop.notes")

    def _flush(self, table: Table) -> None:
        _print_text("In Python: clicks.flush()")
        flushed = self.shell.worker.run(lambda _progress: table.flush())
        self.costs.append(_cost(flushed))
        self.shell.write(flushed)

    def show_costs(self) -> None:
        """Print the costs of all statements as one table."""
        _print_heading("The cost of each statement")
        _print_text(
            "All numbers are measured. All but the time are in the snapshot summaries, too."
        )
        self.shell.output.records(of_dicts(self.costs))

    def roll_back(self) -> None:
        """Return the table to the snapshot of the load."""
        _print_heading("Roll back to the load")
        loaded = self._loaded()
        _print_text(f'In Python: lake.table("{TABLE}").rollback({loaded})')
        table = self.shell.lake.table(TABLE)
        self.shell.worker.run(lambda _progress: table.rollback(loaded))
        self._run(f"SELECT count(*) AS orders FROM {TABLE}")  # noqa: S608  no outside text

    def _run_shown(self, text: str) -> None:
        _print_sql(text)
        self._run(text)

    def _run(self, text: str) -> None:
        output = self.shell.execute(text)
        if isinstance(output, DmlResult):
            self.costs.append(_cost(output))
        elif isinstance(output, Records) and output.names == ("plan",):
            output = self._with_short_paths(output)
        self.shell.write(output)

    def _with_short_paths(self, plan: Records) -> Records:
        """A plan whose file paths are relative to the table's data folder."""
        folder = self.shell.lake.table(TABLE).location + "/data/"
        rows = [(str(text).replace(folder, ""),) for (text,) in plan.rows]
        return replace(plan, rows=rows)

    def _run_failing(self, text: str) -> None:
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


def _print_heading(title: str) -> None:
    stdout().print()
    stdout().print(Rule(Text(title, style="bold"), align="left"), width=_WIDTH)


def _print_text(text: str) -> None:
    stdout().print(Text(text), width=_WIDTH)


def _print_sql(text: str) -> None:
    stdout().print()
    if stdout().is_terminal:
        highlighted = Syntax(text, "sql", background_color="default", word_wrap=True)
        stdout().print(Padding(highlighted, (0, 0, 0, 2)), width=_WIDTH)
    else:
        stdout().print(Text(indent(text, "  ")))


# -------------------------------------------------------------------------------------------------
# The chapters

_ORDERS = """
  SELECT id,
         element_at(array('us', 'eu', 'asia'), int(id % 3) + 1) AS region,
         date_add(DATE '2026-01-01', int(id / 4000)) AS day,
         concat('customer-', id % 997) AS customer,
         cast({amount} AS decimal(10, 2)) AS amount,
         {status} AS status
  FROM range({ids})""".rstrip()


_NOTES = """\
CREATE TABLE shop.notes AS
SELECT id * 7919 % 200000 AS id,
       concat_ws(' ', element_at(array('lost', 'late', 'broken', 'blue'), int(id % 4) + 1),
                 element_at(array('parcel', 'lamp', 'chair'), int(id % 3) + 1), 'no.', id) AS text
FROM range(200000)"""


def _orders(ids: str, amount: str = "id % 5000 / 10", status: str = "'new'") -> str:
    return _ORDERS.format(ids=ids, amount=amount, status=status)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A short text and the statements after it; `{loaded}` is the snapshot of the load."""

    title: str
    text: str
    statements: tuple[str, ...]
    fails: bool = False


CHAPTERS = (
    Chapter(
        "Load 20,000 orders from five days",
        "The table is partitioned by region and day, so the load writes one file for each region "
        "and day.",
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
        "EXPLAIN shows which files the statement will read, which it skips, and why. The UPDATE is "
        "merge-on-read: it leaves the old files unchanged, writes the new versions of the rows to "
        "new data files, and the positions of the old versions to delete files.",
        (
            "EXPLAIN UPDATE shop.orders SET status = 'late' WHERE region = 'eu' AND amount > 499",
            "UPDATE shop.orders SET status = 'late' WHERE region = 'eu' AND amount > 499",
        ),
    ),
    Chapter(
        "Update with copy-on-write",
        "A table property sets the mode. Now the statement rewrites the one file that contains "
        "matching rows. Writing costs more, but readers have no deletes to apply.",
        (
            "ALTER TABLE shop.orders SET TBLPROPERTIES ('write.update.mode' = 'copy-on-write')",
            """\
UPDATE shop.orders SET amount = amount * 2
WHERE region = 'us' AND day = DATE '2026-01-02' AND customer = 'customer-7'""",
        ),
    ),
    Chapter(
        "Merge a change feed",
        "The feed updates, deletes and inserts orders from id 19,700 on. The range of its keys "
        "excludes the files of all other days before any row is read.",
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
        "Suppose that January 3 was loaded with errors. REPLACE WHERE removes its files and adds "
        "new ones in a single commit. It reads no old file, and no reader sees the day empty.",
        (
            "INSERT INTO shop.orders REPLACE WHERE day = DATE '2026-01-03'"
            + _orders("8000, 11900", status="'corrected'"),
        ),
    ),
    Chapter(
        "Delete",
        "One region and day is a whole partition, so the first DELETE changes only metadata. One "
        "customer has rows in nearly all files. In the mode `auto` the second DELETE rewrites a "
        "file if it deletes many of its rows, and writes a delete file otherwise.",
        (
            "DELETE FROM shop.orders WHERE region = 'asia' AND day = DATE '2026-01-01'",
            "ALTER TABLE shop.orders SET TBLPROPERTIES ('write.delete.mode' = 'auto')",
            "DELETE FROM shop.orders WHERE customer = 'customer-13'",
        ),
    ),
    Chapter(
        "Time travel",
        "Each statement committed one snapshot, and every snapshot can still be queried.",
        (
            """\
SELECT committed_at, summary['icefloe.operation'] AS statement, summary['icefloe.mode'] AS mode,
       summary['total-data-files'] AS data_files, summary['total-delete-files'] AS delete_files
FROM shop.orders.snapshots ORDER BY committed_at""",
            """\
SELECT 'now' AS version, count(*) AS orders, sum(amount) AS amount FROM shop.orders
UNION ALL
SELECT 'as loaded', count(*), sum(amount)
FROM shop.orders VERSION AS OF {loaded}""",
        ),
    ),
    Chapter(
        "Errors change nothing",
        "Each of these statements fails before it commits anything, and says what is wrong.",
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
