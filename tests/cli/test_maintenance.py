"""The commands of maintenance, catalogs by name, readers that leave early, and Spark Connect."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import icefloe
from icefloe.errors import UnsupportedTableError
from support.cli import run
from support.pyiceberg_tables import data_paths, drop_rows, make, open_lake, publish_at
from support.pyiceberg_tables import stray as stray_file

SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


@pytest.fixture
def folder(spark, tmp_path) -> Path:
    """A lake with one table of two files and a delete, and a stray file in its folder."""
    found: Path = tmp_path / "lake"
    with icefloe.connect(found, spark=spark) as lake:
        orders = lake.create_table("shop.orders", "id BIGINT, n INT")
        orders.append([{"id": n, "n": n} for n in range(3)])
        orders.append([{"id": 9, "n": None}])
        orders.delete().where("id = 1").execute()
    return found


@pytest.fixture
def stray(folder) -> Path:
    path = folder / "shop" / "orders" / "data" / "stray.parquet"
    path.write_text("?")
    return path


def test_compact_expire_and_orphans_for_people(folder, stray):
    told = run(folder, "compact", "shop.orders")
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("compact: 3 rows rewritten in ")
    assert "1 data file added, 2 data files and 1 delete file removed" in told.stdout
    assert run(folder, "compact", "shop.orders").stdout.startswith("compact: nothing to change in")

    told = run(folder, "expire", "shop.orders")
    assert "expire: 0 snapshots expired, 4 kept in " in told.stdout
    told = run(folder, "expire", "shop.orders", "--older-than", SOON, "--retain-last", "2")
    assert "expire: 2 snapshots expired, 2 kept in " in told.stdout
    told = run(folder, "expire", "shop.orders", "--older-than", SOON)
    assert "; 2 data files, 1 delete file, " in told.stdout

    assert run(folder, "orphans", "shop.orders").stdout == (
        "orphans: nothing to delete; 1 file kept that may still be committed\n"
    )
    told = run(folder, "orphans", "shop.orders", "--older-than", SOON).stdout
    assert "data/stray.parquet" in told
    assert told.endswith("orphans: 1 file, 1 B found, none deleted: use --delete to delete them\n")
    assert stray.exists()
    young = ("orphans", "shop.orders", "--older-than", SOON, "--delete")
    refused = run(folder, *young)
    assert (refused.exit_code, stray.exists()) == (1, True)
    assert "--allow-recent" in refused.stderr
    told = run(folder, *young, "--allow-recent").stdout
    assert told.endswith("orphans: 1 file, 1 B deleted\n")
    assert not stray.exists()
    assert run(folder, "flush", "shop.orders").stdout.startswith("flush: nothing to change in ")


def test_compact_expire_and_orphans_for_programs(folder, stray):
    told = run(folder, "compact", "shop.orders", "--where", "id < 5", "--format", "json")
    result = json.loads(told.stdout)
    assert (result["operation"], result["rows_copied"], result["files_skipped"]) == (
        "compact",
        2,
        1,
    )
    told = run(folder, "compact", "shop.orders", "--target-file-bytes", "999", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(told.stdout, newline=""))
    assert row["operation"] == "compact"

    told = run(folder, "expire", "shop.orders", "--older-than", SOON, "--format", "json")
    result = json.loads(told.stdout)
    assert len(result["snapshots_expired"]) == result["manifest_lists_deleted"] >= 3

    told = run(folder, "--format", "json", "orphans", "shop.orders", "--older-than", SOON)
    result = json.loads(told.stdout)
    assert result["dry_run"] is True
    assert [Path(file).name for file in result["files"]] == ["stray.parquet"]
    assert (
        json.loads(run(folder, "flush", "shop.orders", "--format", "json").stdout)["snapshot_id"]
        is None
    )


def test_files_that_are_not_the_tables_are_reported(tmp_path):
    """`expire` lists what it left; `orphans` takes files of any name in a folder that is named."""
    home = stray_file(tmp_path / "home" / "notes.txt")
    with open_lake(tmp_path / "lake") as lake:
        table = make(lake, "t", 1, **{"write.data.path": f"file://{tmp_path}/elsewhere"})
        publish_at(lake, table, [f"file://{home}"], like=data_paths(table)[0])
        drop_rows(table)
    other = stray_file(tmp_path / "elsewhere" / "old.parquet")

    told = run(tmp_path / "lake", "expire", "default.t", "--older-than", SOON).stdout
    assert f"1 file kept that may not belong to the table: file://{home}" in told.replace("\n", " ")
    told = run(tmp_path / "lake", "orphans", "default.t", "--delete").stdout
    assert "nothing to delete; 1 file kept outside the table's location" in told.replace("\n", " ")
    wrong = run(tmp_path / "lake", "orphans", "default.t", "--folder", f"file://{tmp_path}")
    assert (wrong.exit_code, "not a folder of" in wrong.stderr) == (1, True)
    named = ("--folder", f"file://{tmp_path}/elsewhere", "--delete")
    assert "1 file, 10 B deleted" in run(tmp_path / "lake", "orphans", "default.t", *named).stdout
    assert (home.exists(), other.exists()) == (True, False)


def test_failures_have_their_status(folder):
    assert run(folder, "compact", "shop.nothing").exit_code == 1
    told = run(folder, "compact", "shop.orders", "--where", "idd = 1")
    assert (told.exit_code, told.stdout) == (1, "")
    assert "Did you mean 'id'?" in told.stderr
    for wrong in (
        ["expire", "shop.orders", "--older-than", "yesterday"],
        ["expire", "shop.orders", "--retain-last", "0"],
        ["compact", "shop.orders", "--target-file-bytes", "0"],
        ["orphans"],
    ):
        assert run(folder, *wrong).exit_code == 2


def program(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    left_out = {"PYSPARK_PYTHON", "SPARK_REMOTE"}
    known = {key: value for key, value in os.environ.items() if key not in left_out}
    return subprocess.run(
        [sys.executable, "-m", "icefloe", *arguments],
        cwd=folder,
        env={**known, "XDG_STATE_HOME": str(folder / "state"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "configured", ["file", pytest.param("environment", marks=pytest.mark.slow)]
)
def test_a_catalog_by_its_name(folder, tmp_path, configured):
    """The catalog is that of the lake's folder, called as it is there."""
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}"
    if configured == "file":
        text = f"catalog:\n  icefloe:\n    type: sql\n    uri: {uri}\n    warehouse: {warehouse}\n"
        (tmp_path / ".pyiceberg.yaml").write_text(text)
        environment = {"PYICEBERG_HOME": str(tmp_path)}
    else:
        prefix = "PYICEBERG_CATALOG__ICEFLOE__"
        environment = {f"{prefix}TYPE": "sql", f"{prefix}URI": uri, f"{prefix}WAREHOUSE": warehouse}
    told = program(tmp_path, "--catalog", "icefloe", "tables", "--format", "csv", **environment)
    assert told.stderr == ""
    assert told.stdout.splitlines()[1].startswith("shop.orders,3,2,1,")
    if configured == "environment":
        told = program(tmp_path, "--catalog", "icefloe", "orphans", "shop.orders", **environment)
        assert (told.stdout, told.returncode) == ("orphans: nothing to delete\n", 0)


@pytest.mark.slow
def test_a_catalog_that_nobody_configured(tmp_path):
    told = program(tmp_path, "--catalog", "nowhere", "tables", PYICEBERG_HOME=str(tmp_path))
    assert (told.returncode, told.stdout) == (1, "")
    assert "'nowhere'" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_early_hears_no_complaint(tmp_path):
    """`icefloe sql … | head -1`: one row, and quiet."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "icefloe",
            "sql",
            "SELECT id FROM range(3000000)",
            "--format",
            "csv",
        ],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"id\r\n"
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(120) == 1


@pytest.mark.slow
def test_the_command_line_over_spark_connect(folder, tmp_path):
    """SPARK_REMOTE is what Spark itself goes by; statements, rows and errors are the same."""
    text = "UPDATE shop.orders SET n = 5 WHERE id = 9; SELECT * FROM shop.orders ORDER BY id"
    arguments = ("--warehouse", str(folder), "--format", "csv")
    told = program(tmp_path, *arguments, "sql", text, SPARK_REMOTE="local[1]")
    assert told.stderr == ""
    assert told.stdout.splitlines()[-4:] == ["id,n", "0,0", "2,2", "9,5"]
    assert told.returncode == 0
    told = program(tmp_path, *arguments, "compact", "shop.orders", SPARK_REMOTE="local")
    assert (told.stderr, told.returncode) == ("", 0)
    assert ",3," in told.stdout


def test_flush_of_all_tables_and_of_those_that_are_due(tmp_path):
    lake = open_lake(tmp_path / "lake")
    lake.create_namespace("shop")
    for name, limit in (("many", "2"), ("few", "100")):
        properties = {"icefloe.inline.enabled": "true", "icefloe.inline.row-limit": limit}
        table = lake.create_table(
            f"shop.{name}", pa.schema([("id", pa.int64())]), properties=properties
        )
        table.insert([{"id": 1}])
    lake.create_table("shop.plain", pa.schema([("id", pa.int64())]))
    folder = str(tmp_path / "lake")
    assert run(folder, "flush", "--due").stdout == ""
    lake._flusher.stop()  # of this process: the command line flushes
    lake.table("shop.many").insert([{"id": 2}])
    lake.stop()
    assert "inline       2 rows more" in run(folder, "show", "shop.many").stdout
    assert run(folder, "flush", "--due").stdout.startswith("flush: 2 rows moved to data files in ")
    told = run(folder, "flush", "--format", "json").stdout.splitlines()
    assert [json.loads(line)["rows_copied"] for line in told] == [1, 0]
    assert "inline       0 rows more" in run(folder, "show", "shop.many").stdout


def inline_table(lake: icefloe.Lake, name: str, *ids: int) -> icefloe.Table:
    properties = {"icefloe.inline.enabled": "true", "icefloe.inline.row-limit": "2"}
    table = lake.create_table(name, pa.schema([("id", pa.int64())]), properties=properties)
    table.insert([{"id": number} for number in ids])
    return table


def break_table(lake: icefloe.Lake, name: str) -> None:
    location = lake.table(name).iceberg.metadata_location
    Path(location.removeprefix("file://")).write_text("{")


def test_a_table_that_cannot_be_flushed_keeps_no_other_from_it(tmp_path):
    with open_lake(tmp_path / "lake") as lake:
        lake._flusher.stop()  # the command line flushes
        inline_table(lake, "shop.a_broken", 1, 2)
        good = inline_table(lake, "shop.b", 1, 2)
        later = lake.create_table("shop.a_later", pa.schema([("id", pa.int64())]))
        file = Path(later.iceberg.metadata_location.removeprefix("file://"))
        metadata = json.loads(file.read_text()) | {"format-version": 3, "next-row-id": 0}
        file.write_text(json.dumps(metadata))
        with pytest.raises(UnsupportedTableError):
            _ = lake.table("shop.a_later").inline
        break_table(lake, "shop.a_broken")
        told = run(tmp_path / "lake", "flush", "--due")
        assert told.stdout.startswith("flush: 2 rows moved to data files in ")
        assert told.exit_code == 1
        first, last = told.stderr.splitlines()
        assert first.startswith("shop.a_broken: ")
        assert last == "Not all inline rows were flushed: see shop.a_broken."
        assert (good.inline.rows, good.count()) == (0, 2)
        alone = run(tmp_path / "lake", "flush", "shop.a_broken")
        assert (alone.exit_code, alone.stderr.count("\n")) == (1, 1)


def test_a_watch_flushes_until_it_is_interrupted(tmp_path):
    with open_lake(tmp_path / "lake") as lake:
        lake._flusher.stop()
        inline_table(lake, "shop.a_broken", 1, 2)
        table = inline_table(lake, "shop.b", 1)
        break_table(lake, "shop.a_broken")
        command = [sys.executable, "-m", "icefloe", "flush", "--due", "--watch", "0.1"]
        watch = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            for number in (2, 3):
                table.insert([{"id": 10 * number}, {"id": 10 * number + 1}])
                deadline = time.monotonic() + 60
                while table.inline.rows and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert (table.inline.rows, table.count()) == (0, 2 * number - 1)
            table.insert([{"id": 99}])
            time.sleep(0.5)
            assert table.inline.rows == 1  # not due
        finally:
            watch.send_signal(signal.SIGINT)
            out, err = watch.communicate(timeout=60)
    assert out.count("rows moved to data files") == 2
    assert "shop.a_broken: " in err
    assert watch.returncode == 130
