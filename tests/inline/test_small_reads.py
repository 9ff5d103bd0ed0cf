"""Counts and small reads that Spark is not asked for, compared with those that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DecimalType, DoubleType, LongType

from icefloe import Lake, Table
from icefloe.commands.local_bind import lower_locally
from icefloe.commands.scan import ScanRequest, _count_by_metadata, _read_few_rows
from icefloe.errors import ColumnNotFoundError, StatementError
from icefloe.metadata.table_state import TableState, state_of
from support.foreign_files import adopted_file, equality_delete, position_delete, publish
from support.random_conditions import SCHEMA, VALUES, random_conditions, random_rows
from support.tables import data_files, row

INLINE = {"icefloe.inline.enabled": "true"}
FILED, LATER, INLINED = random_rows(1, 60), random_rows(2, 60), random_rows(3, 60)
FEW_DDL = "id BIGINT, region STRING, n INT"


def numbered(rows: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    return [{**each, "id": first + number} for number, each in enumerate(rows)]


def few_rows(table: Table, request: ScanRequest) -> pa.Table | None:
    """What is read without Spark; None if Spark has to read."""
    return _read_few_rows(table._context(), state(table), request)


def counted(table: Table, where: str | None = None) -> int | None:
    """What is counted by metadata and the database; None if a file has to be read."""
    counts = _count_by_metadata(table._context(), state(table), where)
    return None if counts is None or counts.uncounted else counts.rows


def state(table: Table) -> TableState:
    return table._lake.tier.with_deletes(state_of(table.iceberg, table.name))


def plain(rows: pa.Table) -> list[str]:
    """Rows as texts, in which NaN equals itself and -0.0 is not 0.0."""
    return sorted(map(repr, rows.to_pylist()))


@pytest.fixture
def evolved(lake: Lake, mode: str, partition_by: tuple[str, ...]) -> Table:
    """Two files with deletes, columns renamed, promoted and added in between, and inline rows."""
    modes = {f"write.{kind}.mode": mode for kind in ("delete", "update", "merge")}
    table = lake.create_table(
        "x.t",
        SCHEMA,
        partition_by=("b",) if partition_by else (),
        properties={**INLINE, **modes},
    )
    table.append([each for each in FILED if each["b"] is not False])
    table.delete().where("id % 7 = 3").execute()
    with table.iceberg.update_schema() as update:
        update.update_column("i", field_type=LongType())
        update.update_column("f", field_type=DoubleType())
        update.update_column("n", field_type=DecimalType(25, 2))
        update.rename_column("s", "text")
    table.add_column("s", "STRING")
    later = [{**each, "text": each["s"]} for each in numbered(LATER, 100)]
    table.append([each for each in later if each["b"] is not False])
    table.delete().where("id % 5 = 1").execute()
    table.insert([{**each, "text": each["s"]} for each in numbered(INLINED, 200)])
    return table


@pytest.mark.requirement("L16", "X03", "X05")
def test_random_conditions_select_the_rows_that_spark_selects(evolved, jobs):
    table = evolved
    texts = random_conditions(seed=17, count=200)
    texts += [text.replace("s ", "text ") for text in random_conditions(19, 20, ["s"])]
    certain = [t for t in texts if lower_locally(t, state_of(table.iceberg, table.name))]
    assert len(certain) > 180
    columns = [f"coalesce(({text}), false) AS p{n}" for n, text in enumerate(certain)]
    judged = table.scan().selectExpr("id", *columns).toArrow()
    expected = plain(table.scan().toArrow())
    types = table.scan().toArrow().schema
    before = jobs()
    for number, text in enumerate(certain):
        ids = judged.filter(judged.column(f"p{number}")).column("id").to_pylist()
        found = few_rows(table, ScanRequest(["id"], text))
        assert found is not None, text
        assert sorted(found.column("id").to_pylist()) == sorted(ids), text
        if (by_metadata := counted(table, text)) is not None:
            assert by_metadata == len(ids), text
    everything = table.to_arrow()
    assert plain(everything) == expected
    assert everything.schema.remove_metadata().types == types.remove_metadata().types
    assert everything.schema.names == types.names
    assert table.count() == len(expected)
    assert jobs() == before


def test_every_column_and_type_is_as_spark_gives_it(evolved, jobs):
    table, where = evolved, "id IN (2, 105, 201, 202, 203)"
    expected = table.scan(where=where).toArrow()
    frame = table.scan(where=where).toPandas().sort_values("id").reset_index(drop=True)
    before = jobs()
    found = table.to_arrow(where=where)
    assert found.schema.types == expected.schema.types
    assert plain(found) == plain(expected)
    for name in expected.column_names:
        assert plain(table.to_arrow([name], where)) == plain(expected.select([name]))
    assert jobs() == before
    pandas = table.to_pandas(where=where).sort_values("id").reset_index(drop=True)
    assert list(pandas.dtypes) == list(frame.dtypes)
    for name in frame.columns:
        assert list(map(repr, pandas[name])) == list(map(repr, frame[name])), name
    named = table.to_arrow(["text", "id"], where)
    assert named.column_names == ["text", "id"]


def test_limits(evolved, jobs):
    before = jobs()
    for limit in (0, 1, 7, 1000):
        found = evolved.to_arrow(["id"], limit=limit)
        assert found.num_rows == min(limit, evolved.count())
        assert len(set(found.column("id").to_pylist())) == found.num_rows
        assert evolved.to_arrow(["id"], "id >= 200", limit=limit).num_rows == min(limit, 60)
    assert jobs() == before


def test_large_offsets_where_the_session_asks_for_them(evolved, spark):
    key = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(key, "true")
    try:
        where = "id IN (2, 201)"
        expected, found = evolved.scan(where=where).toArrow(), evolved.to_arrow(where=where)
        assert found.schema.types == expected.schema.types
    finally:
        spark.conf.unset(key)


# -------------------------------------------------------------------------------------------------
# Counts


def test_counts_of_a_table_without_the_tier(table_of, jobs, mode, partition_by):
    table = table_of(FEW_DDL, mode=mode, partition_by=partition_by)
    assert table.count() == 0
    table.append([row(n, "us" if n % 2 else "eu") for n in range(10)])
    table.delete().where("id IN (3, 4)").execute()
    before = jobs()
    assert table.count() == 8
    if partition_by:
        assert table.count("region = 'us'") == 4
        assert jobs() == before
    assert table.count("id > 5") == 4
    assert table.count("id + 1 > 6") == 4


def test_positions_that_are_deleted_twice_count_once(lake, table_of, jobs):
    table = table_of(FEW_DDL, [row(n) for n in range(10)], [row(n) for n in range(10, 20)])
    first, second = sorted(file.path for file in data_files(table))
    deletes = [
        position_delete(table, [(first, 1), (first, 2), (second, 0)]),
        position_delete(table, [(first, 2), (first, 2), (first, 3)]),
        position_delete(table, [("file:///no/such/file.parquet", 1), (first, 1000)]),
    ]
    publish(lake, table, deletes=deletes)
    before = jobs()
    assert counted(table) == table.count() == 16
    assert jobs() == before
    assert table.scan().count() == 16
    assert plain(table.to_arrow()) == plain(table.scan().toArrow())


def test_equality_deletes_are_left_to_spark(lake, table_of):
    table = table_of(FEW_DDL, [row(n) for n in range(10)], properties=INLINE)
    table.insert([row(100)])
    publish(lake, table, deletes=[equality_delete(table, [{"id": 3}])])
    assert counted(table) is None
    assert few_rows(table, ScanRequest()) is None
    assert (table.count(), table.count("id = 3"), table.count("id = 100")) == (10, 0, 1)
    assert sorted(table.to_arrow(["id"]).column("id").to_pylist()) == [0, 1, 2, *range(4, 10), 100]


# -------------------------------------------------------------------------------------------------
# What is left to Spark


@pytest.fixture
def small(table_of) -> Table:
    table = table_of(FEW_DDL, [row(n) for n in range(5)], properties=INLINE)
    table.insert([row(100)])
    return table


@pytest.mark.parametrize(
    "request_",
    [
        ScanRequest(["ID"]),
        ScanRequest(["_file"]),
        ScanRequest(["id", "id"]),
        ScanRequest([]),
        ScanRequest(where="id + 1 = 2"),
        ScanRequest(where="ID = 2"),
    ],
)
def test_requests_that_are_left_to_spark(small, request_):
    assert few_rows(small, request_) is None
    expected = small.scan(request_.columns, request_.where, limit=request_.limit).toArrow()
    found = small.to_arrow(request_.columns, request_.where, limit=request_.limit)
    assert found.num_rows == expected.num_rows


def test_errors_are_those_of_a_scan(small):
    with pytest.raises(ColumnNotFoundError):
        small.to_arrow(["nosuch"])
    with pytest.raises(ColumnNotFoundError):
        small.to_arrow(where="nosuch = 1 AND FALSE")
    with pytest.raises(StatementError):
        small.to_arrow("id")  # type: ignore[arg-type]
    with pytest.raises(StatementError):
        small.count("id")


def test_many_files_are_left_to_spark(table_of):
    table = table_of(FEW_DDL, *([row(n)] for n in range(5)))
    assert few_rows(table, ScanRequest()) is None
    assert few_rows(table, ScanRequest(where="id < 4")) is not None
    assert table.to_arrow().num_rows == 5


def the_file(table: Table) -> Path:
    [file] = data_files(table)
    return Path(urlparse(file.path).path)


def test_a_file_that_is_missing_or_damaged_is_left_to_spark(small):
    path = the_file(small)
    path.write_bytes(path.read_bytes()[:-20])
    assert few_rows(small, ScanRequest()) is None
    path.unlink()
    assert few_rows(small, ScanRequest()) is None
    assert small.to_arrow(["id"], "id = 100").num_rows == 1


def test_files_without_field_ids_are_left_to_spark(lake, table_of, tmp_path):
    table = table_of(FEW_DDL)
    path = tmp_path / "plain.parquet"
    n = pa.array([1, None], pa.int32())
    pq.write_table(pa.table({"id": [1, 2], "region": ["a", None], "n": n}), path)
    named = enumerate(("id", "region", "n"), 1)
    mapping = json.dumps([{"field-id": number, "names": [name]} for number, name in named])
    table.set_properties({"schema.name-mapping.default": mapping})
    publish(lake, table, data=[adopted_file(table, path, ())])
    assert few_rows(table, ScanRequest()) is None
    assert table.to_arrow(["id"]).column("id").to_pylist() == [1, 2]
    assert table.count() == 2


@pytest.mark.parametrize("how", ["int96", "millis", "spark"])
def test_timestamps_of_other_kinds_are_left_to_spark(lake, table_of, tmp_path, how):
    table = table_of("id BIGINT, ts TIMESTAMP", [{"id": 1, "ts": VALUES["ts"][1]}])
    rows, path = pq.read_table(the_file(table)), tmp_path / "other.parquet"
    if how == "spark":
        rows = rows.replace_schema_metadata({"org.apache.spark.version": "4.1.0"})
    options: dict[str, Any] = {
        "int96": {"use_deprecated_int96_timestamps": True},
        "millis": {"coerce_timestamps": "ms", "store_schema": False},
        "spark": {},
    }[how]
    pq.write_table(rows, path, **options)
    added = adopted_file(table, path, (), like=the_file(table))
    table.truncate()
    publish(lake, table, data=[added])
    assert few_rows(table, ScanRequest()) is None
    assert table.to_arrow().to_pylist() == [{"id": 1, "ts": VALUES["ts"][1]}]


def test_nested_columns_that_were_changed_are_left_to_spark(table_of):
    rows = [{"id": 1, "st": {"x": 1, "y": "a"}}, {"id": 2, "st": None}]
    table = table_of("id BIGINT, st STRUCT<x: INT, y: STRING>", rows)
    assert plain(few_rows(table, ScanRequest())) == plain(table.scan().toArrow())
    with table.iceberg.update_schema() as update:
        update.rename_column("st.x", "z")
    assert few_rows(table, ScanRequest()) is None
    assert table.to_arrow().to_pylist()[0] == {"id": 1, "st": {"z": 1, "y": "a"}}
