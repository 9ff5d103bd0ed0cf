"""A sidecar that is damaged, or of another file: its data file is read as if it had none."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icefloe import Table
from icefloe.indexes.definitions import definitions_of, to_write
from icefloe.metadata.files import LiveFile
from icefloe.metadata.table_state import TableState
from icefloe.tasks.btree import btree_content, build_btree
from icefloe.tasks.sidecars import (
    CHECKSUMS,
    HEADER,
    HEADER_CHECKSUM,
    DamagedSidecarError,
    SidecarPlace,
    header_checksum,
    write_sidecar,
)
from support.indexed_tables import (
    as_indexed,
    asked,
    build_sidecars,
    define_index,
    found_rows,
    make_table,
    positions,
    sidecar_of,
    warnings_of_icefloe,
)
from support.pyiceberg_tables import open_lake
from support.sidecar_files import SidecarFiles
from support.tables import data_files

SCHEMA = Schema(
    NestedField(1, "k", LongType(), required=False),
    NestedField(2, "s", StringType(), required=False),
)
ROWS = [{"k": None if n % 7 == 6 else 3 * n % 8, "s": f"s{n % 5}"} for n in range(24)]
# Each needs something else of the sidecar: codes, a range of fences, the rows with NULL.
CONDITIONS = ["k = 3", "k IN (0, 5, 100)", "k BETWEEN 2 AND 4", "k > 6", "k IS NULL"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files of the same size and rows, with an index on `k`."""
    table = make_table(open_lake(tmp_path), "t", SCHEMA, ROWS, ROWS)
    define_index(table, "by_k", "k")
    assert build_sidecars(table) == []
    return table


@pytest.fixture
def files(table: Table) -> list[LiveFile]:
    first, second = data_files(table)
    assert (first.size, first.rows) == (second.size, second.rows)
    return [first, second]


Found = list[list[int] | None]


def answers(table: Table, files: list[LiveFile]) -> list[Found]:
    state = table._state()
    return [found_rows(state, files, condition) for condition in CONDITIONS]


@dataclass(frozen=True)
class DamagedTable:
    """A table, and what its indexes said of each condition before the first sidecar was damaged."""

    state: TableState
    files: list[LiveFile]
    path: Path  # of the first file's sidecar
    whole: list[Found]

    def is_lost(self, number: int) -> bool:
        """Whether the first file has no answer to a condition, and a warning; else it has all."""
        [first, second] = self.whole[number]
        with warnings_of_icefloe() as warnings:
            [found, other] = found_rows(self.state, self.files, CONDITIONS[number])
        assert other == second
        assert found in (None, first)
        assert len(warnings) == (found is None)
        assert all(self.files[0].path in warning for warning in warnings)
        return found is None

    def expect_uncovered(self) -> None:
        assert all(self.is_lost(number) for number in range(len(CONDITIONS)))


@pytest.fixture
def damaged(table: Table, files: list[LiveFile]) -> DamagedTable:
    path = sidecar_of(table, "by_k", files[0])
    return DamagedTable(table._state(), files, path, answers(table, files))


def test_without_damage_every_row_is_found(damaged):
    [equal, several, between, above, null] = damaged.whole
    keys = [row["k"] for row in ROWS]
    assert equal == [[n for n, k in enumerate(keys) if k == 3]] * 2
    assert several == [[n for n, k in enumerate(keys) if k in (0, 5)]] * 2
    assert between == [[n for n, k in enumerate(keys) if k is not None and 2 <= k <= 4]] * 2
    assert above == [[n for n, k in enumerate(keys) if k == 7]] * 2
    assert null == [[n for n, k in enumerate(keys) if k is None]] * 2


def test_no_flipped_byte_loses_a_row(damaged):
    """Every byte of the file, in one way; some of them are padding that nothing reads."""
    chosen, stored = random.Random(3), damaged.path.read_bytes()
    lost = 0
    for place in range(len(stored)):
        content = bytearray(stored)
        content[place] ^= chosen.randrange(1, 256)
        damaged.path.write_bytes(content)
        lost += damaged.is_lost(place % len(CONDITIONS))
    assert lost > len(stored) // 3


@pytest.mark.slow
def test_no_flipped_bit_loses_a_row(damaged):
    stored = damaged.path.read_bytes()
    lost = 0
    for place in range(len(stored)):
        for bit in range(8):
            content = bytearray(stored)
            content[place] ^= 1 << bit
            damaged.path.write_bytes(content)
            lost += sum(damaged.is_lost(number) for number in range(len(CONDITIONS)))
    assert lost > len(stored)


def test_no_truncated_sidecar_loses_a_row(damaged):
    stored = damaged.path.read_bytes()
    for length in (*range(0, len(stored), 23), len(stored) - 1):
        damaged.path.write_bytes(stored[:length])
        damaged.expect_uncovered()


def test_random_bytes_and_other_files_are_no_sidecars(damaged):
    stored, chosen = damaged.path.read_bytes(), random.Random(4)
    for content in (
        chosen.randbytes(len(stored)),
        b"ARROW1\0\0" + chosen.randbytes(200) + b"ARROW1",
        Path(as_indexed(damaged.files[0]).path).read_bytes(),
        stored[: len(stored) // 2] + bytes(len(stored) // 2),
        b"\0" * 100,
    ):
        damaged.path.write_bytes(content)
        damaged.expect_uncovered()


def test_a_folder_in_place_of_a_sidecar(damaged):
    damaged.path.unlink()
    damaged.path.mkdir()
    damaged.expect_uncovered()


def test_the_sidecar_of_another_file_is_not_used(table, damaged):
    shutil.copy(sidecar_of(table, "by_k", damaged.files[1]), damaged.path)
    damaged.expect_uncovered()


def test_the_sidecar_of_another_index_is_not_used(table, damaged):
    define_index(table, "by_s", "s")
    build_sidecars(table)
    shutil.copy(sidecar_of(table, "by_s", damaged.files[0]), damaged.path)
    damaged.expect_uncovered()


def test_the_sidecar_of_an_index_of_that_name_that_was_dropped_is_not_used(table, files):
    """The definition has another id and column; somebody put the old files into its folder."""
    old = sidecar_of(table, "by_k", files[0])
    content = old.read_bytes()
    define_index(table, "by_k", "s", index_id="ffffffffffff")
    new = sidecar_of(table, "by_k", files[0])
    new.parent.mkdir(parents=True)
    new.write_bytes(content)
    assert positions(table, "s = 's1'") == [None, None]


def test_a_missing_sidecar_is_no_reason_to_warn(table, files):
    sidecar_of(table, "by_k", files[0]).unlink()
    with warnings_of_icefloe() as warnings:
        [found, _] = positions(table, "k = 3")
    assert found is None
    assert warnings == []


def test_notes_say_for_how_many_files_an_index_was_not_used(damaged):
    _, whole = asked(damaged.state, damaged.files, "k = 3")
    assert whole.notes[0] == "index by_k: 0 files skipped, 6 rows in 2 files"
    damaged.path.write_bytes(b"")
    _, result = asked(damaged.state, damaged.files, "k = 3")
    assert result.notes[:2] == (
        "index by_k: 0 files skipped, 3 rows in 1 files",
        "index by_k not used for 1 files: they have no sidecar, or too many rows may match",
    )


# -------------------------------------------------------------------------------------------------
# Sidecars whose checksums are right


@pytest.fixture
def made(tmp_path: Path) -> SidecarFiles:
    return SidecarFiles(tmp_path, ("long",))


def test_a_data_file_of_another_size_or_number_of_rows_has_no_sidecar(made):
    file = made.data_file("a.parquet", pa.array([1, 2, 3]))
    made.build(file)
    with made.open(file) as codes:
        assert codes.rows == 3
    for other in (replace(file, size=file.size + 1), replace(file, rows=4)):
        with pytest.raises(DamagedSidecarError, match="another file or index"):
            made.place(other).open().__enter__()


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"index_id": "ffffffffffff"}, "index"),
        ({"kind": "bm25"}, "kind"),
        ({"field_ids": (2,)}, "fields"),
        ({"field_ids": (1, 2)}, "fields"),
    ],
)
def test_a_sidecar_is_of_one_index_alone(made, index, reason):
    file = made.data_file("a.parquet", pa.array([1, 2, 3]))
    path = made.build(file)
    place = SidecarPlace.of(replace(made.index, **index), file.location, file.size, file.rows)
    with pytest.raises(DamagedSidecarError, match=f"another file or index: {reason}"):
        replace(place, path=str(path)).open().__enter__()


def test_a_sidecar_of_a_later_version_is_not_used(made):
    file = made.data_file("a.parquet", pa.array([1, 2, 3]))
    path = made.build(file)
    change_header(path, v=2)
    with pytest.raises(DamagedSidecarError, match="another file or index: v"):
        made.place(file).open().__enter__()


def test_batches_of_another_size_are_not_used(made):
    file = made.data_file("a.parquet", pa.array([1, 2, 3]))
    change_header(made.build(file), batch_rows=5)
    with pytest.raises(DamagedSidecarError), made.open(file):
        pass


def test_rows_past_the_end_of_the_file_are_not_believed(damaged):
    """However they came there: the checksums of this sidecar are right."""
    [first, _] = damaged.files
    [definition] = definitions_of(damaged.state.metadata)
    [index] = to_write(damaged.state, [definition])
    codes = np.array([3, 2**63 + 3], np.uint64)
    rows, nulls = np.array([1, first.rows], np.uint32), np.array([first.rows + 5], np.uint32)
    header: dict[str, object] = {"coder": "exact", "prefix": "", "batch_rows": 16_384}
    write_sidecar(index, as_indexed(first), btree_content(codes, rows, nulls, header))
    for condition in ("k = 3", "k IS NULL"):
        with warnings_of_icefloe() as warnings:
            assert found_rows(damaged.state, damaged.files, condition)[0] is None
        assert "rows past the end" in warnings[0]


def change_header(path: Path, **values: object) -> None:
    """Change what the header of a sidecar says, with the checksum that fits."""
    with pa.ipc.open_file(path) as reader:
        metadata = dict(reader.schema.metadata)
        batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
        schema = reader.schema
    metadata[HEADER] = json.dumps({**json.loads(metadata[HEADER]), **values}).encode()
    metadata[HEADER_CHECKSUM] = str(header_checksum(metadata)).encode()
    assert CHECKSUMS in metadata
    with pa.ipc.new_file(path, schema.with_metadata(metadata)) as writer:
        for batch in batches:
            writer.write_batch(batch)


def test_the_same_bytes_as_another_type_are_not_used(made):
    """One bit in the schema of the file makes floats of the codes; their checksum is the same."""
    file = made.data_file("a.parquet", pa.array([1, 2, 3]))
    path = made.build(file)
    with pa.ipc.open_file(path) as reader:
        batch, metadata = reader.get_batch(0), reader.schema.metadata
    floats = [batch.column(0).view(pa.float64()), batch.column(1)]
    schema = pa.schema([("code", pa.float64()), ("pos", pa.uint32())], metadata)
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_batch(pa.record_batch(floats, schema=schema))
    with pytest.raises(DamagedSidecarError, match="its columns have other types"), made.open(file):
        pass


def test_a_sidecar_that_could_not_be_finished_is_removed(made, monkeypatch):
    file = made.data_file("a.parquet", pa.array([1, 2, 3]))
    content = build_btree(made.index, file)
    broken = replace(content, batches=[*content.batches, pa.record_batch({"x": [1]})])
    with pytest.raises(ValueError, match="schema"):
        write_sidecar(made.index, file, broken)
    assert not made.sidecar(file).exists()
