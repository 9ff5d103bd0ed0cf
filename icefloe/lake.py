"""A lake: a catalog of tables and a Spark session."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import ref

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table as IcebergTable
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from icefloe.commands.background_flush import BackgroundFlush
from icefloe.commands.context import Context
from icefloe.commit.catalog import (
    changing_catalog,
    drop_from_catalog,
    reading_catalog,
    rename_in_catalog,
)
from icefloe.display import HtmlRows, block_html, table_html
from icefloe.errors import (
    IcefloeError,
    StatementError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedTableError,
)
from icefloe.inline.database import cause_of
from icefloe.inline.layout import inline_columns
from icefloe.inline.tier import InlineTier
from icefloe.maintenance.own_files import purge_table
from icefloe.metadata.rest_catalog import is_rest, open_rest_catalog
from icefloe.metadata.sql_catalog import reading_once
from icefloe.metadata.table_state import TableState, state_of
from icefloe.redaction import redacted, register, reveals, scrubbed
from icefloe.schema.partition_spec import parse_partition_by, parse_sort_by
from icefloe.schema.to_iceberg import to_iceberg_schema
from icefloe.settings import (
    INLINE_STORE,
    MODE_PROPERTIES,
    Settings,
    UpdateMode,
    properties_to_store,
)
from icefloe.spark.connectors import check_connector
from icefloe.spark.progress import show_in_notebook
from icefloe.spark.session import session_of, started
from icefloe.spark.table_names import DEFAULT_NAMESPACE
from icefloe.sql.names import Names
from icefloe.sql.run import SqlResult, run_sql
from icefloe.storage.file_io import FILE_IO, refuse_bare_store
from icefloe.storage.locations import local_uri
from icefloe.storage.spark_files import connector_of, connectors_of
from icefloe.table import Table

log = logging.getLogger("icefloe")

EMBEDDED_CATALOG = "icefloe"
_SHOWN_TABLES = 100  # in a notebook
_opened: list[ref[Lake]] = []  # in the order of opening
_INLINE_URI = "inline-uri"  # in PyIceberg's configuration
_SQLITE_WAIT_S = 60  # writers of one SQLite catalog wait for each other rather than fail


def connect(
    warehouse: str | Path | None = None,
    *,
    catalog: str | Catalog | None = None,
    spark: SparkSession | None = None,
    inline_uri: str | None = None,
    **properties: Any,
) -> Lake:
    """Open a lake.

    `connect("lake")` opens the embedded default: a SQLite catalog and files in that folder. A
    `catalog` is a PyIceberg catalog or the name of one in PyIceberg's configuration. Other
    `properties` (`uri=`, `type=`, …) are passed to `pyiceberg.catalog.load_catalog`.

    `inline_uri` is the database of inline rows (`sqlite:///…` or `postgresql://…`) for catalogs
    that are not in one, such as REST, Glue and Hive. All clients of such a catalog name the same.
    A catalog in PyIceberg's configuration can have it as `inline-uri`.

    `spark` is a running session, classic or Spark Connect, which is never stopped. Without it the
    active session is used, or a local one is started.

    Examples:
        >>> lake = icefloe.connect("lake")
        >>> lake.tables()
        ['shop.orders']
        >>> lake.stop()
    """
    inline_uri = inline_uri or configured_inline_uri(catalog)
    lake = Lake(open_catalog(warehouse, catalog, properties), spark, inline_uri)
    _ = lake.spark  # fail or start now, not at the first statement
    show_in_notebook()
    _opened[:] = [*(earlier for earlier in _opened if earlier() is not None), ref(lake)]
    return lake


def last_opened() -> Lake:
    """The lake that `connect` opened last and that is still referenced."""
    for opened in reversed(_opened):
        if (lake := opened()) is not None:
            return lake
    raise StatementError("No lake is open. Call icefloe.connect(), or pass lake=.")


class Lake:
    """Tables by name, and SQL on them; a context manager.

    A Spark session that icefloe started is stopped with the last lake that uses it; others are
    left running. Tables are `namespace.table`; without a namespace they are in `default`.

    Examples:
        >>> with icefloe.connect("other") as other:
        ...     notes = other.create_table("app.notes", "id BIGINT, note STRING")
        ...     _ = notes.append([{"id": 1, "note": "x"}])
        ...     other.sql("SELECT note FROM app.notes").first()
        Row(note='x')
    """

    def __init__(
        self, catalog: Catalog, spark: SparkSession | None = None, inline_uri: str | None = None
    ) -> None:
        register(catalog.properties)
        self._catalog = catalog
        self._tier = InlineTier(catalog, inline_uri)
        self._spark = None if spark is None else session_of(spark)
        self._flusher = BackgroundFlush(self._tier)
        # Called when a statement has written its files and is about to publish them. Tests let
        # another writer commit here.
        self.before_publish: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return redacted(f"Lake({self._catalog.name!r})")

    def _repr_html_(self) -> str:
        """The names of the tables, for notebooks."""
        try:
            names = self.tables()
        except Exception as error:  # noqa: BLE001 - of any catalog; a repr has to show something
            return block_html(f"{self!r}: its tables cannot be listed: {error}")
        shown = [(name,) for name in names[:_SHOWN_TABLES]]
        noun = "table" if len(names) == 1 else "tables"
        return table_html(HtmlRows((noun,), shown), f"{self!r}: {len(names):,} {noun}")

    @property
    def spark(self) -> SparkSession:
        """The Spark session; a lake without one uses the active session or starts one."""
        if self._spark is None:
            self._spark = session_of(None, self, connectors_of(self._catalog.properties))
        return self._spark

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog."""
        return self._catalog

    @property
    def tier(self) -> InlineTier:
        """The inline tier of the catalog's tables."""
        return self._tier

    def stop(self) -> None:
        """Close the catalog; stop the Spark session if icefloe started it and no lake uses it.

        A flush in the background that is under way is waited for.
        """
        try:
            self._flusher.stop()
            self._tier.close()
            self._catalog.close()
        finally:
            started.release(self)

    @scrubbed()
    def create_namespace(self, name: str) -> None:
        """Create a namespace if it does not exist."""
        with changing_catalog(self._catalog, f"create the namespace {name}", lambda: None):
            try:
                self._catalog.create_namespace(name)
            except NamespaceAlreadyExistsError:
                return

    @scrubbed()
    def tables(self, namespace: str | None = None) -> list[str]:
        """Names of the tables, of one namespace or of all."""
        try:
            with reading_catalog("list its tables"):
                spaces = [(namespace,)] if namespace else self._catalog.list_namespaces()
                names = [name for space in spaces for name in self._catalog.list_tables(space)]
        except NoSuchNamespaceError as missing:
            raise TableNotFoundError(f"There is no namespace {namespace!r}.") from missing
        return sorted(".".join(name) for name in names)

    def table(self, name: str) -> Table:
        """An existing table; raises TableNotFoundError."""
        full = _full_name(name)
        self.load(full)
        return Table(self, full)

    @scrubbed()
    def create_table(
        self,
        name: str,
        schema: object,
        *,
        partition_by: Sequence[str] | str = (),
        sort_by: Sequence[str] | str = (),
        properties: Mapping[str, object] | None = None,
        format_version: int = 2,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table, and its namespace if it does not exist.

        `schema` is a DDL text, a Spark, PyIceberg or Arrow schema, or a frame that has one.
        `partition_by` takes columns and `bucket(16, id)`, `truncate(4, name)`, `years(ts)`,
        `months(ts)`, `days(ts)`, `hours(ts)`. `sort_by` takes columns.

        Examples:
            >>> schema = "id BIGINT NOT NULL, day DATE"
            >>> events = lake.create_table("web.events", schema, partition_by=["days(day)"])
            >>> events.format_version
            2
        """
        if format_version not in (1, 2):
            raise UnsupportedTableError(
                f"Format version {format_version} is not supported; use 2 (or 1)."
            )
        full = _full_name(name)
        _refuse_location(full)
        connector = connector_of(str(self._catalog.properties.get("warehouse", "")))
        if connector is not None and self._spark is not None:
            check_connector(self._spark, connector)  # a table that nobody can read is not created
        iceberg_schema = to_iceberg_schema(schema)
        spec = parse_partition_by(partition_by, iceberg_schema)
        order = parse_sort_by(sort_by, iceberg_schema)
        modes = dict.fromkeys(MODE_PROPERTIES, UpdateMode.MERGE_ON_READ.value)
        stored = properties_to_store({**modes, **(properties or {})})
        if Settings.of(stored).inline_enabled:
            inline_columns(iceberg_schema)  # refuses types that the inline tier cannot store
            stored[INLINE_STORE] = self._tier.store_id()
        self.create_namespace(full.rpartition(".")[0])

        def has_landed() -> bool | None:
            return None if self._catalog.table_exists(full) else False  # another one's, perhaps

        try:
            with changing_catalog(self._catalog, f"create {full}", has_landed):
                self._catalog.create_table(
                    full,
                    iceberg_schema,
                    partition_spec=spec,
                    sort_order=order,
                    properties={**stored, "format-version": str(format_version)},
                )
        except TableAlreadyExistsError as existing:
            if not if_not_exists:
                raise TableExistsError(
                    f"Table {full} exists already. Use lake.table({full!r}), or if_not_exists=True."
                ) from existing
        return Table(self, full)

    @scrubbed()
    def drop_table(self, name: str, *, purge: bool = False, if_exists: bool = False) -> None:
        """Drop a table; with `purge` its files are deleted too.

        A table with `gc.enabled` = `false` cannot be purged. Files outside its folders and files
        that another table needs are kept.
        """
        full = _full_name(name)
        try:
            dropped = self._state_if_readable(full)
            if purge:
                purge_table(self._catalog, full)
            else:
                uuid = dropped.metadata.table_uuid if dropped else None
                drop_from_catalog(self._catalog, full, uuid)
            if dropped is not None and dropped.has_inline_tier:
                self._of_inline(lambda: self._tier.forget(dropped))
        except NoSuchTableError as missing:
            if not if_exists:
                raise TableNotFoundError(f"Table {full} does not exist.") from missing

    @scrubbed()
    def rename_table(self, old: str, new: str) -> None:
        """Rename a table; its files stay where they are."""
        full, target = _full_name(old), _full_name(new)
        self.create_namespace(target.rpartition(".")[0])
        try:
            renamed = self._state_if_readable(full)
            uuid = renamed.metadata.table_uuid if renamed else None
            rename_in_catalog(self._catalog, full, target, uuid)
            if renamed is not None and renamed.has_inline_tier:
                self._of_inline(lambda: self._tier.rename(renamed, target))
        except NoSuchTableError as missing:
            raise TableNotFoundError(f"Table {full} does not exist.") from missing
        except TableAlreadyExistsError as existing:
            raise TableExistsError(f"Table {target} exists already.") from existing

    def load(self, full: str) -> IcebergTable:
        """The current PyIceberg table of that full name; raises TableNotFoundError."""
        try:
            with reading_catalog(f"read {full}"):
                return self._catalog.load_table(full)
        except (NoSuchTableError, NoSuchNamespaceError) as missing:
            others = ", ".join(self._tables_beside(full)) or "(none)"
            raise TableNotFoundError(
                f"Table {full} does not exist. Tables of that namespace: {others}."
            ) from missing

    @scrubbed()
    def sql(self, text: str, **sources: object) -> SqlResult:
        """Run SQL: a query returns a DataFrame, DML a `DmlResult`, DDL a DataFrame like Spark's.

        A name in `sources` (DataFrame, Arrow table, pandas frame, dicts) is a table in that text.
        Of several statements, separated by semicolons, the last result is returned.

        Examples:
            >>> lake.sql("DELETE FROM shop.orders WHERE id = 1").rows_deleted
            1
            >>> more = [{"id": 2, "n": 5}]
            >>> query = "SELECT o.id, m.n FROM shop.orders o JOIN more m ON o.id = m.id"
            >>> lake.sql(query, more=more).collect()
            [Row(id=2, n=5)]
        """
        return run_sql(text, sources, self)

    def context(self, read_state: Callable[[str], TableState]) -> Context:
        """The context of a statement on one table of this lake."""
        names = Names(self)
        return Context(
            lambda: self.spark,
            self._catalog,
            read_state,
            lambda name, state: replace(names, reading=state).rows(name),
            lambda: self.before_publish(),  # noqa: PLW0108 - as it is when a statement publishes
            self._tier,
            lambda state: self._flusher.make_room(state, self._opener(state.name)),
            lambda state, rows, size: self._flusher.flush_soon(
                state, rows, size, self._opener(state.name)
            ),
        )

    def _opener(self, full: str) -> Callable[[], Context]:
        """Opens contexts of one table whose state is always read from the catalog."""
        return lambda: self.context(lambda branch: state_of(self.load(full), full, branch))

    def _state_if_readable(self, full: str) -> TableState | None:
        """The state of a table, for its inline rows; None if its metadata cannot be read."""
        try:
            return state_of(self._catalog.load_table(full), full)
        except NoSuchTableError:
            raise
        except SQLAlchemyError as error:
            raise StorageError(f"The catalog failed to read {full}: {cause_of(error)}.") from error
        except Exception as unreadable:  # noqa: BLE001 - as for tables without the tier
            log.debug("%s cannot be read, nor its inline rows be looked for: %s", full, unreadable)
            return None

    def _of_inline(self, what: Callable[[], object]) -> None:
        """Do what follows a change of the catalog, which cannot be undone by an error."""
        try:
            what()
        except IcefloeError as error:
            log.warning("The inline tier was not brought up to date: %s", error)

    def _tables_beside(self, full: str) -> list[str]:
        try:
            return self.tables(full.rpartition(".")[0])
        except TableNotFoundError:
            return []


def open_catalog(
    warehouse: str | Path | None, catalog: str | Catalog | None, properties: dict[str, Any]
) -> Catalog:
    """The catalog that the arguments of `connect` name."""
    if isinstance(catalog, Catalog):
        return catalog
    if catalog is not None:
        location = {"warehouse": str(warehouse)} if warehouse is not None else {}
        return _load(catalog, {**location, **properties})
    if properties:
        location = {"warehouse": _uri(warehouse)} if warehouse is not None else {}
        return _load(EMBEDDED_CATALOG, {**location, **properties})
    if warehouse is None:
        raise StatementError(
            "connect() needs a warehouse folder, a catalog, or catalog properties such as uri=."
        )
    refuse_bare_store(warehouse)
    return _embedded(_plain(warehouse))


def configured_inline_uri(catalog: str | Catalog | None) -> str | None:
    """The database of inline rows that PyIceberg's configuration has for a catalog.

    Only what this client has configured counts, and not what a REST server says.
    """
    if not isinstance(catalog, str):
        return None
    uri = (Config().get_catalog_config(catalog) or {}).get(_INLINE_URI)
    return None if uri is None else str(uri)


def _load(name: str, properties: dict[str, Any]) -> Catalog:
    given: dict[str, Any] = {**(Config().get_catalog_config(name) or {}), **properties}
    register(given)
    if connectors_of(given):
        properties = {**properties, PY_IO_IMPL: given.get(PY_IO_IMPL, FILE_IO)}
    try:
        given |= properties
        if is_rest(given):
            with reading_catalog(f"answer at {given['uri']}"):
                loaded = open_rest_catalog(name, **given)
        else:
            loaded = reading_once(load_catalog(name, **properties))
        loaded.properties.pop(_INLINE_URI, None)  # files are read without it, also by Spark's tasks
        return loaded
    except Exception as wrong:
        if isinstance(wrong, ValueError) or reveals(wrong):
            # PyIceberg's message may list all properties, so the traceback must not show it.
            raise StatementError(f"PyIceberg cannot open the catalog {name!r}: {wrong}") from None
        raise


def _embedded(folder: Path) -> Catalog:
    if unusable := set("#?") & set(str(folder)):
        raise StatementError(
            f"A lake cannot be in {str(folder)!r}: in an Iceberg location {unusable.pop()!r} ends "
            "the path. Choose another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    path, wait = str(folder / "catalog.db"), {"timeout": str(_SQLITE_WAIT_S)}
    database = URL.create("sqlite", database=path, query=wait)
    opened = load_catalog(
        EMBEDDED_CATALOG,
        type="sql",
        uri=database.render_as_string(),
        warehouse=local_uri(folder),
    )
    return reading_once(opened)


def _plain(folder: str | Path) -> Path:
    """The absolute path without `..`, which Spark and Iceberg resolve differently."""
    return Path(os.path.abspath(Path(folder).expanduser()))  # noqa: PTH100 - follows no link


def _uri(warehouse: str | Path) -> str:
    """The URI of a warehouse folder; other locations unchanged."""
    text = str(warehouse)
    return text if "://" in text else local_uri(_plain(text))


def _refuse_location(name: str) -> None:
    """Refuse names that no Iceberg location can contain."""
    unusable = [char for char in name if char in "#?" or not char.isprintable()]
    if unusable:
        raise StatementError(
            f"A table cannot be named {name!r}: an Iceberg location cannot contain "
            f"{unusable[0]!r}. Choose another name."
        )


def _full_name(name: str) -> str:
    parts = [part for part in name.replace("`", "").split(".") if part]
    if not parts or len(parts) != name.count(".") + 1:
        raise StatementError(f"{name!r} is not a table name. Use 'table' or 'namespace.table'.")
    return ".".join(parts) if len(parts) > 1 else f"{DEFAULT_NAMESPACE}.{parts[0]}"
