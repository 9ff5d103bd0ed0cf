"""Lakes without Spark, and clients of their pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from starlette.testclient import TestClient

from icefloe.lake import Lake, open_catalog
from support.page import client_of, orders


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(tmp_path / "lake", None, {})


@pytest.fixture
def cold_lake(catalog: Catalog) -> Iterator[Lake]:
    """A lake whose Spark session is not started."""
    with Lake(catalog) as lake:
        yield lake


@pytest.fixture
def client(cold_lake: Lake) -> Iterator[TestClient]:
    """A client with the token, of a page that must not start Spark."""
    with client_of(cold_lake) as opened:
        yield opened


@pytest.fixture(scope="module")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def shop(shop_folder: Path) -> Iterator[Lake]:
    """A lake with the table shop.orders, which no test changes."""
    catalog = open_catalog(shop_folder / "lake", None, {})
    orders(catalog)
    with Lake(catalog) as lake:
        yield lake


@pytest.fixture
def shop_client(shop: Lake) -> TestClient:
    """A client with the token, of a page that must not start Spark."""
    return client_of(shop)
