"""What the reference's metadata tables say of tables that icefloe wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Row

from support.two_engines import Both, row

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]

NUMBERS = "id BIGINT, region STRING, n INT"
DATA, POSITION_DELETES = 0, 1
METRICS = ("value_count", "null_value_count", "nan_value_count", "lower_bound", "upper_bound")
KEPT = (
    "content",
    "file_format",
    "spec_id",
    "record_count",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "upper_bounds",
    "split_offsets",
    "equality_ids",
    "sort_order_id",
)


@pytest.mark.parametrize("partition_by", [(), ("region",), ("bucket(2, id)", "days(at)")])
def test_column_metrics_are_those_that_the_reference_writes(
    both: MakeBoth, partition_by: tuple[str, ...]
) -> None:
    theirs = both().made_by_reference(partition_by)
    ours = both().made_by_us(partition_by)
    rows = list(map(row, range(16)))
    theirs.insert(rows)
    ours.append(rows)
    expected, found = _metrics(theirs), _metrics(ours)
    assert [r["partition"] for r in found] == [r["partition"] for r in expected]
    assert found == expected


def test_column_metrics_of_hard_values_are_those_that_the_reference_writes(
    both: MakeBoth,
) -> None:
    schema = "id INT, text STRING, raw BINARY, real DOUBLE, none DOUBLE, mixed STRUCT<x: FLOAT>"
    nan, inf, top = float("nan"), float("inf"), "\U0010ffff"
    columns = [field.split()[0] for field in schema.split(", ")]
    values = [
        (1, top * 20, b"\xff" * 20, nan, nan, Row(nan)),
        (2, top, b"\xff" * 16, nan, None, Row(None)),
        (3, "", b"", nan, nan, None),
        (4, "a" * 15 + "\ud7ff" + "b", b"\x00" * 17, nan, None, Row(-inf)),
        (5, None, None, None, nan, Row(inf)),
        (6, "m" + top * 20, b"m" + b"\xff" * 20, 1.5, -1.5, Row(1.5)),
    ]
    for chosen in ([0, 1], [2, 3], [3], [4], [0], [5], range(6)):
        rows = [dict(zip(columns, values[i], strict=True)) for i in chosen]
        theirs, ours = both(schema).made_by_reference(), both(schema).made_by_us()
        theirs.insert(rows)
        ours.append(rows)
        assert _metrics(ours) == _metrics(theirs)


def test_a_rewritten_file_has_the_metrics_that_the_reference_would_write(both: MakeBoth) -> None:
    theirs, ours = both().made_by_reference(), both().made_by_us()
    rows = list(map(row, range(16)))
    theirs.insert(rows)
    ours.append(rows)
    theirs.reference_mode("copy-on-write")
    theirs.sql("UPDATE {t} SET ratio = double('NaN'), n = NULL WHERE id % 4 = 1")
    theirs.sql("DELETE FROM {t} WHERE id IN (0, 8, 15)")
    changing = ours.ours.update().set("ratio", "double('NaN')").set("n", "NULL")
    changing.where("id % 4 = 1").with_options(mode="copy-on-write").execute()
    ours.ours.delete().where("id IN (0, 8, 15)").with_options(mode="copy-on-write").execute()
    assert _metrics(ours) == _metrics(theirs)


def test_files_partitions_and_position_deletes_are_counted_right(both: MakeBoth) -> None:
    t = both(NUMBERS).made_by_us(("region",))
    regions = {"eu": range(10), "us": range(10, 15), None: range(15, 18)}
    rows = [{"id": i, "region": r, "n": 0} for r, ids in regions.items() for i in ids]
    t.append(rows)
    t.append([{"id": 20, "region": "eu", "n": 0}])
    doomed = t.sql("SELECT _file, _pos, region FROM {t} WHERE id IN (2, 3, 12)").collect()
    t.ours.delete().where("id IN (2, 3, 12)").execute()
    t.ours.update().set("n", "1").where("id = 20 OR region IS NULL").execute()
    t.expect(lambda r: None if r["id"] in (2, 3, 12) else r)
    t.expect(lambda r: {**r, "n": 1} if r["id"] == 20 or r["region"] is None else r)
    t.check()

    files = t.sql("SELECT content, partition.region, record_count FROM {t}.files").collect()
    # The files of NULL and of id 20 went whole, so the update replaced them.
    assert Counter(map(tuple, files)) == Counter(
        [
            (DATA, "eu", 10),
            (DATA, "us", 5),
            (DATA, None, 3),
            (DATA, "eu", 1),
            (POSITION_DELETES, "eu", 2),
            (POSITION_DELETES, "us", 1),
        ]
    )
    partitions = t.sql(
        "SELECT partition.region, record_count, file_count, position_delete_record_count, "
        "position_delete_file_count FROM {t}.partitions"
    )
    assert sorted(map(tuple, partitions.collect()), key=str) == [
        ("eu", 11, 2, 2, 1),
        ("us", 5, 1, 1, 1),
        (None, 3, 1, 0, 0),
    ]
    named = t.sql("SELECT file_path, pos, partition.region FROM {t}.position_deletes").collect()
    assert sorted(map(tuple, named)) == sorted(map(tuple, doomed))
    _check_totals(t)


def test_summary_totals_are_a_recount_through_the_changes_of_both(both: MakeBoth) -> None:
    t = both(NUMBERS).made_by_us(("region",))
    t.append({"id": i, "region": "eu" if i % 2 else "us", "n": 0} for i in range(20))
    t.ours.delete().where("id IN (2, 3)").execute()
    t.sql("DELETE FROM {t} WHERE id IN (4, 5)")
    t.ours.update().set("n", "1").where("id < 9").with_options(mode="copy-on-write").execute()
    t.sql("UPDATE {t} SET n = 2 WHERE id = 9")
    t.ours.update().set("region", "'eu'").where("id = 10").execute()
    t.ours.overwrite_partitions([{"id": 30, "region": "us", "n": 0}])
    t.ours.delete().where("region = 'eu'").execute()
    t.sql("INSERT INTO {t} VALUES (31, 'eu', 0)")
    t.ours.truncate()
    operations = t.sql("SELECT operation FROM {t}.snapshots ORDER BY committed_at").collect()
    assert [r.operation for r in operations] == [
        "append", "delete", "delete", "overwrite", "overwrite", "overwrite", "overwrite", "delete",
        "append", "delete",
    ]  # fmt: skip
    _check_totals(t)
    assert t.ours.count() == 0


def _check_totals(t: Both) -> None:
    """Each snapshot's totals are a count of its files, and its entries what it added."""
    for snapshot in t.sql("SELECT snapshot_id, summary FROM {t}.snapshots").collect():
        files = t.sql(
            "SELECT content, record_count, file_size_in_bytes FROM {t}.files "
            f"VERSION AS OF {snapshot.snapshot_id}"
        ).collect()
        data = [f for f in files if f.content == DATA]
        deletes = [f for f in files if f.content == POSITION_DELETES]
        recount = {
            "total-data-files": len(data),
            "total-delete-files": len(deletes),
            "total-records": sum(f.record_count for f in data),
            "total-position-deletes": sum(f.record_count for f in deletes),
            "total-equality-deletes": 0,
            "total-files-size": sum(f.file_size_in_bytes for f in files),
        }
        assert {key: int(snapshot.summary[key]) for key in recount} == recount


def _metrics(t: Both) -> list[dict[str, Any]]:
    """Each data file as the reference describes it, without what an encoder may choose."""
    files = t.sql("SELECT * FROM {t}.data_files").collect()
    found = []
    for file in files:
        known = {key: file[key] for key in KEPT}
        known["partition"] = str(file.partition) if "partition" in file else None
        readable = file.readable_metrics.asDict(recursive=True)
        known["metrics"] = {c: {m: readable[c][m] for m in METRICS} for c in readable}
        known["lower_bounds"] = set(file.lower_bounds)
        known["columns"] = set(file.column_sizes)
        found.append(known)
    return sorted(found, key=lambda f: (f["partition"] or "", str(f["metrics"]["id"])))
