"""The chapters of the demo: what is said, and the statements that are shown and run."""

from __future__ import annotations

from dataclasses import dataclass

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
