"""Tasks that write data files, called in this process without Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from icefloe.tasks import old_file
from icefloe.tasks.messages import (
    ChangeColumns,
    PositionCollector,
    RowPositions,
    TaskMessage,
    WrittenFile,
    from_bytes,
    pack,
    unpack,
)
from icefloe.tasks.new_versions import write_new_versions
from icefloe.tasks.old_file import Edits
from icefloe.tasks.rewrite import FileToRewrite, RewritePlan, rewrite_file
from icefloe.tasks.write import FileLayout, write_rows


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


def messages_of(batches) -> list[TaskMessage]:
    return [from_bytes(encoded) for batch in batches for encoded in batch.column(0).to_pylist()]


@pytest.mark.requirement("U28")
def test_a_task_reports_its_files_and_positions(tmp_path):
    batch = pa.record_batch({"id": [1, 2, None], "f": ["a", "b", "a"], "p": [7, 8, 6]})

    task = write_rows(layout(tmp_path), ["id"], ChangeColumns("f", "p"))
    messages = messages_of(task(iter([batch])))

    (file,) = [message for message in messages if isinstance(message, WrittenFile)]
    positions = {
        message.file: unpack(message.packed).tolist()
        for message in messages
        if isinstance(message, RowPositions)
    }
    assert file.rows == 3
    assert [(column.path, column.nulls) for column in file.columns] == [("id", 1)]
    assert positions == {"a": [6, 7], "b": [8]}
    assert pq.read_table(file.path.removeprefix("file://")).column("id").to_pylist() == [
        1,
        2,
        None,
    ]


@pytest.mark.requirement("U28")
def test_an_empty_batch_and_no_batch_write_nothing(tmp_path):
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    for batches in ([], [empty], [empty, empty]):
        assert messages_of(write_rows(layout(tmp_path), ["id"])(iter(batches))) == []
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
    assert (result.rows_deleted, result.rows_copied) == (3, 95)
    kept = [
        value
        for written in result.replacements
        for value in pq.read_table(written.path.removeprefix("file://"))["id"].to_pylist()
    ]
    assert kept == [i for i in range(100) if i not in (0, 1, 30, 60, 99)]


@pytest.mark.requirement("T17")
def test_new_row_versions_are_written_in_batches_from_another_file_system(tmp_path, monkeypatch):
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

    messages = messages_of(write_new_versions(plan)(iter(batches)))

    (written,) = [message for message in messages if isinstance(message, WrittenFile)]
    (positions,) = [message for message in messages if isinstance(message, RowPositions)]
    assert unpack(positions.packed).tolist() == chosen
    assert pq.read_table(written.path.removeprefix("file://")).to_pydict() == {
        "id": chosen,
        "n": [-p for p in chosen],
    }
