"""A damaged file ends a statement with its path, in every mode, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe import Table
from icefloe.deletes.position_deletes import read_position_deletes
from icefloe.errors import StorageError, UnsupportedTableError
from icefloe.metadata.manifests import list_manifests
from icefloe.parquet.fields import Chunk, Element, File, Group, Meta
from icefloe.parquet.footer import footer_bytes, group_rows, open_buffer
from icefloe.parquet.thrift import Items, Struct, ThriftType, changed, items, value
from icefloe.pruning.candidates import Candidate
from icefloe.scan import row_counts
from icefloe.scan.row_counts import verify_row_counts
from icefloe.scan.scan import Scan
from icefloe.storage import file_cache
from support.foreign_files import equality_delete, publish
from support.tables import data_files, delete_files, stored_files

MODES = ("copy-on-write", "merge-on-read", "auto")
MAPPING = (
    '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["s"]},'
    ' {"field-id": 3, "names": ["p"]}]'
)


def with_deletes(table_of: Callable[..., Table], partition_by: tuple[str, ...]) -> Table:
    some = [{"id": i, "s": f"s{i}" if i % 2 else None, "p": i % 2} for i in range(6)]
    table = table_of("id BIGINT, s STRING, p INT", some, partition_by=partition_by)
    table.delete().where("id IN (1, 4)").execute()
    return table


@pytest.fixture(params=[(), ("p",)], ids=["plain", "partitioned"])
def table(request, table_of) -> Table:
    """A table with deletes."""
    return with_deletes(table_of, request.param)


@pytest.fixture
def plain(table_of) -> Table:
    """The same without partitions, where these do not matter."""
    return with_deletes(table_of, ())


def changes(table: Table, modes: Sequence[str]) -> Iterator[Callable[[], object]]:
    """Every kind of statement in these modes, not run yet."""
    source = [{"id": 3, "s": "new", "p": 1}, {"id": 9, "s": "nine", "p": 1}]
    merge = table.merge(source, on="target.id = source.id").when_matched().update_all()
    # A task that writes new rows may still be at it when one that rewrites a file has failed: what
    # it leaves then is for remove_orphans.
    upsert = merge.when_not_matched().insert_all()
    for mode in modes:
        for statement in (
            table.update().set("s", "'new'").where("id = 3"),
            table.delete().where("id = 3"),
            merge if mode == "copy-on-write" else upsert,
        ):
            yield statement.with_options(mode=mode).execute


def refused(
    table: Table, path: Path, *others: Callable[[], object], modes: Sequence[str] = MODES
) -> None:
    """Whether each statement fails for the file, and leaves no file and no snapshot."""
    before, head = stored_files(table), table.iceberg.metadata.current_snapshot_id
    for statement in (*changes(table, modes), *others):
        with pytest.raises(StorageError, match=path.name):
            statement()
    assert table.iceberg.refresh().metadata.current_snapshot_id == head
    assert stored_files(table) == before


def local(location: str) -> Path:
    return Path(location.removeprefix("file://").removeprefix("file:"))


def cut(path: Path, part: float = 0.6) -> Path:
    """Leave the first part of a file, as a copy that was broken off does."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return path


def overwrite(path: Path, start: int, data: bytes) -> None:
    """Put other bytes in the place of some."""
    old = path.read_bytes()
    path.write_bytes(old[:start] + data + old[start + len(data) :])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def data_file(table: Table) -> Path:
    """The file that the row with the id 3 is in."""
    paths = [local(file.path) for file in data_files(table)]
    return next(path for path in paths if 3 in pq.read_table(path)["id"].to_pylist())


def delete_file(table: Table) -> Path:
    """The deletes that name rows of that file."""
    named = data_file(table).name
    paths = [local(file.path) for file in delete_files(table)]
    return next(p for p in paths if named in str(pq.read_table(p)["file_path"].to_pylist()))


def chunk_of(path: Path, column: str) -> tuple[int, int]:
    """Where the first chunk of a column lies in its file, and its length."""
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    chunk = next(c for c in chunks if c.path_in_schema == column)
    return chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size


@pytest.mark.slow
def test_a_data_file_that_was_cut(table):
    refused(table, cut(data_file(table)))


@pytest.mark.parametrize(("column", "modes"), [("id", MODES), ("s", ["copy-on-write"])])
def test_a_data_file_whose_pages_were_overwritten(table, column, modes):
    """Of a column that every statement reads, or of one that is encoded again."""
    path = data_file(table)
    start, length = chunk_of(path, column)
    overwrite(path, start, bytes(length))
    refused(table, path, modes=modes)


def test_a_data_file_whose_footer_lost_rows(table):
    """Spark and PyArrow would read as many as it says, and the others would be gone."""
    refused(table, without_a_row(data_file(table)), table.compact, modes=MODES[:2])


@pytest.mark.slow
def test_a_data_file_with_equality_deletes_whose_footer_lost_rows(lake, table):
    """How many rows such a file leaves is not known from metadata."""
    publish(lake, table, deletes=[equality_delete(table, [{"id": 5}], **partition_of_3(table))])
    path = without_a_row(data_file(table))
    refused(table, path, table.compact, modes=MODES[:2])


@pytest.mark.slow
def test_an_equality_delete_whose_footer_lost_rows(lake, table):
    """The row that it no longer names would be there again, for good in files written anew."""
    delete = equality_delete(table, [{"id": 5}, {"id": 7}], **partition_of_3(table))
    publish(lake, table, deletes=[delete])
    path = without_a_row(local(delete.file_path))
    refused(table, path, table.compact, modes=MODES[:2])


def test_position_deletes_whose_footer_lost_rows(table):
    path = without_a_row(delete_file(table))
    refused(table, path, table.compact, lambda: table.scan().collect())


def test_position_deletes_that_name_other_columns(plain):
    """Another file in the place of theirs, as large as it was."""
    path = delete_file(plain)
    overwrite(path, 0, path.read_bytes().replace(b"pos", b"sop"))
    refused(plain, path, plain.compact, lambda: plain.scan().collect())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_byte_of_position_deletes_that_was_changed_anywhere(plain, seed, has_checksums):
    """They name the same rows as before, or are refused by their path.

    Without checksums, as other writers leave them, they may name others.
    """
    (delete, *_) = delete_files(plain)
    path, random, io = local(delete.path), Random(seed), plain.iceberg.io
    if not has_checksums:
        pq.write_table(pq.read_table(path), path, compression="none")
    before, data = read_position_deletes(io, [delete]), path.read_bytes()
    told = 0
    for _ in range(300):
        path.write_bytes(data)
        overwrite(path, random.randrange(4, len(data)), random.randbytes(1))
        try:
            assert read_position_deletes(io, [delete]) == before or not has_checksums
        except (StorageError, UnsupportedTableError) as refusal:
            assert path.name in str(refusal)
            told += 1
    assert told > 100


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary()]
)
def test_position_deletes_whose_writer_holds_texts_otherwise(plain, kind):
    """PyArrow keeps that in the file, and gives them back so; the last has them unmarked."""
    (delete, *_) = delete_files(plain)
    path, io = local(delete.path), plain.iceberg.io
    before = read_position_deletes(io, [delete])
    old = pq.read_table(path)
    pq.write_table(old.set_column(0, "file_path", old["file_path"].cast(kind)), path)
    assert read_position_deletes(io, [delete]) == before


@pytest.mark.parametrize(("position", "named"), [(-1, "x"), (None, "x"), (1, None)])
def test_position_deletes_that_name_nothing(plain, position, named):
    (delete, *_) = delete_files(plain)
    path = local(delete.path)
    rows = {
        "file_path": pa.array([named] * delete.rows, pa.string()),
        "pos": pa.array([position] * delete.rows, pa.int64()),
    }
    pq.write_table(pa.table(rows), path)
    with pytest.raises(StorageError, match=f"{path.name} is damaged: one of its rows has no"):
        read_position_deletes(plain.iceberg.io, [delete])


def test_a_schema_that_pyarrow_does_not_take_is_no_damage(table_of):
    """Old writers let keys of maps be NULL; Spark reads such files."""
    table = table_of("id BIGINT, m MAP<STRING, INT>", [{"id": i, "m": {"k": i}} for i in range(9)])
    (live,) = data_files(table)
    path = local(live.path)
    file = open_buffer(str(path), pa.py_buffer(path.read_bytes()))
    elements = [
        changed(e, {Element.REPETITION: (ThriftType.I32, 1)})
        if value(e, Element.NAME) == b"key"
        else e
        for e in items(file.footer, File.SCHEMA)
    ]
    (group,) = file.groups
    chunks = Items(ThriftType.STRUCT, [without_sizes(c) for c in items(group, Group.COLUMNS)])
    groups = Items(ThriftType.STRUCT, [changed(group, {Group.COLUMNS: (ThriftType.LIST, chunks)})])
    footer = changed(
        file.footer,
        {
            File.SCHEMA: (ThriftType.LIST, Items(ThriftType.STRUCT, elements)),
            File.GROUPS: (ThriftType.LIST, groups),
        },
    )
    path.write_bytes(path.read_bytes()[: file.footer_at] + footer_bytes(footer))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with pytest.raises(pa.ArrowInvalid, match="Map keys"):
        pq.read_metadata(path)
    delete = table.delete().where("id = 3").with_options(mode="merge-on-read")
    assert delete.execute().rows_deleted == 1


def without_sizes(chunk: Struct) -> Struct:
    """A chunk that does not tell how many values have each level."""
    meta = changed(value(chunk, Chunk.META), {Meta.SIZES: None})
    return changed(chunk, {Chunk.META: (ThriftType.STRUCT, meta)})


def test_other_failures_are_reported_before_a_damaged_file(plain):
    """And the footers are looked at when nothing does."""
    without_a_row(data_file(plain))
    candidates = [Candidate(file) for file in data_files(plain)]
    scan = Scan(plain._lake.spark, plain._state(), tuple(candidates))
    with pytest.raises(ZeroDivisionError), verify_row_counts(scan, candidates):
        assert 1 / 0
    with (
        pytest.raises(StorageError, match="rows, the table's metadata says"),
        verify_row_counts(scan, candidates),
    ):
        pass
    with verify_row_counts(scan, []):
        pass


@pytest.fixture
def footers_read(monkeypatch) -> list[str]:
    """The files whose footers the driver reads, by path; none was seen, and all are settled."""
    made: list[str] = []
    read = row_counts._check

    def counted(footer):
        made.append(footer.file.path)
        read(footer)

    row_counts.seen.clear()
    monkeypatch.setattr(row_counts, "_check", counted)
    monkeypatch.setattr(file_cache, "_CLOCK_TICK_NS", 0)
    return made


@pytest.mark.parametrize("most_by_driver", [0, 256])
def test_a_footer_that_was_right_is_not_read_again(
    table, footers_read, monkeypatch, most_by_driver
):
    """By tasks where there are many: then the driver reads those that are wrong."""
    monkeypatch.setattr(row_counts, "_MOST_BY_DRIVER", most_by_driver)
    files, path = [file.path for file in data_files(table)], data_file(table)
    change = table.update().set("s", "'x'").where("id = 3").with_options(mode="merge-on-read")
    change.execute()
    assert sorted(footers_read) == (sorted(files) if most_by_driver else [])
    assert len(row_counts.seen) == len(files)
    footers_read.clear()
    table.update().set("s", "'y'").where("id = 3").with_options(mode="merge-on-read").execute()
    assert set(footers_read).isdisjoint(files)
    refused(table, without_a_row(path), modes=["merge-on-read"])
    assert path.name in str(footers_read)


def test_right_footers_are_held_within_a_limit(table_of, footers_read, monkeypatch):
    monkeypatch.setattr(row_counts, "_SEEN_BYTES", 3 * row_counts._ENTRY_BYTES)
    rows = [{"id": i, "p": i} for i in range(5)]
    table = table_of("id BIGINT, p INT", rows, partition_by=("p",), mode="merge-on-read")
    for _ in range(2):
        assert table.delete().where("id % 7 = 6").execute().rows_deleted == 0
    assert len(row_counts.seen) == 3
    assert 5 + 2 <= len(footers_read) <= 5 + 5


def test_files_that_are_not_read_may_be_damaged(plain):
    """Rows that are only added do not need them, nor does a DELETE of all there is in them."""
    without_a_row(data_file(plain))
    new = plain.merge([{"id": 50, "s": None, "p": 1}], on="false").when_not_matched()
    assert new.insert_all().execute().rows_inserted == 1
    plain.delete().execute()
    assert plain.scan().count() == 0


@pytest.mark.parametrize("kind", ["data", "deletes"])
def test_a_value_that_was_changed(table, kind):
    """It can be decoded, as another one; the checksum of its page tells."""
    table.set_properties({"write.parquet.compression-codec": "uncompressed"})
    table.insert([{"id": 3, "s": "three", "p": 1}, {"id": 11, "s": "eleven", "p": 1}])
    table.delete().where("id = 11").with_options(mode="merge-on-read").execute()
    column, value = {"data": ("id", 3), "deletes": ("pos", 1)}[kind]
    files = data_files(table) if kind == "data" else delete_files(table)
    path = local(max(files, key=lambda file: file.sequence_number).path)
    start, length = chunk_of(path, column)
    # The pages' headers have the value as well. What is first is a page of its dictionary.
    find = path.read_bytes().rindex if kind == "data" else path.read_bytes().index
    overwrite(path, find(value.to_bytes(8, "little"), start, start + length), b"\2")
    assert 2 in pq.read_table(path)[column].to_pylist()
    refused(table, path, table.compact, modes=["copy-on-write"] if kind == "data" else ["auto"])


def without_a_row(path: Path) -> Path:
    """Have a file's footer tell one row fewer, of its row group and of the file."""
    file = open_buffer(str(path), pa.py_buffer(path.read_bytes()))
    (group,) = file.groups
    fewer = (ThriftType.I64, group_rows(group) - 1)
    groups = Items(ThriftType.STRUCT, [changed(group, {Group.ROWS: fewer})])
    footer = changed(file.footer, {File.ROWS: fewer, File.GROUPS: (ThriftType.LIST, groups)})
    overwrite(path, file.footer_at, footer_bytes(footer))
    assert path.stat().st_size == file.size
    return path


def partition_of_3(table: Table) -> dict[str, tuple[int, ...]]:
    """The partition that the row with the id 3 is in."""
    return {} if table.iceberg.spec().is_unpartitioned() else {"partition": (1,)}


def test_a_data_file_that_was_cut_of_a_table_with_a_name_mapping(plain):
    """Its footer is read before Spark is asked for anything."""
    plain.set_properties({"schema.name-mapping.default": MAPPING})
    refused(plain, cut(data_file(plain)), lambda: plain.scan().collect())


def test_a_delete_file_that_was_cut(table):
    refused(table, cut(delete_file(table)), lambda: table.scan().collect())


@pytest.mark.parametrize("part", [0.99, 0.6, 0.0])
def test_a_manifest_that_was_cut_is_not_taken_for_one_of_fewer_files(plain, part):
    """PyIceberg takes the end of the file for the end of its entries."""
    manifest, *_ = list_manifests(plain.iceberg.io, plain.iceberg.current_snapshot())
    path = cut(local(manifest.manifest_path), part)
    refused(plain, path, lambda: plain.scan().collect())


def test_a_manifest_that_lacks_its_last_block(plain):
    """What is left of it is in order; only its length tells."""
    manifest, *_ = list_manifests(plain.iceberg.io, plain.iceberg.current_snapshot())
    path = local(manifest.manifest_path)
    data = path.read_bytes()
    mark = data[-16:]
    path.write_bytes(data[: data.index(mark) + len(mark)])  # the header alone
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    refused(plain, path, lambda: plain.scan().collect())


@pytest.mark.parametrize("part", [0.99, 0.6, 0.0])
def test_a_manifest_list_that_was_cut_is_not_taken_for_one_of_fewer_manifests(plain, part):
    path = cut(local(plain.iceberg.current_snapshot().manifest_list), part)
    refused(plain, path, lambda: plain.scan().collect())
