"""A writer in a process of its own: changes a table as told, says on its output what it did.

    python writer_process.py WAREHOUSE TABLE MODE RETRIES TIMES [CONDITION]

Says "ready", waits for a line of input, then runs `n = n + 1` TIMES times (0: until it is killed).
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import icefloe


def main(warehouse: str, name: str, mode: str, retries: str, times: str, *condition: str) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = (
        builder.config("spark.driver.memory", "512m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    table = icefloe.connect(warehouse, spark=spark).table(name)
    table.count()
    say("ready")
    sys.stdin.readline()
    statement = table.update().set("n", "n + 1").with_options(mode=mode, retries=int(retries))
    statement = statement.where(condition[0]) if condition else statement
    done = 0
    while times == "0" or done < int(times):
        result = statement.execute()
        done += 1
        say(f"done {done} rows {result.rows_updated}")
    spark.stop()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
