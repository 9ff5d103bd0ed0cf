"""The examples of docs/object_stores.md, with the servers of these tests in place of its addresses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import icefloe

pytestmark = pytest.mark.s3

PAGE = Path(__file__).parent.parent.parent / "docs" / "object_stores.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def run(block: str, replaced: dict[str, str]) -> icefloe.Lake:
    """The lake that an example opens; each address that is replaced must be in it."""
    for old, new in replaced.items():
        assert old in block
        block = block.replace(old, new)
    names: dict[str, object] = {"icefloe": icefloe}
    exec(compile(block, PAGE.name, "exec"), names)
    lake = names["lake"]
    assert isinstance(lake, icefloe.Lake)
    return lake


def test_every_example_is_one_of_these():
    assert len(BLOCKS) == 3


def test_a_sql_catalog_with_files_in_s3(spark, store, tmp_path, capsys):
    replaced = {
        '"postgresql+psycopg://me:secret@db/lake"': f'"sqlite:///{tmp_path}/catalog.db"',
        "s3://bucket/lake": "s3://lake/pages",
        '{"s3.region": "eu-central-1"}': repr(store.properties),
    }
    with run(BLOCKS[0], replaced) as lake:
        assert "Row(id=1, n=1)" in capsys.readouterr().out
        lake.drop_table("shop.orders", purge=True)


def test_a_store_with_an_endpoint(spark, store, tmp_path):
    replaced = {
        "sqlite:////srv/lake/catalog.db": f"sqlite:///{tmp_path}/catalog.db",
        "s3://bucket/lake": "s3://lake/pages",
        "http://minio:9000": store.properties["s3.endpoint"],
        '"s3.access-key-id": "me"': f'"s3.access-key-id": "{store.access_key}"',
        '"s3.secret-access-key": "secret"': f'"s3.secret-access-key": "{store.secret_key}"',
    }
    with run(BLOCKS[1], replaced) as lake:
        table = lake.create_table("shop.more", "id BIGINT")
        table.append([{"id": 1}])
        assert table.count() == 1
        lake.drop_table("shop.more", purge=True)


def test_a_rest_catalog(spark, store, rest_proxy, tmp_path, new_name):
    replaced = {
        "https://polaris.example/api/catalog": rest_proxy.uri,
        "postgresql+psycopg://me:secret@db/inline": f"sqlite:///{tmp_path}/inline.db",
        '{"s3.region": "eu-central-1"}': repr(store.properties),
    }
    with run(BLOCKS[2], replaced) as lake:
        table = lake.create_table(new_name, "id BIGINT")
        table.append([{"id": 1}])
        assert table.count() == 1
        lake.drop_table(new_name, purge=True)
