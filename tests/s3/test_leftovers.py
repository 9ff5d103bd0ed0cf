"""What failed and killed writers leave in a store, and that `remove_orphans` finds it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import icefloe
from icefloe.errors import SetupError, StorageError
from icefloe.spark import connectors
from icefloe.storage.file_io import StoreFileIO
from icefloe.storage.files import delete_files, list_files, uploads_below
from icefloe.storage.filesystem import BoundedS3FileSystem
from icefloe.storage.spark_files import CONNECTORS
from support.http_proxy import FORBIDDEN, s3_kind
from support.s3_server import running_s3

pytestmark = pytest.mark.s3


@pytest.fixture
def lake(store, tmp_path):
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with icefloe.connect(uri=uri, warehouse="s3://lake/leftovers", **store.properties) as opened:
        yield opened


@pytest.fixture
def table(lake, request):
    name = f"a.{request.node.name}"
    lake.drop_table(name, if_exists=True)
    made = lake.create_table(name, "id BIGINT, text STRING")
    made.append([{"id": 1, "text": "x"}])
    return made


def begin_upload(table, name):
    """A part of a file whose writer was killed."""
    io = StoreFileIO(table.iceberg.io.properties)
    client = io.fs_by_scheme("s3", "lake").client
    key = f"{table.location.removeprefix('s3://lake/')}/data/{name}"
    upload = client.create_multipart_upload(Bucket="lake", Key=key)["UploadId"]
    client.upload_part(Bucket="lake", Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 100)
    return f"s3://lake/{key}"


def remove(table, **options):
    soon = datetime.now(UTC) + timedelta(minutes=1)
    return table.remove_orphans(older_than=soon, allow_recent=True, **options)


@pytest.mark.spark
def test_uploads_of_killed_writers_are_found_and_aborted(table, s3_server):
    location = begin_upload(table, f"{'0' * 32}-{'1' * 12}.parquet")
    if not s3_server.is_mock:  # there each upload was begun in 2010
        young = table.remove_orphans()
        assert (young.uploads, young.uploads_aborted) == ((), 0)
    found = remove(table)
    assert (found.uploads, found.uploads_aborted) == ((location,), 0)
    assert remove(table, dry_run=False).uploads_aborted == 1
    assert remove(table).uploads == ()
    assert table.count() == 1


@pytest.mark.spark
def test_uploads_of_a_table_inside_the_folder_are_not_touched(lake, table):
    inside = f"{table.location}/data/inside"
    other = lake.catalog.create_table("a.inside", table.iceberg.schema(), location=inside)
    upload = begin_upload(lake.table("a.inside"), f"{'0' * 32}-{'1' * 12}.parquet")
    begin_upload(table, f"{'0' * 32}-{'2' * 12}.parquet")
    removed = remove(table, dry_run=False)
    assert (len(removed.uploads), removed.uploads_aborted) == (1, 1)
    left = uploads_below(StoreFileIO(table.iceberg.io.properties), table.location)
    assert [one.location for one in left] == [upload]
    assert other.location() == inside


@pytest.mark.spark
def test_uploads_that_cannot_be_listed_are_not_known(table, s3_proxy, caplog):
    with (
        s3_proxy.failing(FORBIDDEN, "GET", r"\?.*uploads", times=None) as rule,
        caplog.at_level(logging.WARNING, "icefloe"),
    ):
        assert remove(table).uploads is None
    assert rule.fired
    assert "were not listed: " in caplog.text
    assert "boto3" not in caplog.text


@pytest.mark.spark
def test_without_boto3_uploads_are_not_known(table, monkeypatch, caplog):
    begin_upload(table, f"{'0' * 32}-{'1' * 12}.parquet")
    monkeypatch.setattr(BoundedS3FileSystem, "client", None)
    with caplog.at_level(logging.WARNING, "icefloe"):
        assert remove(table).uploads is None
    assert "boto3 is not installed (pip install 'icefloe[s3]')" in caplog.text


@pytest.mark.spark
def test_an_upload_that_the_store_refuses_is_no_orphan_of_the_statement(table, s3_proxy):
    rows = [{"id": n, "text": os.urandom(600).hex()} for n in range(20_000)]
    # By one task: others are killed when one has failed, and may leave an upload then.
    frame = table._lake.spark.createDataFrame(pa.Table.from_pylist(rows)).coalesce(1)
    with s3_proxy.failing(FORBIDDEN, "PUT", r"partNumber=2") as rule, pytest.raises(StorageError):
        table.append(frame)
    assert rule.fired
    assert table.count() == 1
    state_io = StoreFileIO(table.iceberg.io.properties)
    assert uploads_below(state_io, f"{table.location}/data") == []
    assert len(list_files(state_io, f"{table.location}/data")) == 1


def test_many_files_are_deleted_with_one_request(store, s3_proxy):
    io = StoreFileIO(store.properties)
    locations = [f"s3://lake/batch/a b/{n} %2F.bin" for n in range(30)]
    for location in locations:
        with io.new_output(location).create(overwrite=True) as sink:
            sink.write(b"x")
    with s3_proxy.counting(s3_kind) as counts:
        assert delete_files(io, [*locations, "s3a://lake/batch/none"]) == []
    assert sum(counts.values()) == 1
    assert store.keys("lake/batch") == set()


def test_objects_that_cannot_be_deleted_are_returned(store, s3_proxy):
    io = StoreFileIO(store.properties)
    with s3_proxy.failing(FORBIDDEN, "POST", r"\?delete") as rule:
        assert delete_files(io, ["s3://lake/refused/1"]) == ["s3://lake/refused/1"]
    assert rule.fired


def test_a_file_is_read_and_written_with_one_request_each(store, s3_proxy):
    io = StoreFileIO(store.properties)
    location = f"s3://lake/one/{'0' * 32}.json"
    with s3_proxy.counting(s3_kind) as counts:
        with io.new_output(location).create() as sink:
            sink.write(b"x" * 100_000)
        with io.new_input(location).open() as source:
            assert source.read() == b"x" * 100_000
    assert sum(counts.values()) == 2, counts


@pytest.mark.spark
def test_a_session_without_classes_for_s3_writes_nothing(store, tmp_path, monkeypatch):
    """The session cannot get them; the class is looked for under a name that does not exist."""
    connector = replace(CONNECTORS["s3a"], file_system="org.apache.hadoop.fs.s3a.Missing")
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://lake/classes"}
    with icefloe.connect(**properties, **store.properties) as lake:
        lake.create_table("a.t", "id BIGINT").append([{"id": 1}])
        before = store.keys("lake/classes")
        monkeypatch.setitem(CONNECTORS, "s3a", connector)
        monkeypatch.setattr(connectors, "_checked", {})
        expected = r"no class for s3a .*Nothing was written.*hadoop-aws:\d"
        for statement in (
            lambda: lake.create_table("a.u", "id BIGINT"),
            lambda: lake.table("a.t").append([{"id": 1}]),
            lambda: lake.table("a.t").scan(),
        ):
            with pytest.raises(SetupError, match=expected):
                statement()
        assert store.keys("lake/classes") == before


@pytest.mark.spark
def test_two_stores_with_buckets_of_one_name(store, tmp_path):
    """Hadoop would use one connection for both."""
    with running_s3(tmp_path / "other") as other:
        other.make_bucket("lake")
        tables = []
        for number, server in enumerate((store, replace(other, secret_key=other.secret_key))):
            uri = f"sqlite:///{tmp_path}/{number}.db"
            lake = icefloe.connect(uri=uri, warehouse="s3://lake/same", **server.properties)
            table = lake.create_table("a.t", "id BIGINT")
            table.append(lake.spark.range(number, number + 1))
            tables.append(table)
        assert [[row.id for row in table.scan().collect()] for table in tables] == [[0], [1]]
