"""Requests of statements, by kind: one for each small file, none that lists or renames to publish."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from icefloe import Table
from icefloe.scan import row_counts
from support.http_proxy import rest_kind, s3_kind

pytestmark = [pytest.mark.s3, pytest.mark.spark]

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
NOTHING_KEPT = {"io.manifest.cache-enabled": "false"}


@pytest.fixture(params=["sqlite", "rest"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(open_lake, kind, new_name) -> Table:
    """Six files of ten rows in six manifests."""
    table = open_lake(kind, **NOTHING_KEPT).create_table(new_name, SCHEMA)
    for first in range(0, 60, 10):
        table.append([{"id": number, "n": 0} for number in range(first, first + 10)])
    return table


def test_a_commit_lists_nothing_and_renames_nothing(table, kind, s3_proxy, request):
    catalog = request.getfixturevalue("rest_proxy") if kind == "rest" else None
    first = len(catalog.log) if catalog else 0
    with s3_proxy.counting(s3_kind) as counts:
        table.append([{"id": 60, "n": 0}])
    writes = {name: number for name, number in counts.items() if not name.startswith("GET")}
    expected = {"PUT data file": 1, "PUT manifest": 1, "PUT manifest list": 1}
    assert writes == (expected if catalog else {**expected, "PUT metadata": 1})
    if catalog:
        requests = Counter(rest_kind(request) for request in catalog.log[first:])
        assert requests["commit"] == 1
        assert set(requests) <= {"commit", "load table"}


def test_planning_reads_each_manifest_with_one_request(table, s3_proxy):
    before = len(s3_proxy.log)
    plan = table.delete().where("id = 5").explain()
    assert plan.manifests_read + plan.manifests_skipped == 6
    planned = s3_proxy.log[before:]
    read = Counter(request.path for request in planned if s3_kind(request) == "GET manifest")
    assert set(read.values()) == {1}
    assert len(read) == plan.manifests_read
    kinds = {s3_kind(request) for request in planned}
    assert kinds <= {"GET metadata", "GET manifest list", "GET manifest"}


@pytest.mark.changed_by("spark")
@pytest.mark.parametrize("by_tasks", [True, False], ids=["by tasks", "by the driver"])
def test_footers_are_read_with_one_ranged_request_each(table, by_tasks, s3_proxy, monkeypatch):
    """Before rows are changed, files are looked at whether they have as many as the metadata says."""
    row_counts.seen.clear()
    monkeypatch.setattr(row_counts, "_MOST_BY_DRIVER", 0 if by_tasks else 256)
    before = len(s3_proxy.log)
    table.update().set("n", "n + 1").where("id % 10 = 3").execute()
    requests = [r for r in s3_proxy.log[before:] if s3_kind(r).endswith("data file")]
    footers = [r for r in requests if r.client != "Spark" and r.method in ("GET", "HEAD")]
    assert set(Counter(request.path for request in footers).values()) == {1}, footers
    assert len(footers) == 6
    assert [row.n for row in table.scan(where="id = 13").collect()] == [1]
