"""Tasks read more of a file when they read few of its columns; the session is left as it was."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from icefloe.commands import row_changes
from icefloe.spark.session import spark_conf
from support.tables import rows

SETTING = "spark.sql.files.maxPartitionBytes"
COLUMNS = [f"c{i}" for i in range(12)]
SCHEMA = "id BIGINT, " + ", ".join(f"{name} BIGINT" for name in COLUMNS)
ROWS = [{"id": i, **dict.fromkeys(COLUMNS, None if i % 3 else 7919 * i)} for i in range(60)]


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the session, when files of a few bytes count as large."""
    found = []

    @contextmanager
    def noted(_spark, key, value):
        found.append((key, int(value)))
        yield

    monkeypatch.setattr(row_changes, "_DEFAULT", 8)
    monkeypatch.setattr(row_changes, "spark_conf", noted)
    return found


def run(table, what, mode):
    source = [{**ROWS[5], "c1": -5}, {**ROWS[6], "id": 100}]
    statements = {
        "delete": lambda: table.delete().where("id < 3"),
        "delete by all": lambda: table.delete().where(
            " AND ".join(f"coalesce({name}, 0) >= 0" for name in COLUMNS) + " AND id < 3"
        ),
        "update": lambda: table.update().set("c1", "id").where("id < 3"),
        "upsert": lambda: table.upsert(source, on=["id"]),
    }
    return statements[what]().with_options(mode=mode).execute()


@pytest.mark.parametrize(
    ("what", "mode", "larger"),
    [
        ("delete", "merge-on-read", True),
        ("delete", "copy-on-write", True),
        ("delete", "auto", True),
        ("delete by all", "merge-on-read", False),
        ("update", "merge-on-read", True),
        ("update", "copy-on-write", True),
        ("upsert", "merge-on-read", False),  # its tasks that read have no Python worker
        ("upsert", "copy-on-write", False),
    ],
)
@pytest.mark.parametrize("deleted_before", [False, True])
def test_where_few_columns_are_read(table_of, asked, what, mode, larger, deleted_before):
    table = table_of(SCHEMA, ROWS[:30], ROWS[30:])
    if deleted_before:
        table.delete().where("id = 20").execute()
    asked.clear()

    result = run(table, what, mode)

    assert result.total_affected > 0
    assert {key for key, _ in asked} == ({SETTING} if larger else set())
    assert all(8 < value <= 64 for _, value in asked)


def test_the_setting_is_brought_back_and_rows_are_the_same(table_of, monkeypatch):
    monkeypatch.setattr(row_changes, "_DEFAULT", 512)
    table = table_of(SCHEMA, ROWS)
    spark = table._lake.spark
    before = spark.conf.get(SETTING)
    seen = []

    def noted(spark, key, value):
        seen.append(value)
        return spark_conf(spark, key, value)

    def spied(*told):
        during.append(spark.conf.get(SETTING))
        return found(*told)

    during, found = [], row_changes.find_rows
    monkeypatch.setattr(row_changes, "find_rows", spied)
    monkeypatch.setattr(row_changes, "spark_conf", noted)

    table.delete().where("id % 2 = 0").execute()

    assert during == seen == [str(8 * 512)]
    assert spark.conf.get(SETTING) == before
    assert sorted(row[0] for row in rows(table)) == list(range(1, 60, 2))


def test_a_setting_of_the_sessions_own_is_kept(table_of, asked):
    table = table_of(SCHEMA, ROWS)
    spark = table._lake.spark
    before = spark.conf.get(SETTING)
    spark.conf.set(SETTING, "64MB")
    try:
        assert table.delete().where("id < 3").execute().rows_deleted == 3
        assert spark.conf.get(SETTING) == "64MB"
    finally:
        spark.conf.set(SETTING, before)
    assert asked == []


def test_small_tables_and_columns_that_files_lack_change_nothing(table_of, monkeypatch):
    table = table_of(SCHEMA, ROWS)
    asked = []
    monkeypatch.setattr(row_changes, "spark_conf", lambda *told: asked.append(told))
    assert table.delete().where("id = 1").execute().rows_deleted == 1

    monkeypatch.setattr(row_changes, "_DEFAULT", 8)
    table.add_column("late", "INT")
    assert table.delete().where("late IS NULL AND id = 2").execute().rows_deleted == 1
    assert asked == []
