"""A store on each database, with a table in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

import icefloe
from icefloe import Lake
from icefloe.inline.layout import InlineTable, inline_columns
from icefloe.inline.store import InlineStore
from icefloe.inline.tables import register_table
from support.inline_store import NAME, SCHEMA


@pytest.fixture
def postgresql_database(postgresql_server: str) -> Iterator[str]:
    """The URI of an empty database on PostgreSQL."""
    name = f"inline_{uuid4().hex}"
    engine = sa.create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    uri = sa.make_url(postgresql_server).set(database=name)
    yield uri.render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.db'}"
    return str(request.getfixturevalue("postgresql_database"))


@pytest.fixture
def open_store(database: str) -> Iterator[Callable[[], InlineStore]]:
    """Opens stores of the same database, closed afterwards."""
    opened: list[InlineStore] = []

    def make() -> InlineStore:
        opened.append(InlineStore.of_uri(database))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[[], InlineStore]) -> InlineStore:
    return open_store()


@pytest.fixture
def table(store: InlineStore) -> InlineTable:
    with store.writing() as connection:
        return register_table(connection, NAME, uuid4().hex, inline_columns(SCHEMA))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty lake for `support.inline_lakes.open_place`: the catalog has the inline rows too."""
    if request.param == "sqlite":
        return str(tmp_path / "lake")
    return f"{request.getfixturevalue('postgresql_database')} {tmp_path / 'lake'}"


@pytest.fixture
def other(lake: Lake, tmp_path: Path) -> Lake:
    """Another connection to the lake of the test."""
    return icefloe.connect(tmp_path / "lake", spark=lake.spark)
