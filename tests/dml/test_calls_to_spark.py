"""How many calls to the JVM a statement makes: each takes a tenth of a millisecond or more.

A limit is what the statement takes now and a little more. One that needs fewer calls gets a lower
limit; one that needs more needs a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icefloe import Table

_RELEASES = "m\n"  # of an object that Python no longer has, whenever it collects garbage
WIDE = [f"c{i}" for i in range(40)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls to the JVM so far."""
    made: list[str] = []
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> object:
        if not command.startswith(_RELEASES):
            made.append(command)
        return send(connection, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    yield made


def statements(table: Table, source: DataFrame) -> dict[str, Callable[[], object]]:
    merge = table.merge(source, "target.id = source.id")
    return {
        "scan": lambda: table.scan(where="id = 7").collect(),
        "scan by Column": lambda: table.scan(where=F.col("id") == 7).collect(),
        "delete": table.delete().where("id % 50 = 7").execute,
        "update": table.update().set("c1", "c1 + 1").where("id % 50 = 8").execute,
        "upsert": table.upsert(source, ["id"]).execute,
        "merge": merge.when_matched("source.c1 > 3")
        .update({"c1": "source.c1"})
        .when_not_matched()
        .insert_all()
        .execute,
        "rewrite": table.upsert(source, ["id"]).with_options(mode="copy-on-write").execute,
    }


@pytest.mark.parametrize(
    ("names", "limits"),
    [
        pytest.param(
            ["c1", "c2"],
            {
                "scan": 48,
                "scan by Column": 52,
                "delete": 165,
                "update": 275,
                "upsert": 400,
                "merge": 510,
                "rewrite": 505,
            },
            id="3 columns",
        ),
        pytest.param(
            WIDE,
            {
                "scan": 88,
                "scan by Column": 92,
                "delete": 205,
                "update": 505,
                "upsert": 670,
                "merge": 930,
                "rewrite": 930,
            },
            id="41 columns",
        ),
    ],
)
@pytest.mark.every_variant
def test_calls_do_not_creep_in(lake, spark, calls, names, limits):
    rows = spark.range(100).selectExpr("id", *(f"CAST(id AS INT) AS {name}" for name in names))
    table = lake.create_table("t", rows)
    table.append(rows)
    made = {}
    for name, run in statements(table, rows.filter("id < 10")).items():
        before = len(calls)
        run()
        made[name] = len(calls) - before
    assert all(0 < made[name] <= limit for name, limit in limits.items()), made
