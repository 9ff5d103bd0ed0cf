"""Lakes of a whole module, and indexes that are used also where they do not pay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake
from support.indexed_statements import use_indexes_always


@pytest.fixture(scope="module")
def shared_lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake for tables that several tests read and none changes."""
    with icefloe.connect(tmp_path_factory.mktemp("shared"), spark=spark) as opened:
        yield opened


@pytest.fixture
def always_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that an index found are read by position also where whole files cost less."""
    use_indexes_always(monkeypatch)
