"""What properties say of a store, for PyArrow and for Spark; no store is asked."""

from __future__ import annotations

import io as files
import pickle
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from botocore.exceptions import IncompleteReadError
from pyarrow.fs import LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.snapshots import Snapshot
from pyspark import cloudpickle

import icefloe
from icefloe.errors import SetupError, StatementError, StorageError
from icefloe.metadata.manifests import list_manifests
from icefloe.redaction import MASK, redacted
from icefloe.spark import connectors
from icefloe.spark.connectors import check_connector, remember_download, session_settings
from icefloe.storage import file_io, filesystem
from icefloe.storage.file_io import HeldObjects, StoreFileIO, io_of
from icefloe.storage.files import open_input
from icefloe.storage.filesystem import (
    BoundedS3FileSystem,
    ObjectReader,
    answers,
    delete_quietly,
    new_file,
)
from icefloe.storage.locations import name_of, spark_uri
from icefloe.storage.s3 import S3Options, filesystem_of, s3a_settings
from icefloe.storage.spark_files import (
    CONNECTORS,
    connectors_of,
    file_path,
    spark_files,
    with_plain_schemes,
)

MINIO = {
    "s3.endpoint": "http://127.0.0.1:9",
    "s3.access-key-id": "key",
    "s3.secret-access-key": "a-secret-key",
}
UNIQUE = "0123456789abcdef0123456789abcdef"
FILE = "s3://bucket/t/data/p=a b/1.parquet"


class TestOptions:
    def test_of_a_store_like_s3(self):
        s3a = s3a_settings(S3Options.of(MINIO))
        assert s3a["endpoint"] == "http://127.0.0.1:9"
        assert s3a["path.style.access"] == "true"
        assert s3a["connection.ssl.enabled"] == "false"
        assert s3a["endpoint.region"] == "us-east-1"
        assert s3a["access.key"] == "key"
        assert s3a["aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")

    def test_vended_credentials(self):
        s3a = s3a_settings(S3Options.of({**MINIO, "s3.session-token": "t"}))
        assert s3a["session.token"] == "t"
        assert s3a["aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")

    def test_without_credentials_the_session_decides(self):
        s3a = s3a_settings(S3Options.of({"s3.region": "eu-west-1"}))
        assert s3a["endpoint.region"] == "eu-west-1"
        assert not {"aws.credentials.provider", "endpoint", "access.key"} & s3a.keys()

    def test_secrets_are_not_shown(self):
        properties = {**MINIO, "s3.session-token": "token", "s3.proxy-uri": "http://me:pass@proxy"}
        options = S3Options.of(properties)
        assert (options.session_token, options.proxy) == ("token", "http://me:pass@proxy")
        for secret in (properties["s3.secret-access-key"], "token", "pass"):
            assert secret not in repr(options).replace("session_token", "")

    def test_a_role(self):
        s3a = s3a_settings(S3Options.of({**MINIO, "s3.role-arn": "arn:aws:iam::1:role/r"}))
        assert s3a["assumed.role.arn"] == "arn:aws:iam::1:role/r"
        assert s3a["aws.credentials.provider"].endswith(".AssumedRoleCredentialProvider")
        assert s3a["assumed.role.credentials.provider"].endswith("SimpleAWSCredentialsProvider")

    def test_virtual_addressing(self):
        s3a = s3a_settings(S3Options.of({**MINIO, "s3.force-virtual-addressing": "true"}))
        assert s3a["path.style.access"] == "false"

    def test_waits_have_one_default_and_one_place(self):
        s3a = s3a_settings(S3Options.of({}))
        assert s3a["retry.limit"] == "2"
        assert s3a["connection.timeout"] == "15000ms"
        less = {"icefloe.io.max-attempts": "2", "s3.request-timeout": "30"}
        s3a = s3a_settings(S3Options.of(less))
        assert s3a["retry.limit"] == "1"
        assert s3a["connection.timeout"] == "30000ms"

    @pytest.mark.parametrize("value", ["0", "-1", "many"])
    def test_a_wrong_number_is_refused(self, value):
        message = f"Invalid value '{value}' for 'icefloe.io.max-attempts'"
        with pytest.raises(StatementError, match=message):
            S3Options.of({"icefloe.io.max-attempts": value})

    def test_remote_signing_is_refused(self):
        with pytest.raises(SetupError, match=r"Have it vend credentials"):
            S3Options.of({"s3.remote-signing-enabled": "true"})


class TestPyArrow:
    def test_a_pickled_file_system_keeps_its_attempts(self):
        filesystem = filesystem_of(S3Options.of({**MINIO, "icefloe.io.max-attempts": "2"}), "b")
        attempts, options = pickle.loads(cloudpickle.dumps(filesystem)).made_of
        assert attempts == 2
        assert options["request_timeout"] == 10.0

    def test_tables_of_one_store_share_their_connections(self):
        one, other = StoreFileIO(MINIO), StoreFileIO({**MINIO, "owner": "me"})
        assert one.fs_by_scheme("s3", "b") is other.fs_by_scheme("s3a", "b")

    def test_files_on_a_disk_are_as_pyiceberg_has_them(self, tmp_path):
        location = f"file://{tmp_path}/a"
        with StoreFileIO().new_output(location).create() as file:
            file.write(b"x")
        assert (tmp_path / "a").read_bytes() == b"x"
        assert type(StoreFileIO().new_input(location)) is type(PyArrowFileIO().new_input(location))


class TestSpark:
    def test_options_of_a_read(self):
        read = spark_files(StoreFileIO(MINIO), [FILE])
        scheme = read.paths[0].partition("://")[0]
        assert read.paths == (f"{scheme}://bucket/t/data/p=a b/1.parquet",)
        assert read.options[f"fs.{scheme}.impl"].endswith("S3AFileSystem")
        assert read.options["fs.s3a.bucket.bucket.secret.key"] == "a-secret-key"
        assert "a-secret-key" not in repr(read)

    def test_every_set_of_options_has_a_scheme_of_its_own(self):
        schemes = {
            spark_files(StoreFileIO(properties), [FILE]).paths[0].partition("://")[0]
            for properties in (MINIO, {**MINIO, "s3.session-token": "t"}, {})
        }
        assert len(schemes) == 3
        again = spark_files(StoreFileIO({**MINIO, "owner": "me"}), [FILE])
        assert again.paths[0].partition("://")[0] in schemes

    def test_two_buckets(self):
        read = spark_files(StoreFileIO(MINIO), [FILE, "s3a://other/x"])
        assert {key for key in read.options if key.endswith(".endpoint")} == {
            "fs.s3a.bucket.bucket.endpoint",
            "fs.s3a.bucket.other.endpoint",
        }

    def test_disks_and_other_stores_have_no_options(self):
        read = spark_files(StoreFileIO(MINIO), ["/t/1.parquet", "hdfs://n/t/2.parquet"])
        assert read.paths == ("file:///t/1.parquet", "hdfs://n/t/2.parquet")
        assert read.options == {}

    def test_names_of_files(self, spark):
        """The names that Spark gives to files are those that the table's locations are turned to."""
        [path] = spark_files(StoreFileIO(MINIO), [FILE]).paths
        for locations, named, expected in (
            ([FILE], spark_uri(path), spark_uri(FILE)),
            ([FILE, "/t/1.parquet"], spark_uri(path), spark_uri(FILE)),
            ([FILE, "/t/1.parquet"], spark_uri("/t/1.parquet"), spark_uri("/t/1.parquet")),
            (["/t/1.parquet"], spark_uri("/t/1.parquet"), spark_uri("/t/1.parquet")),
        ):
            value = file_path(locations).replace("_metadata.file_path", "f")
            [row] = spark.createDataFrame([(named,)], "f string").selectExpr(value).collect()
            assert row[0] == expected

    def test_messages_have_the_locations_of_tables(self):
        [path] = spark_files(StoreFileIO(MINIO), ["s3://b/x"]).paths
        assert with_plain_schemes(f"no {path}") == "no s3://b/x"

    def test_s3_and_s3a_are_one_place(self):
        assert name_of("s3://b/x") == name_of("s3a://b/x")
        assert spark_uri("s3://b/x y") == spark_uri("s3a://b/x y") == "s3a://b/x%20y"


class TestConnectors:
    @pytest.mark.parametrize(
        ("properties", "schemes"),
        [
            ({"warehouse": "s3://b/w"}, ["s3a"]),
            ({"type": "rest", "uri": "http://x", "s3.region": "r"}, ["s3a"]),
            ({"warehouse": "gs://b"}, ["gs"]),
            ({"warehouse": "abfss://c@a.dfs.core.windows.net/w"}, ["abfss"]),
            ({"warehouse": "file:///w", "uri": "sqlite:////w/catalog.db"}, []),
            ({"uri": "postgresql+psycopg://u@h/d"}, []),
        ],
    )
    def test_what_a_catalog_asks_for(self, properties, schemes):
        assert [connector.scheme for connector in connectors_of(properties)] == schemes

    @pytest.mark.parametrize("location", ["s3://bucket/x", "s3a://b", "gs://b/x", "abfss://c@a/x"])
    def test_a_store_is_no_lake_without_a_catalog(self, location, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(StatementError, match=r"cannot hold a catalog.* Name one too"):
            icefloe.connect(location)
        assert list(tmp_path.iterdir()) == []


class _Vending:
    """A catalog and a table of it whose credentials end at a given time."""

    def __init__(self, seconds: float) -> None:
        self.properties: dict[str, str] = {}
        self.seconds, self.loads = seconds, 0

    def load_table(self, _name: object) -> _Vended:
        self.loads += 1
        return _Vended(self)


class _Vended:
    def __init__(self, catalog: _Vending) -> None:
        self.catalog = catalog
        ends = int((time.time() + catalog.seconds) * 1000)
        self.io = PyArrowFileIO(
            {
                **MINIO,
                "s3.session-token": f"token {catalog.loads}",
                "s3.session-token-expires-at-ms": str(ends),
            }
        )
        self.metadata = self
        self.table_uuid, self.location = "uuid", "s3://b/t"

    def name(self) -> tuple[str, ...]:
        return ("a", "t")


class TestVendedCredentials:
    def test_are_used_for_half_of_their_life(self):
        catalog = _Vending(3600)
        first = io_of(catalog.load_table("t"))
        second = io_of(catalog.load_table("t"))
        assert second is first
        assert first.options.session_token == "token 1"

    def test_are_renewed_when_they_are_used_later(self):
        catalog = _Vending(0)
        io = io_of(catalog.load_table("t"))
        catalog.seconds = 3600
        assert io.options.session_token == "token 2"
        assert io.options.session_token == "token 2"
        assert catalog.loads == 2
        assert redacted("<token 2>") == f"<{MASK}>"

    def test_stay_when_the_catalog_is_down(self, caplog):
        catalog = _Vending(0)
        io = io_of(catalog.load_table("t"))
        catalog.load_table = lambda _name: 1 / 0  # type: ignore[method-assign]
        assert io.options.session_token == "token 1"
        assert "New credentials were not received" in caplog.text


class _Objects:
    """A client of a store that counts its requests."""

    meta = SimpleNamespace(config=SimpleNamespace(retries={"total_max_attempts": 3}))

    def __init__(self, data: bytes, broken: int = 0) -> None:
        self.data, self.spans, self.broken = data, [], broken

    def get_object(self, Bucket: str, Key: str, Range: str = "bytes=0-") -> dict[str, object]:
        self.spans.append(Range)
        if len(self.spans) <= self.broken:
            return {"Body": _BrokenBody()}
        first, _, last = Range.removeprefix("bytes=").partition("-")
        size = len(self.data)
        if not first:
            data = self.data[-int(last) :]
        else:
            data = self.data[int(first) : int(last) + 1 if last else size]
        return {"Body": files.BytesIO(data), "ContentRange": f"bytes x/{size}"}


class _BrokenBody:
    def read(self) -> bytes:
        raise IncompleteReadError(actual_bytes=2, expected_bytes=5)


class TestObjects:
    def test_an_answer_that_breaks_off_is_asked_for_again(self):
        client = _Objects(b"12345", broken=2)
        assert ObjectReader(client, "b", "k", 5).read() == b"12345"
        assert len(client.spans) == 3

    def test_an_object_whose_answers_all_break_off_is_an_error(self):
        client = _Objects(b"12345", broken=3)
        with pytest.raises(OSError, match="2 read, but total bytes expected is 5"):
            ObjectReader(client, "b", "k", 5)
        assert len(client.spans) == 3

    @pytest.mark.parametrize("size", [None, 5])
    def test_a_small_one_is_read_with_one_request(self, size):
        client = _Objects(b"12345")
        reader = ObjectReader(client, "b", "k", size)
        assert reader.read(2) == b"12"
        assert reader.seek(-1, files.SEEK_END) == 4
        assert reader.read() == b"5"
        assert reader.read() == b""
        assert len(client.spans) == 1

    @pytest.mark.parametrize("known", [True, False])
    def test_the_footer_of_a_large_one_is_read_with_one_request(self, known):
        data = bytes(range(256)) * 8192
        client = _Objects(data)
        reader = ObjectReader(client, "b", "k", len(data) if known else None)
        reader.seek(-1000, files.SEEK_END)
        assert reader.read(1000) == data[-1000:]
        assert len(client.spans) == 1
        reader.seek(100)
        assert reader.read(300) == data[100:400]
        reader.seek(len(data) - filesystem._TAIL_BYTES - 10)
        assert reader.read(20) == data[-filesystem._TAIL_BYTES - 10 : -filesystem._TAIL_BYTES + 10]
        assert len(client.spans) == 3
        assert reader.read_whole() == data


class TestHeldObjects:
    """Files that every statement reads, and that never change, are read once."""

    @pytest.fixture
    def store(self, monkeypatch):
        client = _Objects(b"12345")
        monkeypatch.setattr(BoundedS3FileSystem, "client", client)
        monkeypatch.setattr(file_io, "objects", HeldObjects(1000))
        return client

    @pytest.mark.parametrize(
        ("name", "requests"),
        [
            (f"00001-{UNIQUE}.metadata.json", 2),  # whose length nothing says
            (f"snap-1-{UNIQUE}.avro", 1),
            (f"{UNIQUE}-d0-0-deletes.parquet", 1),
            (f"{UNIQUE}.parquet", 2),
            ("v1.metadata.json", 2),  # a name that may be written again
        ],
    )
    def test_which(self, store, name, requests):
        for io in (StoreFileIO(MINIO), StoreFileIO(MINIO)):
            assert io.read_object(f"s3://b/t/{name}") == b"12345"
        assert len(store.spans) == requests

    def test_not_with_other_credentials(self, store):
        location = f"s3://b/t/snap-1-{UNIQUE}.avro"
        for properties in (MINIO, {**MINIO, "s3.access-key-id": "another"}):
            StoreFileIO(properties).read_object(location)
        assert len(store.spans) == 2

    def test_not_if_the_cache_is_off(self, store):
        location = f"s3://b/t/snap-1-{UNIQUE}.avro"
        for _ in range(2):
            StoreFileIO({**MINIO, "io.manifest.cache-enabled": "false"}).read_object(location)
        assert len(store.spans) == 2

    def test_not_if_it_has_another_length_than_the_metadata_says(self, store):
        io, location = StoreFileIO(MINIO), f"s3://b/t/{UNIQUE}-d0-0-deletes.parquet"
        io.open_object(location, 5)
        io.open_object(location, 5)
        assert len(store.spans) == 1
        store.data = b"123456"
        assert io.open_object(location, 6).read_whole() == b"123456"
        assert io.open_object(location).read_whole() == b"123456"
        assert len(store.spans) == 2

    def test_not_if_it_cannot_be_decoded(self, store):
        """A file that was damaged and is restored has the length that it had."""
        io = StoreFileIO(MINIO)
        path = f"s3://b/t/snap-1-{UNIQUE}.avro"
        snapshot = Snapshot.model_validate(
            {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": path}
        )
        with pytest.raises(StorageError, match="damaged or truncated"):
            list_manifests(io, snapshot)
        location = f"s3://b/t/{UNIQUE}-d0-0-deletes.parquet"
        with pytest.raises(StorageError, match="deletes"), open_input(io, location, 5) as source:
            pq.read_metadata(source)
        store.data = b"54321"
        for name in (snapshot.manifest_list, location):
            assert io.read_object(name) == b"54321"
        assert file_io.objects._bytes == 10

    def test_the_least_recently_used_go_first(self):
        held, options = HeldObjects(10), S3Options()
        held.put((options, "a"), b"12345")
        held.put((options, "b"), b"12345")
        assert held.get((options, "a")) == b"12345"
        held.put((options, "c"), b"1")
        assert held.get((options, "b")) is None
        held.put((options, "a"), b"1")
        held.put((options, "d"), b"12345678")
        assert held.get((options, "a")) == b"1"


class TestSparksClasses:
    def test_a_session_without_them_is_refused_before_anything_is_written(self, spark):
        expected = r"no class for s3a .*packages = org\.apache\.hadoop:hadoop-aws:\d"
        with pytest.raises(SetupError, match=expected):
            check_connector(spark, CONNECTORS["s3a"])

    @pytest.fixture
    def hadoop(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        monkeypatch.setattr(connectors, "_bundled_hadoop", lambda: "3.5.0")
        monkeypatch.setattr(connectors, "_defaults", lambda: "spark.jars.packages a:b:1\n")
        return tmp_path

    def test_a_session_that_icefloe_starts_gets_them(self, hadoop):
        given = session_settings([CONNECTORS["s3a"]])
        packages = given["spark.jars.packages"].split(",")
        assert packages[:2] == ["a:b:1", "org.apache.hadoop:hadoop-aws:3.5.0"]
        assert "software.amazon.awssdk:s3:2.35.4" in packages
        assert "software.amazon.awssdk:bundle" in given["spark.jars.excludes"].split(",")

    def test_of_an_unknown_hadoop_with_the_whole_sdk(self, hadoop, monkeypatch):
        monkeypatch.setattr(connectors, "_bundled_hadoop", lambda: "3.9.9")
        given = session_settings([CONNECTORS["s3a"]])
        assert given["spark.jars.packages"] == "a:b:1,org.apache.hadoop:hadoop-aws:3.9.9"
        assert "spark.jars.excludes" not in given

    @pytest.mark.parametrize(
        "arguments", ["--packages org.apache.hadoop:hadoop-aws:3.5.0 pyspark-shell"]
    )
    def test_not_where_they_are_configured(self, hadoop, monkeypatch, arguments):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
        assert session_settings([CONNECTORS["s3a"]]) == {}

    def test_a_download_is_used_again_while_it_is_there(self, hadoop):
        jar = hadoop / "hadoop-aws.jar"
        jar.write_text("")
        application = {"spark.jars": f"file://{jar}"}
        session = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: application))
        remember_download(session, session_settings([CONNECTORS["s3a"]]))
        assert session_settings([CONNECTORS["s3a"]]) == {"spark.jars": str(jar)}
        jar.unlink()
        assert "spark.jars.packages" in session_settings([CONNECTORS["s3a"]])

    def test_none_for_a_disk(self, hadoop):
        assert session_settings([]) == {}


class TestAStoreThatIsDown:
    """It was waited for with all attempts before; what follows a failure does not wait."""

    @pytest.fixture
    def store(self) -> Iterator[BoundedS3FileSystem]:
        with socket.create_server(("127.0.0.1", 0), backlog=32) as mute:
            properties = {**MINIO, "s3.endpoint": f"http://127.0.0.1:{mute.getsockname()[1]}"}
            properties |= {"s3.request-timeout": "1", "icefloe.io.max-attempts": "3"}
            yield filesystem_of(S3Options.of(properties), "b")

    def test_a_failed_file_is_given_up(self, store, tmp_path):
        error = ValueError("the first error")
        with pytest.raises(ValueError, match="the first error"), new_file(store, "b/x") as sink:
            sink.write(b"x")
            raise error
        started = time.monotonic()
        for number in range(50):
            delete_quietly(store, f"b/{number}")
        assert not answers(store, "b/x")
        assert time.monotonic() - started < 0.5
        assert answers(LocalFileSystem(), str(tmp_path))
        assert not answers(pickle.loads(pickle.dumps(store)), "b/x")
