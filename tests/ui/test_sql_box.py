"""Statements of the page that Spark runs."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime

import pytest

from icefloe.errors import StatementError, UnknownTableError
from icefloe.sql.names import Names
from icefloe.ui.sql_box import MOST_ROWS, SqlBox
from support.page import client_of, refuse_spark

ROWS = [
    {"id": 1, "region": "us", "tags": ["a", None], "at": datetime(2026, 1, 2, 3, 4, 5)},
    {"id": 2, "region": "eu", "tags": None, "at": None},
]
_ON_FILES = "spark.sql.runSQLOnFiles"


@pytest.fixture
def table(table_of):
    schema = "id BIGINT, region STRING, tags ARRAY<STRING>, at TIMESTAMP"
    return table_of(schema, ROWS, partition_by=("region",))


@pytest.fixture
def box(lake):
    opened = SqlBox(lake)
    yield opened
    opened.stop()


def test_a_query_answers_with_text(lake, table, box, spark):
    text = f"""SELECT *, x'00ff' AS data, struct(1 AS a, NULL AS b) AS s, double('NaN') AS d, id > 1 AS f,
        1.50BD AS n, DATE'2026-01-01' AS day, parse_json('{{"k": 1}}') AS v FROM {table.name} ORDER BY id"""
    before = spark.conf.get(_ON_FILES, None)
    answer = client_of(lake, box).post("/api/sql", json={"text": text}).json()
    types = {column["name"]: column["type"] for column in answer["columns"]}
    assert types["tags"] == "array<string>"
    first = dict(zip(types, answer["rows"][0], strict=True))
    assert first["id"] == "1"
    assert first["tags"] == '["a", null]'
    assert first["at"].startswith("2026-01-02 03:04:05")
    assert first["data"] == "X'00FF'"
    assert first["s"] == '{"a": 1, "b": null}'
    assert (first["d"], first["f"], first["n"]) == ("nan", "false", "1.50")
    assert (first["day"], first["v"]) == ("2026-01-01", '{"k":1}')
    assert answer["rows"][1][2:4] == [None, None]
    assert (answer["more"], [c["numeric"] for c in answer["columns"]][:2]) == (False, [True, False])
    assert spark.conf.get(_ON_FILES, None) == before


def test_rows_beyond_the_limit_are_not_sent(box):
    answer = box.run("SELECT id FROM range(100000)")
    assert (len(answer["rows"]), answer["more"]) == (MOST_ROWS, True)


def test_explain_of_dml_is_a_plan_with_files_and_reasons(table, box):
    before = table.snapshot_id
    plan = box.run(f"EXPLAIN UPDATE {table.name} SET id = id + 1 WHERE region = 'us'")
    assert plan["kind"] == "plan"
    assert (plan["operation"], plan["mode"], plan["candidates"]) == ("update", "merge-on-read", 1)
    assert plan["skipped_by"] == {"partition": 1}
    assert plan["actions"] == {"write deletes": 1}
    (file,) = plan["files"]
    assert file["path"].startswith("data/region=us/")
    assert file["reason"] == "may hold matching rows"
    assert plan["assignments"] == ["id = id + 1"]
    assert table.snapshot_id == before


def test_other_statements_that_only_read_are_answered(table, box):
    text = box.run(f"EXPLAIN INSERT INTO {table.name} SELECT * FROM {table.name}")
    assert "no file of the table is read" in text["text"]
    assert "Physical Plan" in box.run(f"EXPLAIN SELECT * FROM {table.name}")["text"]
    assert box.run(f"DESCRIBE {table.name}")["rows"][0][0] == "id"
    assert [table.name.split(".")[1]] == [row[1] for row in box.run("SHOW TABLES")["rows"]]
    assert box.run(f"SELECT count(*) FROM {table.name}.files")["rows"] == [["2"]]


@pytest.mark.parametrize(
    "text",
    [
        "EXPLAIN MERGE INTO {table} t USING parquet.`{folder}` s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "EXPLAIN DELETE FROM {table} WHERE id IN (SELECT id FROM parquet.`{folder}`)",
        "EXPLAIN WITH a AS (SELECT * FROM parquet.`{folder}`) DELETE FROM {table} WHERE id IN (SELECT id FROM a)",
        "EXPLAIN INSERT INTO {table} SELECT * FROM parquet.`{folder}`",
    ],
)
def test_explain_reads_no_file_by_path_either(table, box, spark, tmp_path, text):
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(UnknownTableError, match="not a table of this lake"):
        box.run(text.format(table=table.name, folder=tmp_path / "other"))


def test_the_session_reads_no_file_by_path(box, spark, tmp_path, monkeypatch):
    """Where a name was not found in the text, Spark itself refuses it."""
    spark.range(3).write.parquet(str(tmp_path / "other"))
    monkeypatch.setattr(Names, "check", lambda *_: None)
    with pytest.raises(UnknownTableError, match="other"):
        box.run(f"SELECT * FROM parquet.`{tmp_path}/other`")
    assert spark.sql(f"SELECT * FROM parquet.`{tmp_path}/other`").count() == 3


@pytest.mark.slow
def test_a_long_statement_can_be_cancelled(box):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            box.run, "SELECT max(a.id * b.id % 7) FROM range(10000000) a CROSS JOIN range(100000) b"
        )
        while not running.done():
            box.cancel()
            time.sleep(0.1)
        assert "cancel" in str(running.exception()).lower()
    assert box.run("SELECT 1")["rows"] == [["1"]]


def test_one_statement_runs_at_a_time(cold_lake):
    box = SqlBox(cold_lake, refuse_spark)
    box._running = Future()
    with pytest.raises(StatementError, match="Another statement is running"):
        box.run("SELECT 1")
    box._running.set_result({})
    box.stop()
