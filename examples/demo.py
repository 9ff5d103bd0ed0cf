"""A few minutes in the life of an orders table: load, correct, erase, travel in time.

Runs on the embedded default: a SQLite catalog and files in ./demo-lake, made anew each time.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import icefloe
from icefloe import DmlResult, Table

FOLDER = Path("demo-lake")


def title(text: str) -> None:
    print(f"\n\033[1m── {text} {'─' * max(0, 74 - len(text))}\033[0m")


def told(result: DmlResult) -> None:
    print(
        f"   {result.operation}: {result.rows_inserted:,} inserted, {result.rows_updated:,} "
        f"updated, {result.rows_deleted:,} deleted, {result.rows_copied:,} copied"
    )
    print(
        f"   files: +{result.data_files_added} -{result.data_files_removed} data, "
        f"+{result.delete_files_added} -{result.delete_files_removed} deletes; looked at "
        f"{result.files_scanned}, skipped {result.files_skipped}; {result.bytes_written:,} bytes "
        f"in {result.duration_s:.2f} s"
    )


def show(table: Table, where: str | None = None) -> None:
    table.scan(where=where).orderBy("id").show(6, truncate=False)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    lake = icefloe.connect(FOLDER)

    title("Load 200,000 orders into a table partitioned by region and day")
    orders = lake.create_table(
        "shop.orders",
        "id BIGINT NOT NULL, region STRING, day DATE, customer STRING, amount DECIMAL(10,2), "
        "status STRING",
        partition_by=["region", "days(day)"],
    )
    generated = lake.spark.range(200_000).selectExpr(
        "id",
        "element_at(array('us', 'eu', 'asia'), int(id % 3) + 1) AS region",
        "date_add(DATE '2026-01-01', int(id % 4)) AS day",
        "concat('customer-', id % 997) AS customer",
        "cast(id % 5000 / 10 AS decimal(10,2)) AS amount",
        "'new' AS status",
    )
    told(orders.append(generated))
    show(orders)
    loaded, before = orders.snapshot_id, datetime.now(UTC)

    title("What would an UPDATE do? Ask before")
    late = orders.update().set("status", "'late'").where("region = 'eu' AND amount > 499")
    print(late.explain())

    title("UPDATE, merge-on-read: new rows beside the old files, which stay as they are")
    told(late.execute())
    show(orders, "status = 'late'")

    title("UPDATE, copy-on-write: the one touched file is written anew, no delete files")
    told(
        orders.update()
        .set("amount", "amount * 2")
        .where("region = 'us' AND day = DATE '2026-01-02' AND customer = 'customer-7'")
        .with_options(mode="copy-on-write")
        .execute()
    )

    title("DELETE a whole day of a region: metadata alone, no file is opened")
    told(orders.delete().where("region = 'asia' AND day = DATE '2026-01-04'").execute())

    title("Erase a customer everywhere; `auto` chooses per file")
    told(orders.delete().where("customer = 'customer-13'").with_options(mode="auto").execute())
    erased = "customer = 'customer-13'"
    print(f"   rows of customer-13 now: {orders.scan(where=erased).count()}")
    print(f"   … and as first loaded:   {orders.scan(where=erased, snapshot_id=loaded).count()}")

    title("Bad input changes nothing")
    for wrong in ("amuont > 5", "amount + 1", "rand() < 0.5"):
        try:
            orders.delete().where(wrong).execute()
        except icefloe.errors.StatementError as error:
            print(f"   {type(error).__name__}: {error}")

    title("History: one snapshot per statement, each with what it did")
    orders.snapshots().selectExpr(
        "date_format(committed_at, 'HH:mm:ss') AS at",
        "operation",
        "summary['icefloe.mode'] AS mode",
        "summary['icefloe.rows-updated'] AS updated",
        "summary['icefloe.rows-deleted'] AS deleted",
        "summary['total-data-files'] AS data_files",
        "summary['total-delete-files'] AS delete_files",
    ).show(truncate=False)
    print(f"   rows now {orders.count():,}, before {orders.scan(as_of=before).count():,}")

    title("Roll back to the load")
    orders.rollback(loaded)
    print(f"   rows {orders.count():,}; the lake stays in ./{FOLDER} for a look with any engine\n")
    lake.stop()


if __name__ == "__main__":
    main()
