"""A lake without Spark, and the second writer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icefloe import Lake
from support.pyiceberg_tables import open_lake
from support.races import before_commit, before_swap, meanwhile, other

__all__ = ["before_commit", "before_swap", "meanwhile", "other"]


@pytest.fixture
def plain_lake(tmp_path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake") as lake:
        yield lake
