"""A driver in a process of its own, which tests may kill: `driver_process.py ORDERS`.

ORDERS is JSON: `properties` for `connect`, the `table`, what to `do`, the `master` of a cluster, without which
icefloe starts the session, and a folder for its `events`. "flush" needs no Spark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

import icefloe  # noqa: E402
from icefloe import Lake  # noqa: E402
from icefloe.lake import open_catalog  # noqa: E402
from icefloe.spark.connectors import session_settings  # noqa: E402
from icefloe.storage.spark_files import connectors_of  # noqa: E402
from support.store_statements import STATEMENTS, Checked  # noqa: E402

LARGE_ROWS = 12_000  # of 8 kB that cannot be compressed: parts of 8 MB are sent while a task writes


def main(orders: dict[str, Any]) -> None:
    properties, table, work = orders["properties"], orders["table"], orders["do"]
    if work == "flush":
        database = properties.pop("inline_uri")
        with Lake(open_catalog(None, None, properties), None, database) as lake:
            say("ready")
            say(f"flushed {lake.table(table).flush().rows_inserted}")
        return
    spark = session(orders, properties) if orders.get("master") else None
    with icefloe.connect(spark=spark, **properties) as lake:
        say("ready")
        if work == "append":
            say(f"appended {lake.table(table).append(large_rows(lake)).rows_inserted}")
        else:
            checked = Checked(lake, table, work)
            for name, statement in STATEMENTS.items():
                statement(checked)
                if name != "create table":
                    checked.check()
            say(json.dumps(checked.tuples))
    if spark is not None:
        spark.stop()


def session(orders: dict[str, Any], properties: dict[str, Any]) -> SparkSession:
    """A session on a cluster, whose workers know neither the store nor its keys."""
    settings = {
        **session_settings(connectors_of(properties)),
        "spark.executor.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if "events" in orders:
        settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
        settings["spark.eventLog.dir"] = orders["events"]
    builder = SparkSession.builder.master(orders["master"])
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def large_rows(lake: Lake) -> Any:
    """Rows that two tasks write, with values of which Parquet makes no less."""
    digest = F.concat(*[F.sha2(F.concat(F.col("id"), F.lit(f" {i}")), 512) for i in range(64)])
    return lake.spark.range(0, LARGE_ROWS, 1, 2).select("id", digest.alias("text"))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
