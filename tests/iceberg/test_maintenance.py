"""icefloe's upkeep of tables that the reference wrote, and the reference's of tables after ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.tables import data_files, delete_files
from support.two_engines import Both, row

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]


@pytest.mark.parametrize("partition_by", [(), ("region",)])
def test_upkeep_of_a_table_that_both_write(both: MakeBoth, partition_by: tuple[str, ...]) -> None:
    """Compaction, manifests, history and orphans: after each, both engines have the same rows."""
    table = both().made_by_reference(partition_by)
    for start in (0, 8, 16):
        table.insert(map(row, range(start, start + 8)))
    table.sql("DELETE FROM {t} WHERE id % 3 = 0")
    table.expect(lambda r: None if r["id"] % 3 == 0 else r)
    table.sql("UPDATE {t} SET n = 1 WHERE id % 4 = 1")
    table.expect(lambda r: {**r, "n": 1} if r["id"] % 4 == 1 else r)
    table.check()

    done = table.ours.compact()

    table.check()
    assert done.rows_copied == len(table.expected)
    assert delete_files(table.ours) == []
    assert table.sql("SELECT operation FROM {t}.snapshots").collect()[-1][0] == "replace"
    assert table.call("rewrite_data_files").rewritten_data_files_count == 0
    assert table.ours.compact().snapshot_id is None

    table.sql("DELETE FROM {t} WHERE id = 7")
    table.expect(lambda r: None if r["id"] == 7 else r)
    table.append([row(30)])
    table.check()
    table.ours.rewrite_manifests()
    table.check()

    later = datetime.now(UTC) + timedelta(seconds=2)
    gone = table.ours.expire_snapshots(older_than=later)
    assert len(gone.snapshots_expired) >= 8
    assert gone.files_failed == ()
    table.check()
    removed = table.ours.remove_orphans(older_than=later, dry_run=False, allow_recent=True)
    assert removed.files_failed == ()
    table.check()
    table.insert([row(40)])
    table.call("rewrite_data_files", "options => map('min-input-files', '2')")
    table.check()
    assert data_files(table.ours)


@pytest.mark.parametrize("partition_by", [(), ("region",)])
def test_sidecars_of_live_files_survive_the_reference(
    both: MakeBoth, partition_by: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Its clean-up knows nothing of indexes; files that it writes have no sidecar until asked."""
    table = both().made_by_reference(partition_by)
    table.insert(map(row, range(40)))
    table.ours.create_index("by_id", "btree", ["id"])
    table.append([row(number) for number in range(40, 80)])
    table.insert(map(row, range(80, 120)))
    [listed] = table.ours.indexes().collect()
    written = len(data_files(table.ours))
    assert 0 < listed.files_covered < listed.files == written
    table.sql("DELETE FROM {t} WHERE id = 41")
    table.expect(lambda r: None if r["id"] == 41 else r)

    folder = Path(table.ours.location.removeprefix("file://"))
    orphan = folder / "data" / "orphan.parquet"
    orphan.write_bytes(b"an orphan")
    two_days_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    for path in folder.rglob("*"):
        os.utime(path, (two_days_ago, two_days_ago))
    later = datetime.now(UTC) + timedelta(seconds=2)
    table.call("expire_snapshots", f"older_than => TIMESTAMP '{later:%Y-%m-%d %H:%M:%S}'")
    yesterday = datetime.now(UTC) - timedelta(hours=25)
    table.call("remove_orphan_files", f"older_than => TIMESTAMP '{yesterday:%Y-%m-%d %H:%M:%S}'")

    assert not orphan.exists()
    [after] = table.ours.indexes().collect()
    assert (after.files, after.files_covered) == (written, listed.files_covered)
    assert table.ours.create_index("by_id", "btree", ["id"]).files_covered == written
    plan = str(table.ours.delete().where("id IN (3, 50, 100)").explain())
    assert "index by_id" in plan
    assert "not used for" not in plan
    table.ours.delete().where("id IN (3, 50, 100)").execute()
    table.expect(lambda r: None if r["id"] in (3, 50, 100) else r)
    table.check()
    assert "is not used" not in caplog.text
    table.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    table.check()
    assert table.ours.scan(where="id = 7").count() == 1
