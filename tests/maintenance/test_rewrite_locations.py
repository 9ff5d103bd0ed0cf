"""Files that statements write are in the table's own data folder, whatever its manifests name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from icefloe.metadata.manifests import read_snapshot_files
from icefloe.metadata.table_state import state_of
from icefloe.writing.data_files import rewritten_folder
from support.pyiceberg_tables import data_paths, make, publish_at


@pytest.mark.parametrize(
    "place",
    [
        "data/../../other/data",
        "data/./../../other",
        "data/%2e%2e/%2E%2e/other",
        "data/a/../..",
        "data//../other",
        "data/x?/..",
        "metadata",
        "database",
    ],
)
def test_a_rewrite_stays_in_the_data_folder(plain_lake, place):
    table = make(plain_lake, "t", 1)
    location = f"{table.location}/{place}/x.parquet"
    publish_at(plain_lake, table, [location], like=data_paths(table)[0])
    state = state_of(table.iceberg, table.name)
    files = read_snapshot_files(state.io, state.snapshot)
    (odd,) = [file for file in files.data if file.path == location]

    assert rewritten_folder(state, odd) == f"{table.location}/data"


def test_a_rewrite_stays_beside_the_old_file(plain_lake):
    table = make(plain_lake, "t", 1)
    state = state_of(table.iceberg, table.name)
    for place in ("data", "data/region=us", "data/a..b/c%20d/..x"):
        file = SimpleNamespace(path=f"{table.location}/{place}/x.parquet")
        assert rewritten_folder(state, file) == f"{table.location}/{place}"
