"""No secret of a catalog in any message, log record, repr, explain() or traceback."""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Callable, Iterator

import pyiceberg.catalog
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.utils.config import Config
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from requests import ConnectionError as NoConnectionError
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

import icefloe
from icefloe import DmlResult, ExpireResult, Lake, OrphansResult, errors, redaction
from icefloe.cli.app import app
from icefloe.cli.shell import run_reporting_errors
from icefloe.errors import IcefloeError, StatementError, StorageError
from icefloe.inspection.log import ReplaceWhereAction
from icefloe.metadata.table_state import state_of
from icefloe.redaction import MASK, names_secret, redacted, register
from icefloe.spark.errors import translate_spark_errors
from icefloe.sql.parse import parse_statements
from support.tables import data_files

MARK = "Zm4rk"
URI = f"postgresql+psycopg://{MARK}user:{MARK}p%40ss%2Furi@db.example/lake?sslpassword={MARK}query"
DECODED = f"{MARK}p@ss/uri"
PROPERTIES: dict[str, object] = {
    "s3.access-key-id": f"{MARK}-access",
    "s3.secret-access-key": f"{MARK}-secret'quo\\ted\n-line",
    "s3.session-token": f"{MARK}-session",
    "adls.account-key": f"{MARK}-account==",
    "adls.sas-token": f"sv=1&sig={MARK}%2Bsas",
    "adls.connection-string": f"AccountName=x;AccountKey={MARK}-inner==;EndpointSuffix=y",
    "adls.client-secret": f"{MARK}-client",
    "gcs.oauth2.token": f"{MARK}-gcs",
    "hf.token": f"{MARK}-hf",
    "credential": f"id:{MARK}-credential",
    "token": f"{MARK}-bearer",
    "header.Authorization": f"Bearer {MARK}-header",
    "ssl.private-key": f"{MARK}-private",
    "some.password": f"{MARK}-password",
    "s3.proxy-uri": f"http://proxy:{MARK}-proxy@proxy.example:3128/x",
    "rest.auth": {"type": "basic", "basic": {"username": "u", "password": f"{MARK}-nested"}},
}
SECRET_TEXTS = (
    DECODED,
    f"{MARK}p%40ss%2Furi",
    f"{MARK}query",
    f"{MARK}-access",
    f"{MARK}-secret",
    "-line",
    f"{MARK}-session",
    f"{MARK}-account",
    f"{MARK}%2Bsas",
    f"{MARK}-inner",
    f"{MARK}-client",
    f"{MARK}-gcs",
    f"{MARK}-hf",
    f"{MARK}-credential",
    f"{MARK}-bearer",
    f"{MARK}-header",
    f"{MARK}-private",
    f"{MARK}-password",
    f"{MARK}-proxy",
    f"{MARK}-nested",
)
LEAK = f"{URI} {DECODED} {PROPERTIES}"  # as a library's error may show them


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """What is registered here is not masked in the messages of other tests."""
    monkeypatch.setattr(redaction, "_registry", redaction._Registry())


def assert_clean(*texts: str) -> None:
    shown = [secret for text in texts for secret in SECRET_TEXTS if secret in text]
    assert shown == [], texts


def shown_by(error: BaseException) -> Iterator[str]:
    yield str(error)
    yield repr(error)
    yield repr(vars(error))
    yield "".join(traceback.format_exception(error))


def raised_by(work: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        work()
    return caught.value


@pytest.fixture
def marked(spark, tmp_path) -> Iterator[Lake]:
    """A lake whose catalog has a marked secret in every property that may hold one."""
    uri = f"sqlite:///{tmp_path}/own.db"
    with icefloe.connect(tmp_path / "files", uri=uri, spark=spark, **PROPERTIES) as lake:
        register({"uri": URI})  # of a catalog that was handed in
        yield lake


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": URI.replace("postgresql+psycopg", "nodb")},  # a type that cannot be inferred
        {"uri": URI, "type": "nosuch"},
        {"uri": URI.replace("postgresql+psycopg", "postgresql+nodriver")},
        {"uri": URI.replace("@db.example", "@db.example:noport")},
        {"uri": URI, "type": "sql", "py-catalog-impl": "no.Catalog"},
        {"uri": URI.replace("postgresql+psycopg", "http"), "type": "rest"},
        {"uri": f"http://u:{MARK}-proxy@[bad/", "type": "rest"},
        {"py-catalog-impl": "nosuchmodule.Catalog"},
        {"type": 7},
    ],
)
def test_a_catalog_that_cannot_be_opened(properties, caplog):
    caplog.set_level(logging.DEBUG, "icefloe")
    given = {**PROPERTIES, **properties}
    error = raised_by(lambda: icefloe.connect("files", **given))
    assert_clean(*shown_by(error), caplog.text)
    if properties.get("uri", "").startswith("nodb"):
        assert isinstance(error, errors.StatementError)
        assert "PyIceberg cannot open the catalog" in str(error)
        assert "nodb://" in str(error)
        assert MASK in str(error)


def test_a_catalog_of_the_configuration(tmp_path, monkeypatch):
    uri = URI.replace("postgresql+psycopg", "nodb").replace(f"{MARK}p%40ss", "C0nf1gured")
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  team:\n    uri: {uri}\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    error = raised_by(lambda: icefloe.connect(catalog="team"))
    assert not any("C0nf1gured" in text for text in shown_by(error))

    done = CliRunner().invoke(app, ["--debug", "--catalog", "team", "tables"])
    assert done.exit_code == 1
    assert "cannot open the catalog 'team'" in done.output
    assert "C0nf1gured" not in done.output


FAILURES: dict[str, Callable[[], Exception]] = {
    "no table": lambda: NoSuchTableError(LEAK),
    "storage": lambda: OSError(5, LEAK, LEAK),
    "value": lambda: ValueError(LEAK),
    "lost race": lambda: CommitFailedException(LEAK),
    "no connection": lambda: NoConnectionError(ValueError(LEAK)),
    "database": lambda: OperationalError(LEAK, {}, ValueError(LEAK)),
    "unknown": lambda: RuntimeError(LEAK),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_catalog_that_fails(marked, monkeypatch, caplog, failure):
    """Every call of the lake, and a commit of an unknown outcome."""
    caplog.set_level(logging.DEBUG, "icefloe")
    table = marked.create_table("d.t", "id BIGINT", properties={"commit.retry.num-retries": "0"})
    catalog, load_table = marked.catalog, marked.catalog.load_table
    committing = [False]

    def fail(*_args: object, **_options: object) -> None:
        committing[0] = True
        try:
            raise KeyError(LEAK)
        except KeyError:
            raise failure()  # noqa: B904

    monkeypatch.setattr(catalog, "commit_table", fail)
    monkeypatch.setattr(
        catalog, "load_table", lambda name: fail() if committing[0] else load_table(name)
    )
    commits = [
        lambda: table.append([{"id": 1}]),
        lambda: table.set_properties({"a": "b"}),
        lambda: marked.sql("ALTER TABLE d.t ADD COLUMN x INT"),
    ]
    found = []
    for work in commits:
        committing[0] = False
        found.append(raised_by(work))
    for name in ("list_tables", "list_namespaces", "create_table", "drop_table", "purge_table",
                 "rename_table", "create_namespace"):  # fmt: skip
        monkeypatch.setattr(catalog, name, fail)
    reads = [
        lambda: marked.table("d.t"),
        marked.tables,
        lambda: marked.create_table("d.u", "id BIGINT"),
        lambda: marked.drop_table("d.t"),
        lambda: marked.drop_table("d.t", purge=True),
        lambda: marked.rename_table("d.t", "d.v"),
        lambda: marked.create_namespace("n"),
        lambda: marked.sql("SHOW TABLES"),
    ]
    found += map(raised_by, reads)
    for error in found:
        assert_clean(*shown_by(error))
    assert_clean(caplog.text)


def test_statements_that_name_a_secret(marked, caplog):
    """The text of a statement is in many messages."""
    caplog.set_level(logging.DEBUG, "icefloe")
    secret = f"{MARK}-bearer"
    table = marked.create_table("d.t", "id BIGINT, s STRING")
    found = [
        raised_by(lambda: marked.sql(f"SELEC '{secret}'")),
        raised_by(lambda: marked.sql(f"SELECT * FROM d.`{secret}`")),
        raised_by(lambda: marked.table(secret)),
        raised_by(lambda: table.scan([secret])),
        raised_by(lambda: table.delete().where(f"s = '{secret}' AND nowhere").execute()),
    ]
    for error in found:
        assert_clean(str(error), repr(error), repr(vars(error)))
    table.append([{"id": 1, "s": "a"}])
    plan = table.delete().where(f"s = '{secret}'").explain()
    assert_clean(str(plan), repr(plan), repr(marked), repr(table), caplog.text)
    printed = marked.sql(f"EXPLAIN DELETE FROM d.t WHERE s = '{secret}'").collect()
    assert_clean(str(printed))


def test_reprs_of_statements_and_plans(marked, spark):
    """Builders, the statements in them and their plans, with a secret in each of their texts."""
    secret = f"{MARK}-bearer"
    table = marked.create_table("d.t", "id BIGINT, s STRING", partition_by=("s",))
    table.append([{"id": 1, "s": secret}])  # the partition's folder has the secret in its name
    source = spark.createDataFrame([(1, secret)], "id BIGINT, s STRING")
    on = f"target.id = source.id AND target.s = '{secret}'"
    matched = table.merge(source, on=on).when_matched(f"source.s = '{secret}'")
    options = {"summary": {"job": secret}, "idempotency_key": secret, "branch": secret}
    where = f"s = '{secret}' AND id > 0"
    statements = [
        table.update().set("s", f"'{secret}'").where(where),
        table.update().set("id", F.lit(secret).cast("bigint")).where(F.col("s") == secret),
        table.delete().where(where),
        matched.update({"s": f"'{secret}'"}),
        table.merge(source, on=on).when_not_matched().insert_all(),
        table.replace_where(f"s = '{secret}'", source),
        table.replace_using(["id"], source),
    ]
    for statement in statements:
        with_options = statement.with_options(**options)
        plan = statement.explain()
        values = (statement, with_options, with_options._statement, with_options._statement.options,
                  plan, plan.files, plan.skipped)  # fmt: skip
        assert_clean(*map(repr, values))
    assert MASK in repr(statements[0].explain())
    assert statements[0].explain().where == where  # the value itself stays
    assert_clean(repr(matched), repr(icefloe.write([{"s": secret}]).option("replaceWhere", secret)))
    assert_clean(repr(state_of(table.iceberg, "d.t")), repr(data_files(table)))


def test_reprs_of_results_and_parsed_statements(marked):
    path = f"s3://u:{MARK}-proxy@bucket/{MARK}-bearer/x.parquet"
    own = f"'some.password' = '{MARK}-own'"
    parsed = parse_statements(
        f"SELECT '{MARK}-bearer'; CREATE TABLE t (id INT) TBLPROPERTIES ({own}); "
        f"ALTER TABLE t SET TBLPROPERTIES ({own}); DELETE FROM t WHERE s = '{MARK}-bearer'"
    )
    values = [
        DmlResult(operation=f"{MARK}-bearer"),
        ExpireResult(files_failed=(path,), files_kept=(path,), refs_removed=(f"{MARK}-bearer",)),
        OrphansResult(dry_run=True, files=(path,), files_failed=(path,)),
        ReplaceWhereAction(f"s = '{MARK}-bearer'", 0),
        parsed,
        marked.catalog,
    ]
    texts = [text for value in values for text in (str(value), repr(value))]
    assert_clean(*texts)
    assert not any(f"{MARK}-own" in text for text in texts)
    assert repr(OrphansResult(dry_run=True)).startswith("OrphansResult(dry_run=True, files=()")


def test_properties_of_tables_that_name_secrets_are_masked(marked, spark):
    """As Spark masks them in SHOW TBLPROPERTIES."""
    own = {"write.parquet.compression-codec": "zstd", "some.api-key": f"{MARK}-own",
           "lineage": f"https://u:{MARK}-line@host/x"}  # fmt: skip
    marked.create_table("d.t", "id BIGINT", properties=own)
    for statement in ("SHOW TBLPROPERTIES d.t", "SHOW CREATE TABLE d.t", "DESCRIBE EXTENDED d.t"):
        shown = str(marked.sql(statement).collect())
        assert f"{MARK}-own" not in shown
        assert f"{MARK}-line" not in shown
        assert MASK in shown
        assert "some.api-key" in shown
        assert "zstd" in shown
    assert marked.table("d.t").properties["some.api-key"] == f"{MARK}-own"


def test_log_records(marked):
    log = logging.getLogger("icefloe")
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    log.addHandler(handler)
    try:
        log.error("lost %s at %d", LEAK, 7)
        log.error("plain %s", "text")
        try:
            raise ValueError(LEAK)
        except ValueError:
            log.exception("failed")
    finally:
        log.removeHandler(handler)
    assert_clean(written.getvalue())
    assert "at 7" in written.getvalue()
    assert "plain text" in written.getvalue()
    assert "Traceback" in written.getvalue()


@pytest.mark.parametrize("debug", [False, True])
def test_the_command_line(marked, capsys, debug):
    """Also errors that are not icefloe's own."""

    def fail() -> None:
        error = RuntimeError(LEAK)
        error.add_note(LEAK)
        raise error

    assert run_reporting_errors(fail, debug=debug) == 1
    printed = capsys.readouterr()
    assert "RuntimeError" in printed.err
    assert_clean(printed.out, printed.err)


def test_texts_without_secrets_stay_as_they_are():
    register({"token": "abc", "password": "true", "some.secret": "cat", "x.password": "shop"})
    text = "true abc cat shopping workshop https://host:8080/a@b postgresql://me@host/db"
    assert redacted(text) == text
    assert redacted("the shop") == f"the {MASK}"


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("s3.access-key-id", True), ("s3.secret-access-key", True), ("PASSWORD", True),
        ("adls.sas-token.account", True), ("adls.account-key", True), ("token", True),
        ("adls.connection-string", True), ("credential", True), ("s3.sse.key", True),
        ("uri", False), ("warehouse", False), ("token-refresh-enabled", False),
        ("oauth2-server-uri", False), ("gcs.oauth2.token-expires-at", False),
        ("s3.region", False), ("encryption.key-id", False), ("write.data.path", False),
        ("history.expire.max-snapshot-age-ms", False), ("sasquatch", False),
    ],
)  # fmt: skip
def test_names_of_secrets(key, secret):
    assert names_secret(key) is secret


def test_an_error_of_spark_with_a_secret_is_not_in_the_traceback():
    """Spark's exceptions keep their text where nobody can change it."""
    register({"s3.secret-access-key": "S3CR3T-of-spark"})
    with pytest.raises(IcefloeError) as caught, translate_spark_errors():
        raise AnalysisException("bad S3CR3T-of-spark path")
    assert "S3CR3T" not in "".join(traceback.format_exception(caught.value))


def test_an_error_that_cannot_be_changed_does_not_hide_ours():
    class Fixed(OSError):
        @property
        def statement(self):
            return "S3CR3T-of-fixed"

    register({"s3.secret-access-key": "S3CR3T-of-fixed"})
    with pytest.raises(StorageError, match="a failure"):
        try:
            raise Fixed("x")
        except Fixed as error:
            raise StorageError("a failure") from error


def test_properties_of_a_table_mask_no_names(lake):
    """A property may say which column has a token."""
    properties = {"api.token-column": "user_identifier", "my-secret": "orders"}
    table = lake.create_table("t", "user_identifier INT", properties=properties)
    with pytest.raises(StatementError) as caught:
        table.update().set("orders", "1").execute()
    assert "'orders'" in str(caught.value)
    assert "user_identifier" in str(caught.value)
