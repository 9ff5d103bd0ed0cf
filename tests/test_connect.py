"""connect(): which catalog and which session a lake gets."""

from __future__ import annotations

import pyiceberg.catalog
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

import icefloe
from icefloe.errors import StatementError


def test_folder_is_made_with_catalog_and_files_in_it(spark, tmp_path):
    with icefloe.connect(tmp_path / "new" / "lake", spark=spark) as lake:
        table = lake.create_table("t", "id BIGINT")
        table.append([{"id": 1}])
    assert (tmp_path / "new/lake/catalog.db").is_file()
    assert table.location == f"file://{tmp_path}/new/lake/default/t"


def test_lake_opened_again_has_its_tables(spark, tmp_path):
    with icefloe.connect(str(tmp_path / "lake"), spark=spark) as lake:
        lake.create_table("t", "id BIGINT").append([{"id": 1}])
    with icefloe.connect(tmp_path / "lake", spark=spark) as again:
        assert again.tables() == ["default.t"]
        assert again.table("t").count() == 1


def test_relative_folder_is_below_the_working_directory(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with icefloe.connect("lake", spark=spark) as lake:
        location = lake.create_table("t", "id BIGINT").location
    assert location == f"file://{tmp_path}/lake/default/t"


def test_folder_with_a_space_and_an_accent(spark, tmp_path):
    with icefloe.connect(tmp_path / "mein Lake é", spark=spark) as lake:
        table = lake.create_table("t", "id BIGINT, n INT")
        table.append([{"id": 1, "n": 0}, {"id": 2, "n": 0}])
        table.update().set("n", "1").where("id = 1").execute()
        table.delete().where("id = 2").with_options(mode="copy-on-write").execute()
        assert [tuple(row) for row in table.scan().collect()] == [(1, 1)]


def test_catalog_object_is_taken_as_it_is(spark, tmp_path):
    given = load_catalog(
        "mine", type="sql", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}"
    )
    with icefloe.connect(catalog=given, spark=spark) as lake:
        assert lake.catalog is given
        assert lake.spark is spark
        lake.create_table("t", "id BIGINT").append([{"id": 1}])
        assert lake.table("t").count() == 1


def test_catalog_name_is_looked_up_in_the_environment(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/prod.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", f"file://{tmp_path}/prod")
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    with icefloe.connect(catalog="prod", spark=spark) as lake:
        assert lake.catalog.name == "prod"
        assert lake.create_table("t", "id BIGINT").location == f"file://{tmp_path}/prod/default/t"


def test_catalog_name_is_looked_up_in_pyicebergs_file(spark, tmp_path, monkeypatch):
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  team:\n    type: sql\n    uri: sqlite:///{tmp_path}/team.db\n"
        f"    warehouse: file://{tmp_path}/team\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    with icefloe.connect(catalog="team", spark=spark) as lake:
        assert lake.catalog.name == "team"
        assert lake.create_table("t", "id BIGINT").location == f"file://{tmp_path}/team/default/t"


def test_properties_are_passed_to_pyiceberg(spark, tmp_path):
    uri = f"sqlite:///{tmp_path}/own.db"
    with icefloe.connect(tmp_path / "files", uri=uri, spark=spark) as lake:
        assert isinstance(lake.catalog, SqlCatalog)
        assert lake.create_table("t", "id BIGINT").location == f"file://{tmp_path}/files/default/t"


def test_connect_without_arguments_is_refused_with_the_choices():
    with pytest.raises(StatementError, match=r"a warehouse folder, a catalog, or .* uri="):
        icefloe.connect()


def test_unknown_catalog_name_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    with pytest.raises(StatementError, match=r"cannot open the catalog 'nowhere'"):
        icefloe.connect(catalog="nowhere")


def test_active_session_is_used_and_closing_the_lake_does_not_stop_it(spark, tmp_path):
    with icefloe.connect(tmp_path / "lake") as lake:
        assert lake.spark is spark
    assert spark.range(1).count() == 1


def test_a_folder_with_dots_in_its_path(spark, tmp_path, monkeypatch):
    """Spark and Iceberg would spell it each in its way: rows could not be found again."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with icefloe.connect("../b", spark=spark) as lake:
        table = lake.create_table("t", "id INT")
        assert ".." not in table.location
        table.append([{"id": 1}, {"id": 2}])
        assert table.delete().where("id = 1").execute().rows_deleted == 1
