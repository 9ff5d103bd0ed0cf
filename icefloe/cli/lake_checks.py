"""The checks of `icefloe doctor` that import libraries: Spark, the catalog and its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from time import monotonic

import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyspark import SparkContext
from pyspark.sql import SparkSession

from icefloe.cli.doctor import Check, Status, Target, run_check
from icefloe.cli.worker import redirect_stderr, spark_log
from icefloe.errors import IcefloeError, SetupError, StorageError
from icefloe.inline.database import BEGIN, cause_of, is_busy, new_engine
from icefloe.lake import Lake, configured_inline_uri, open_catalog
from icefloe.spark.connectors import check_connector
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import session_of, started
from icefloe.storage.files import probe_folder
from icefloe.storage.locations import local_uri
from icefloe.storage.spark_files import Connector, connectors_of

_ROWS = 1000


def library_checks(target: Target, why_no_spark: str | None) -> Iterator[Check]:
    """The checks of the lake, then that of Spark, with what the lake's store needs of it."""
    connectors: list[Connector] = []
    folder = target.warehouse
    if folder is not None and not (folder.expanduser() / "catalog.db").exists():
        yield from _without_lake(folder, is_named=target.is_named)
    else:
        check, lake = _open(target)
        yield check
        if lake is None:
            yield Check("store", Status.SKIPPED, "not looked at: first see catalog")
        else:
            connectors = connectors_of(lake.catalog.properties)
            with lake:
                yield from _lake_checks(lake)
    if why_no_spark is not None:
        yield Check("spark", Status.SKIPPED, why_no_spark)
    else:
        yield run_check("spark", lambda: _try_spark(connectors))


# -------------------------------------------------------------------------------------------------
# Spark


def _try_spark(connectors: list[Connector]) -> str:
    """Start Spark, or find the running session, and run a job with a Python worker."""
    began, user = monotonic(), _SparkUser()
    session = _session_for(user, connectors)
    ready = monotonic() - began
    try:
        for connector in connectors:
            check_connector(session, connector)
        with translate_spark_errors():
            rows = session.range(_ROWS).mapInArrow(lambda batches: batches, "id BIGINT").count()
        if rows != _ROWS:
            raise IcefloeError(f"A job returned {rows} rows instead of {_ROWS}.")
        took = monotonic() - began - ready
        return f"{session.version} ready in {ready:.1f} s; a job with Python workers: {took:.1f} s"
    finally:
        started.release(user)


class _SparkUser:
    """Uses a session as a lake does: the last user stops it, if icefloe started it."""


def _session_for(user: _SparkUser, connectors: list[Connector]) -> SparkSession:
    running = SparkContext._active_spark_context is not None
    try:
        with nullcontext() if running else redirect_stderr(spark_log()):
            return session_of(None, user, connectors)
    except IcefloeError:
        raise
    except Exception as error:
        raise SetupError(
            f"Spark did not start: {error} The log of its JVM is {spark_log()}."
        ) from error


# -------------------------------------------------------------------------------------------------
# The lake


def _open(target: Target) -> tuple[Check, Lake | None]:
    """Whether the catalog can be reached, and the lake if so."""
    opened: list[Lake] = []

    def reach() -> str:
        began = monotonic()
        catalog = open_catalog(target.warehouse, target.catalog, {})
        lake = Lake(catalog, None, configured_inline_uri(target.catalog))
        try:
            names = lake.tables()
        except BaseException:
            lake.stop()
            raise
        opened.append(lake)
        noun = "table" if len(names) == 1 else "tables"
        return f"{_kind(catalog)}, {len(names)} {noun}, listed in {monotonic() - began:.2f} s"

    check = run_check("catalog", reach)
    return check, opened[0] if opened else None


def _lake_checks(lake: Lake) -> Iterator[Check]:
    yield run_check("rights", lambda: _may_commit(lake.catalog))
    yield run_check("store", lambda: _use_store(lake))
    yield run_check("inline", lambda: _inline(lake))


def _without_lake(folder: Path, *, is_named: bool) -> Iterator[Check]:
    """A folder that has no lake yet: it can be created if the nearest folder can be written."""
    how = "connect() creates one" if is_named else "--warehouse or --catalog name another"
    yield Check("catalog", Status.SKIPPED, f"there is no lake in {str(folder)!r} yet; {how}")
    above = Path(folder).expanduser().absolute()
    while not above.exists():
        above = above.parent
    location = local_uri(above)
    yield run_check("store", lambda: f"{probe_folder(load_file_io({}), location)} in {above}")


def _kind(catalog: Catalog) -> str:
    if isinstance(catalog, SqlCatalog):
        return f"SQL ({catalog.engine.url.render_as_string(hide_password=True)})"
    kind = type(catalog).__name__.removesuffix("Catalog")
    where = catalog.properties.get("uri")
    return f"{kind} ({where})" if where else kind


def _may_commit(catalog: Catalog) -> tuple[Status, str]:
    """Whether this user may change the catalog, where that can be found out without a change."""
    if not isinstance(catalog, SqlCatalog):
        unknown = "unknown: such a catalog says so only when a table is created or committed to"
        return Status.SKIPPED, unknown
    url = catalog.engine.url
    engine = new_engine(url)
    try:
        if url.get_backend_name() == "sqlite":
            _refuse_read_only(Path(url.database or ".").parent)
            with engine.connect().execution_options(**{BEGIN: "BEGIN IMMEDIATE"}) as connection:
                connection.begin().rollback()
            return Status.OK, "this user may write to the catalog's database"
        if url.get_backend_name() == "postgresql":
            return _granted(engine)
    except sa.exc.SQLAlchemyError as error:
        if is_busy(error):
            return Status.WARNING, "unknown: the catalog's database is locked by a writer"
        raise StorageError(
            f"This user cannot write to the catalog's database: {cause_of(error)}. Grant write "
            "access to it, and for SQLite to its folder."
        ) from error
    finally:
        engine.dispose()
    return Status.SKIPPED, f"unknown for {url.get_backend_name()}"


def _refuse_read_only(folder: Path) -> None:
    if not os.access(folder, os.W_OK):
        raise StorageError(
            f"This user cannot write to the folder {folder}, where SQLite keeps its journal. Grant "
            "write access to the folder."
        )


def _granted(engine: sa.Engine) -> tuple[Status, str]:
    names = ("INSERT", "UPDATE", "DELETE")
    has = [sa.func.has_table_privilege("iceberg_tables", name) for name in names]
    with engine.connect() as connection:
        row = connection.execute(sa.select(*has)).one()
    missing = [name for name, granted in zip(names, row, strict=True) if not granted]
    if missing:
        raise StorageError(
            f"This user cannot {', '.join(missing)} in iceberg_tables. Grant it: "
            f"GRANT {', '.join(missing)} ON iceberg_tables TO the user."
        )
    return Status.OK, "this user may write to the catalog's tables"


def _use_store(lake: Lake) -> tuple[Status, str] | str:
    found = _folder_of(lake)
    if found is None:
        return Status.SKIPPED, "unknown: the catalog has no warehouse and no table yet"
    io, folder = found
    return f"{probe_folder(io, folder)} in {folder}"


def _folder_of(lake: Lake) -> tuple[FileIO, str] | None:
    """The warehouse, or the folder of a table where the warehouse is only a name."""
    warehouse = str(lake.catalog.properties.get("warehouse", ""))
    if "://" in warehouse or warehouse.startswith(("/", "file:")):
        return load_file_io(lake.catalog.properties, warehouse), warehouse
    for name in lake.tables():
        table = lake.load(name)
        return table.io, table.location()
    return None


def _inline(lake: Lake) -> tuple[Status, str] | str:
    """The database of inline rows; a SQLite file that does not exist is not created."""
    try:
        store = lake.tier.store
    except IcefloeError as none:
        return Status.SKIPPED, f"no inline rows: {none}"
    missing = store.missing_file
    if missing is not None:
        return Status.SKIPPED, f"{missing} does not exist yet; the first insert creates it"
    with store.reading() as connection:
        state = "in use" if connection.installed else "no table has inline rows yet"
    return f"{store.database}: {state}"
