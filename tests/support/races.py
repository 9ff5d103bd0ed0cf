"""Two lakes over one catalog, and ways to let the second writer in while a statement runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import Lake

Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def other(spark: SparkSession, tmp_path: Path, lake: Lake) -> Iterator[Lake]:
    """Another connection to the lake of the test: the other writer."""
    with icefloe.connect(tmp_path / "lake", spark=spark) as opened:
        yield opened


@pytest.fixture
def before_commit(lake: Lake) -> Meanwhile:
    """Runs something once a statement's data is written and before it looks at the table again."""

    return partial(once_before_publish, lake)


def once_before_publish(lake: Lake, action: Callable[[], object]) -> None:
    """Run something once, when a statement has done its work and is about to publish."""

    def act_once() -> None:
        lake.before_publish = lambda: None
        action()

    lake.before_publish = act_once


@pytest.fixture
def before_swap(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Runs something once a statement found no conflict and before the catalog is asked."""

    def let_in(action: Callable[[], object]) -> None:
        pending, commit_table = [action], lake.catalog.commit_table

        def commit_after(*arguments: Any) -> Any:
            if pending:
                pending.pop()()
            return commit_table(*arguments)

        monkeypatch.setattr(lake.catalog, "commit_table", commit_after)

    return let_in


@pytest.fixture(params=["before_commit", "before_swap"])
def meanwhile(request: pytest.FixtureRequest) -> Meanwhile:
    """Either moment: found by the first validation, or after a lost race."""
    return request.getfixturevalue(request.param)
