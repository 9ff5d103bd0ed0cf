"""MERGE runs on tables without partitions and with three kinds of them, from two kinds of source.

The driver holds few source rows, Spark keeps many. A test takes one of the two, by its name, and
both with the slow tests, where each mode and each layout sees both.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import pytest
from pyspark.sql import SparkSession

from icefloe.commands.merge import command

LAYOUTS = [
    pytest.param((), id="unpartitioned"),
    pytest.param(("region",), id="identity"),
    pytest.param(("bucket(4, id)",), id="bucket"),
    pytest.param(("days(ts)",), id="days"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Files whose tables have the columns for it run in all layouts."""
    if "kept_by" in metafunc.fixturenames:
        metafunc.parametrize("kept_by", _kept_by(metafunc.definition), indirect=True)
    if "partition_by" in metafunc.fixturenames:
        layouts = LAYOUTS if _has_all_columns(metafunc.module) else LAYOUTS[:2]
        metafunc.parametrize("partition_by", layouts, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the combinations of modes, layouts and cases, each is run with one keeper of the source.

    They alternate like the squares of a chess board. A test with fewer than three other
    combinations has all of its variants, and what `make test` runs is never left out.
    """
    by_function: dict[str, list[pytest.Item]] = {}
    for item in items:
        if "kept_by" in getattr(getattr(item, "callspec", None), "params", ()):
            by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {
        item
        for name, variants in by_function.items()
        if len(variants) > 4 and len({v.callspec.params["kept_by"] for v in variants}) == 2
        for item in variants
        if (sum(item.callspec.indices.values()) + crc32(name.encode())) % 2
        and item.get_closest_marker("slow") is not None
    }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _has_all_columns(module: object) -> bool:
    return "ts TIMESTAMP" in getattr(module, "SCHEMA", "")


def _kept_by(test: pytest.Item) -> list[object]:
    marker = test.get_closest_marker("kept_by")
    if marker is not None:
        return list(marker.args)
    first, second = ("driver", "spark") if crc32(test.name.encode()) % 2 else ("spark", "driver")
    return [first, pytest.param(second, marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def kept_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who keeps the rows of small sources."""
    if request.param == "spark":
        monkeypatch.setattr(command, "held_rows", lambda *_: None)
    return str(request.param)


@pytest.fixture
def partition_by(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture
def shuffled(spark: SparkSession) -> Iterator[None]:
    """No side of a join may be broadcast."""
    setting = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "-1")
    yield
    spark.conf.set(setting, before)
