from __future__ import annotations

from tables import rows


def test_smoke(table_of, mode, partition_by):
    table = table_of(
        "id BIGINT, region STRING, v DOUBLE",
        [{"id": 1, "region": "us", "v": 1.0}, {"id": 2, "region": "eu", "v": None}],
        [{"id": 3, "region": None, "v": 3.0}],
        mode=mode,
        partition_by=partition_by,
    )
    table.update().set("v", "v + 1").where("id in (1, 3)").execute()
    table.delete().where("id = 2").execute()
    assert rows(table) == [(1, "us", 2.0), (3, None, 4.0)]
