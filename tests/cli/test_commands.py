"""The commands, run in this process on the session of the tests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import icefloe
from support.cli import run


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory) -> Path:
    """A lake with one table: five rows, one of them deleted."""
    found: Path = tmp_path_factory.mktemp("cli") / "lake"
    with icefloe.connect(found, spark=spark) as lake:
        orders = lake.create_table(
            "shop.orders",
            "id BIGINT NOT NULL, region STRING, day TIMESTAMP, amount DECIMAL(10,2)",
            partition_by=["region"],
        )
        orders.append([{"id": n, "region": "us", "day": None, "amount": n} for n in range(5)])
        orders.delete().where("id = 3").execute()
        lake.create_table("shop.empty", "tags ARRAY<STRING>")
    return found


def test_tables_with_their_sizes(folder):
    done = run(folder, "tables", "--format", "json")
    empty, orders = map(json.loads, done.stdout.splitlines())
    assert (empty["table"], empty["rows"], empty["data_files"]) == ("shop.empty", 0, 0)
    assert (orders["table"], orders["rows"], orders["data_files"]) == ("shop.orders", 4, 1)
    assert (orders["delete_files"], orders["partition_by"]) == (1, "region")
    assert done.exit_code == 0


def test_show_describes_a_table(folder):
    told = run(folder, "show", "shop.orders").stdout
    assert "decimal(10,2)" in told
    assert "partitioned  region" in told
    assert "rows         4 in 1 data file and 1 delete file" in told
    assert ", delete at 20" in told
    assert "write.merge.mode = merge-on-read" in told
    assert "none yet" in run(folder, "show", "shop.empty").stdout

    found = json.loads(run(folder, "--format", "json", "show", "shop.orders").stdout)
    assert found["columns"][0] == {
        "name": "id",
        "type": "bigint",
        "required": True,
        "comment": None,
    }
    assert (found["partition_by"], found["rows"], found["snapshots"]) == (["region"], 4, 2)


def test_history_names_the_statements(folder):
    done = run(folder, "history", "shop.orders", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout, newline="")))
    assert [row["statement"] for row in rows] == ["append", "delete"]
    assert rows[1]["parent_id"] == rows[0]["snapshot_id"]
    assert run(folder, "history", "shop.empty").exit_code == 0


def test_files_are_short_for_people_and_whole_for_programs(folder):
    told = run(folder, "files", "shop.orders").stdout
    assert "position deletes" in told
    assert str(folder) not in told
    found = [
        json.loads(line)
        for line in run(folder, "files", "shop.orders", "--format", "json").stdout.splitlines()
    ]
    assert sorted(file["content"] for file in found) == [0, 1]
    assert all(file["file_path"].startswith("file:") for file in found)
    assert found[0].keys() >= {"column_sizes", "value_counts", "split_offsets"}
    assert run(folder, "files", "shop.empty").exit_code == 0


def test_a_table_that_is_not_there(folder):
    done = run(folder, "show", "shop.order")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert (
        done.stderr
        == "Table shop.order does not exist. Tables of that namespace: shop.empty, shop.orders.\n"
    )


def test_looking_makes_no_lake(tmp_path):
    done = run(tmp_path / "none", "tables")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "There is no lake in" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        ["--catalog", "prod", "tables"],
        ["sql", "SELECT 1", "-f", "some.sql"],
        ["sql", "SELECT 1", "--format", "xml"],
        ["sql", "SELECT 1", "--limit", "0"],
        ["show"],
        ["compress", "shop.orders"],
        ["--catalog", "prod", "demo"],
    ],
)
def test_wrong_usage_has_a_status_of_its_own(tmp_path, wrong):
    done = run(tmp_path / "none", *wrong)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr
    assert list(tmp_path.iterdir()) == []
