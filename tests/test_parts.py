"""The parts of a statement, one by one, without a statement around them."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyroaring import BitMap64
from pyspark.sql import functions as F

from icefloe import errors
from icefloe.commit.catalog import LostRaceError, with_retries
from icefloe.commit.snapshot import ManifestChanges, RemovedFiles, SnapshotDraft, operation_of
from icefloe.deletes.position_deletes import (
    DeletePartition,
    read_position_deletes,
    write_position_deletes,
)
from icefloe.deletes.row_positions import as_array, as_bitmap, as_words, unite
from icefloe.file_changes import RemoveFiles
from icefloe.metadata.files import unpartitioned_specs
from icefloe.scan import scan as scan_module
from icefloe.scan.file_keys import FileKeys, by_file
from icefloe.settings import RetryPolicy
from icefloe.spark import columns
from icefloe.statements import RowStatement
from icefloe.tasks import old_file
from icefloe.tasks.messages import ChangeColumns, PositionCollector, pack, unpack
from icefloe.tasks.new_versions import write_new_versions
from icefloe.tasks.old_file import Edits
from icefloe.tasks.rewrite import FileToRewrite, RewritePlan, rewrite_file
from icefloe.tasks.write import FileLayout, write_rows
from icefloe.writing.data_files import find_rows, write_data
from support.tables import data_files, delete_files, rows

SCHEMA = "id BIGINT, region STRING, n INT"
ROWS = [{"id": i, "region": "us" if i % 2 else "eu", "n": i} for i in range(1, 7)]


def layout(folder: Path, **changes) -> FileLayout:
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    options = {
        "schema": pa.schema([field]),
        "filesystem": pafs.LocalFileSystem(),
        "folder": str(folder),
        "location": f"file://{folder}",
        "statement_id": "s",
        "target_file_bytes": 1 << 20,
        "row_group_bytes": 1 << 20,
        "row_group_rows": 1000,
        "parquet": {"compression": "zstd"},
    }
    return FileLayout(**{**options, **changes})


def told(batches) -> list[dict]:
    import pickle  # noqa: PLC0415

    return [pickle.loads(value) for batch in batches for value in batch.column(0).to_pylist()]


@pytest.mark.requirement("U14")
def test_the_statement_builder_gathers_and_does_nothing(table_of):
    table = table_of(SCHEMA, ROWS)
    before = table.snapshot_id

    first = table.update().set("n", "1")
    second = first.set("region", "'x'").where("id = 1").with_options(retries=2)

    assert first._statement == RowStatement(first._statement.kind, None, (("n", "1"),))
    assert second._statement.assignments == (("n", "1"), ("region", "'x'"))
    assert second._statement.options.retries == 2
    assert table.snapshot_id == before


@pytest.mark.requirement("U14")
def test_scan_and_label_finds_rows_by_file_and_position(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    from icefloe.pruning.candidates import plan_files  # noqa: PLC0415
    from icefloe.pruning.comparisons import ALWAYS  # noqa: PLC0415

    state = table._state()
    scan = scan_module.Scan.of(table._lake.spark, state, plan_files(state, ALWAYS).candidates)

    found = find_rows(scan.rows().filter("id IN (1, 3, 5)"))

    positions = sorted(sorted(as_array(rows_).tolist()) for rows_ in found.of([0]).values())
    assert positions == ([[0], [0, 1]] if partition_by else [[0, 2], [1]])


@pytest.mark.requirement("U14")
def test_the_data_writer_places_rows_by_partition(table_of, partition_by):
    table = table_of(SCHEMA, partition_by=partition_by)
    frame = table._lake.spark.createDataFrame(ROWS).select("id", "region", "n")

    written = write_data(table._state(), frame.selectExpr("id", "region", "int(n) AS n"), "s1")

    assert written.rows == 6
    assert len(written.files) == 2  # of two partitions, or of two tasks
    places = {(tuple(f.partition), f.file_path.split("/s1-")[0]) for f in written.files}
    folder = f"{table.location}/data"
    by_region = {((region,), f"{folder}/region={region}") for region in ("eu", "us")}
    assert places == (by_region if partition_by else {((), folder)})
    assert table.snapshot_id is None  # nothing is published


@pytest.mark.requirement("U14", "U20")
def test_deletes_are_filed_under_the_partition_they_are_given(table_of, partition_by):
    """A file's own spec and partition, none when unpartitioned; an old spec stays the old one."""
    table = table_of(SCHEMA, ROWS, partition_by=partition_by)
    state = table._state()
    live = data_files(table)[0]
    table.evolve_partitions(["bucket(2, id)"])
    evolved = table._state()
    where = DeletePartition(live.spec_id, live.file.partition, "")

    (file,) = write_position_deletes(evolved, "d", {live.path: BitMap64([0, 2])}, where)

    assert file.spec_id == live.spec_id == state.metadata.default_spec_id
    assert file.partition == live.file.partition
    assert len(file.partition) == len(partition_by)
    assert file.record_count == 2


@pytest.mark.requirement("T13", "T16")
def test_position_deletes_are_read_by_data_file_with_one_function(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    gone = rows(table, "_file", "_pos", "region", where="id IN (1, 6)")
    assert sorted(position for _, position, _ in gone) == ([0, 1] if partition_by else [0, 2])
    table.delete().where("id IN (1, 6)").execute()
    deletes = delete_files(table)
    assert len(deletes) == (2 if partition_by else 1)

    contents = read_position_deletes(table.iceberg.io, [*deletes, *deletes])

    assert contents == {
        delete.path: {
            path: BitMap64([position])
            for path, position, region in gone
            if tuple(delete.file.partition) in {(), (region,)}
        }
        for delete in deletes
    }
    assert scan_module.read_position_deletes is read_position_deletes


@pytest.mark.requirement("U28")
def test_a_writing_task_tells_files_of_its_rows(tmp_path):
    batch = pa.record_batch({"id": [1, 2, None], "f": ["a", "b", "a"], "p": [7, 8, 6]})

    results = told(write_rows(layout(tmp_path), ["id"], ChangeColumns("f", "p"))(iter([batch])))

    (file,) = [r["file"] for r in results if "file" in r]
    positions = {
        path: unpack(packed).tolist()
        for path, packed in (r["positions"] for r in results if "positions" in r)
    }
    assert file["rows"] == 3
    assert file["columns"]["id"]["nulls"] == 1
    assert positions == {"a": [6, 7], "b": [8]}
    assert pq.read_table(file["path"].removeprefix("file://")).column("id").to_pylist() == [
        1,
        2,
        None,
    ]


@pytest.mark.requirement("U28")
def test_an_empty_batch_and_no_batch_write_nothing(tmp_path):
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    for batches in ([], [empty], [empty, empty]):
        assert told(write_rows(layout(tmp_path), ["id"])(iter(batches))) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("U28")
def test_the_schema_of_results_is_one_binary_column(tmp_path):
    batch = pa.record_batch({"id": [1]})
    (out,) = write_rows(layout(tmp_path), ["id"])(iter([batch]))
    assert out.schema == pa.schema([("result", pa.binary())])


@pytest.mark.requirement("T20")
def test_a_failing_task_removes_what_it_wrote(tmp_path):
    good = pa.record_batch({"id": list(range(100))})
    bad = pa.record_batch({"id": ["x"]})

    with pytest.raises(pa.ArrowInvalid):
        list(write_rows(layout(tmp_path, row_group_rows=10), ["id"])(iter([good, bad])))

    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.requirement("T18")
def test_bitmaps_of_sparse_positions_stay_small():
    positions = np.arange(1_000_000, dtype=np.int64) * 997
    bitmap = as_bitmap(positions)
    assert len(bitmap.serialize()) < 16 * 1024 * 1024
    assert (as_array(bitmap) == positions).all()
    assert len(pack(positions)) < 1024 * 1024
    assert (unpack(pack(positions)) == positions).all()


def test_bitmap_words_hold_exactly_the_positions():
    bitmap = unite([BitMap64([0, 63]), BitMap64([64, 200, 4000])])
    words = as_words(bitmap)
    bits = [i for i in range(len(words) * 64) if (int(words[i // 64]) >> (i % 64)) & 1]
    assert bits == [0, 63, 64, 200, 4000]
    assert len(as_words(BitMap64())) == 0


def test_positions_are_collected_by_file():
    seen = PositionCollector()
    seen.add(pa.array(["a", "b", "a"]), pa.array([5, 1, 3]))
    seen.add(pa.array(["b"]), pa.array([1]))
    assert {k: unpack(v).tolist() for k, v in seen.packed().items()} == {
        "a": [3, 5],
        "b": [1, 1],
    }


@pytest.mark.requirement("T17", "T19")
def test_a_file_is_rewritten_in_batches(tmp_path, monkeypatch):
    """No batch is larger than asked for, whatever the file's size."""
    monkeypatch.setattr(old_file, "_BATCH_ROWS", 10)
    target = layout(tmp_path / "out", row_group_rows=25)
    pq.write_table(
        pa.table({"id": list(range(100))}, schema=target.schema),
        tmp_path / "in.parquet",
        row_group_size=30,
    )
    sizes = []
    original = Edits.apply

    def watched(edits, table, start):
        sizes.append(table.num_rows)
        return original(edits, table, start)

    monkeypatch.setattr(Edits, "apply", watched)
    file = FileToRewrite(
        pafs.LocalFileSystem(),
        str(tmp_path / "in.parquet"),
        target.location,
        100,
        pack(np.array([1, 99], dtype=np.int64)),
    )
    plan = RewritePlan(target, {"u": file}, "f", "p")
    changes = pa.table({"f": ["u"] * 3, "p": [0, 30, 60]})

    result = rewrite_file(plan, "u", changes)

    assert max(sizes) <= 10
    assert (result["deleted"], result["copied"]) == (3, 95)
    kept = [
        value
        for written in result["files"]
        for value in pq.read_table(written["path"].removeprefix("file://"))["id"].to_pylist()
    ]
    assert kept == [i for i in range(100) if i not in (0, 1, 30, 60, 99)]


@pytest.mark.requirement("T17")
def test_new_versions_are_made_batch_by_batch_of_a_file_elsewhere(tmp_path, monkeypatch):
    """Changes come in batches, and so do the rows; the old file has a file system of its own."""
    monkeypatch.setattr(old_file, "_BATCH_ROWS", 10)
    fields = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        for number, name in enumerate(("id", "n"), 1)
    ]
    target = layout(tmp_path / "out", schema=pa.schema(fields), row_group_rows=25)
    numbers = list(range(100))
    pq.write_table(
        pa.table([numbers, [None] * 100], schema=target.schema),
        tmp_path / "in.parquet",
        row_group_size=30,
    )
    elsewhere = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    file = FileToRewrite(elsewhere, "in.parquet", target.location, 100)
    plan = RewritePlan(target, {"u": file}, "f", "p", {"n": "v"})
    chosen = [0, 9, 10, 31, 32, 33, 59, 60, 61, 75, 99]
    batches = [
        pa.record_batch({"f": ["u"] * len(some), "p": some, "v": [-p for p in some]})
        for some in (chosen[:4], chosen[4:5], [], chosen[5:])
    ]

    results = told(write_new_versions(plan)(iter(batches)))

    (written,) = [r["file"] for r in results if "file" in r]
    (positions,) = [unpack(r["positions"][1]) for r in results if "positions" in r]
    assert positions.tolist() == chosen
    assert pq.read_table(written["path"].removeprefix("file://")).to_pydict() == {
        "id": chosen,
        "n": [-p for p in chosen],
    }


@pytest.mark.parametrize(("files", "most"), [(1, 200), (9, 200), (64, 200), (9, 4), (65, 200)])
@pytest.mark.parametrize("are_numbers", [True, False])
def test_rows_go_to_the_task_of_their_file(spark, files, most, are_numbers):
    known = [SimpleNamespace(path=f"file:///a b/{n}-é,'.parquet") for n in range(files)]
    keys = FileKeys.of(known) if are_numbers else FileKeys({}, are_numbers=False)
    uris = keys.of_files(known)
    names = f"{columns.FILE} {keys.type}, day INT"
    rows = spark.createDataFrame([(uri, None) for uri in uris * 3], names)
    new = spark.createDataFrame([(None, day) for day in range(20)], names)
    placed = by_file(rows.union(new), known, keys, most, ["day"], 3)
    placed = placed.select("*", F.spark_partition_id())
    tasks_of = {}
    for uri, day, task in placed.collect():
        tasks_of.setdefault(uri or day, set()).add(task)
    assert all(len(tasks) == 1 for tasks in tasks_of.values())
    own = {task for uri in uris for task in tasks_of[uri]}
    if files <= min(64, most):
        assert len(own) == files
        assert not own & {task for day in range(20) for task in tasks_of[day]}
    assert placed.rdd.getNumPartitions() == min(files + 3, most)


@pytest.mark.parametrize("longer", ["", "a much longer name, for another size"])
def test_deleted_rows_are_those_of_their_file_whatever_the_sizes_are(table_of, longer):
    """Files are told apart by their sizes, or where two have the same by their paths."""
    kept = [{"id": 2, "name": "b"}, {"id": 3, "name": "c" + longer}]
    table = table_of(
        "id BIGINT, name STRING",
        [{"id": 1, "name": "a"}, kept[0]],
        [kept[1], {"id": 1, "name": "a"}],
        properties={"write.parquet.compression-codec": "uncompressed"},
    )
    sizes = {file.file.file_size_in_bytes for file in data_files(table)}
    assert len(sizes) == (2 if longer else 1)
    table.delete().where("id = 1").execute()
    assert rows(table) == [(row["id"], row["name"]) for row in kept]
    table.update().set("name", "'x'").where("id = 3").execute()
    assert rows(table) == [(2, "b"), (3, "x")]


@pytest.mark.requirement("T23")
def test_files_missing_from_the_manifests_are_counted(table_of, partition_by):
    table = table_of(SCHEMA, ROWS[:3], ROWS[3:], partition_by=partition_by)
    old = data_files(table)
    count = 4 if partition_by else 2
    table.overwrite(ROWS)

    draft = SnapshotDraft(table._state(), 1)
    with pytest.raises(errors.ConflictError, match=rf"{count} of {count} data files .* not found"):
        draft.manifests_after(ManifestChanges(removal=RemoveFiles(tuple(old))))


@pytest.mark.requirement("D5")
def test_the_operation_follows_the_content():
    file = SimpleNamespace(file_path="x")
    data, deletes = {"added_data": (file,)}, {"added_deletes": (file,)}
    gone = RemovedFiles(data=(file,))
    assert operation_of(ManifestChanges(**data), RemovedFiles()).value == "append"
    assert operation_of(ManifestChanges(**deletes), RemovedFiles()).value == "delete"
    assert operation_of(ManifestChanges(), gone).value == "delete"
    assert operation_of(ManifestChanges(**data, **deletes), RemovedFiles()).value == "overwrite"
    assert operation_of(ManifestChanges(**data), gone).value == "overwrite"


@pytest.mark.requirement("D6")
def test_lost_races_are_retried_by_the_policy():
    waits: list[float] = []

    def attempt(number: int) -> int:
        if number < 4:
            raise LostRaceError
        return number

    policy = RetryPolicy(retries=4, min_wait_s=0.1, max_wait_s=0.3)
    assert with_retries(attempt, policy, sleep=waits.append, chance=lambda: 0.0) == 4
    assert waits == [0.1, 0.2, 0.3]
    with pytest.raises(LostRaceError):
        with_retries(attempt, RetryPolicy(retries=2), sleep=waits.append)
    with pytest.raises(LostRaceError):
        with_retries(attempt, RetryPolicy(total_s=0.05), sleep=waits.append)


@pytest.mark.requirement("U32", "T30")
def test_cost_follows_the_files_touched(table_of, mode, partition_by):
    """The same number of rows in one file, and spread over ten."""
    batches = [[{"id": b * 10 + i, "region": "r", "n": i} for i in range(10)] for b in range(10)]
    table = table_of(SCHEMA, *batches, mode=mode, partition_by=partition_by)
    one_file = table.update().set("n", "-1").where("id >= 20 AND id < 30").execute()
    spread = table.update().set("n", "-2").where("n = 7").execute()
    assert one_file.rows_updated == 10
    assert (one_file.files_scanned, one_file.files_skipped) == (1, 9)
    assert spread.rows_updated == 9
    assert spread.data_files_removed == (9 if mode == "copy-on-write" else 0)
    assert one_file.bytes_written < spread.bytes_written
    assert len(rows(table)) == 100


@pytest.mark.requirement("T31")
def test_statements_are_logged(table_of, caplog, mode, partition_by):
    table = table_of(SCHEMA, ROWS, mode=mode, partition_by=partition_by)
    with caplog.at_level(logging.INFO, logger="icefloe"):
        table.delete().where("id = 1").execute()
    assert "operation='delete'" in caplog.text
    assert f"mode='{mode}'" in caplog.text
    assert "rows_deleted=1" in caplog.text


@pytest.mark.requirement("U40", "T38")
def test_guidance_is_written():
    pages = Path(__file__).parent.parent / "docs"
    text = (pages / "modes.md").read_text()
    for word in ("Choosing a mode", "Troubleshooting", "partition columns", "Cast", "cast"):
        assert word.lower() in text.lower()


def test_a_spec_of_void_fields_alone_is_none():
    """Iceberg's own rule: equality deletes under such a spec reach every file."""
    voided = PartitionField(1, 1000, VoidTransform(), "region")
    live = PartitionField(1, 1001, IdentityTransform(), "region_2")
    specs = {0: PartitionSpec(live), 1: PartitionSpec(voided), 2: PartitionSpec()}
    specs[3] = PartitionSpec(voided, live)

    assert unpartitioned_specs(SimpleNamespace(specs=lambda: specs)) == {1, 2}
