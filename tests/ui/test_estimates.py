"""What the page says maintenance would do, compared with what it does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from icefloe.ui.views import LakeViews
from support.indexed_tables import sidecar_of
from support.tables import data_files

pytestmark = pytest.mark.slow
SCHEMA = "id BIGINT, region STRING, n INT"


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [
        {"id": i, "region": "eu" if i % 3 else "us", "n": i} for i in range(first, first + count)
    ]


@pytest.fixture
def views(lake) -> LakeViews:
    return LakeViews(lake, "lake")


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_deletes_and_compaction(views, table_of, partition_by, granularity):
    table = table_of(
        SCHEMA,
        rows(0, 30),
        rows(30, 30),
        partition_by=partition_by,
        properties={"write.delete.granularity": granularity},
    )
    table.delete().where("n % 5 = 0").execute()
    table.append(rows(60, 30))
    table.update().set("n", "n + 1000").where("id % 7 = 1").execute()
    before = views.files(table.name, None)
    estimate = views.upkeep(table.name)["compact"]
    deleted = int(table.iceberg.current_snapshot().summary["total-position-deletes"])
    assert before["total"]["deleted"] == pytest.approx(deleted, abs=1)
    assert sum(one["deleted"] for one in before["partitions"]) == pytest.approx(deleted, abs=2)

    done = table.compact()

    views._views.clear()  # facts may be a second old
    found = views.files(table.name, None)
    assert found["total"]["files"] == estimate["files_after"]
    assert done.data_files_removed == estimate["files_in"]
    assert done.data_files_added == estimate["files_out"]
    assert estimate["rows_dropped"] == pytest.approx(deleted, abs=len(before["partitions"]) + 1)
    assert found["total"]["deleted"] == 0
    assert views.upkeep(table.name)["compact"]["files_in"] == 0


def test_expired_snapshots_and_their_files(views, table_of, monkeypatch):
    table = table_of(SCHEMA, rows(0, 5), rows(5, 5), mode="copy-on-write")
    table.update().set("n", "0").where("id < 3").execute()
    table.compact()
    later = datetime.now(UTC) + timedelta(days=30)
    monkeypatch.setattr("icefloe.inspection.upkeep.time.time", later.timestamp)
    estimate, files = views.upkeep(table.name)["expire"], views.expired(table.name)
    monkeypatch.undo()

    done = table.expire_snapshots(older_than=later)

    assert len(done.snapshots_expired) == estimate["expired"] == 3
    assert done.files_deleted == files["files"]
    assert done.data_files_deleted == files["by_kind"]["data"]
    assert 0 < files["bytes"] <= done.bytes_deleted


def test_inline_rows_and_the_coverage_of_an_index(views, table_of):
    table = table_of(SCHEMA, rows(0, 10), properties={"icefloe.inline.enabled": "true"})
    table.create_index("by_id", "btree", ["id"])
    table.insert(rows(10, 3))
    found = views.upkeep(table.name)
    assert (found["flush"]["rows"], found["flush"]["is_due"]) == (3, False)
    assert views.summary(table.name)["inline"]["rows"] == 3
    (index,) = found["indexes"]
    assert (index["name"], index["columns"], index["problem"]) == ("by_id", ["id"], None)
    assert (index["files_covered"], index["rows_covered"]) == (1, 10)
    by_index = views.opened(table.name, "id = 3")
    assert by_index["opened"] == 1
    assert by_index["notes"]

    table.flush()
    views._views.clear()
    assert views.upkeep(table.name)["flush"]["rows"] == 0
    assert views.summary(table.name)["rows"] == 13


def test_the_coverage_of_indexes_is_that_of_the_table(views, table_of):
    """Small files need no graph of vectors, and those that were written later have no words."""
    table = table_of("id BIGINT, text STRING, vec ARRAY<FLOAT>", mode="copy-on-write")
    table.create_index("by_id", "btree", "id")
    table.append([{"id": i, "text": "a b", "vec": [1.0, 2.0]} for i in range(5)])
    table.create_index("by_text", "bm25", "text")
    table.create_index("by_vec", "hnsw", "vec", exact_below=6)
    table.append([{"id": i, "text": "c", "vec": [1.0, 2.0]} for i in range(5, 12)])
    path = next(sidecar_of(table, "by_id", live) for live in data_files(table) if live.rows == 5)
    path.unlink()

    shown = {
        one["name"]: (one["files_covered"], one["rows_covered"], one["files"])
        for one in views.upkeep(table.name)["indexes"]
    }

    listed = {
        row.name: (row.files_covered, row.rows_covered, row.files)
        for row in table.indexes().collect()
    }
    assert shown == listed == {"by_id": (1, 7, 2), "by_text": (1, 5, 2), "by_vec": (1, 5, 2)}
