"""Replacements on tables that Iceberg's own runtime made, read back by it."""

from __future__ import annotations

from typing import Any

import pytest

from icefloe.lake import EMBEDDED_CATALOG

pytestmark = pytest.mark.iceberg


@pytest.mark.requirement("R30")
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_partitions_rows_and_keys_of_a_table_made_by_spark_sql(lake: Any, mode: str) -> None:
    name = f"turns.replaced_{mode.replace('-', '_')}"
    path = f"{EMBEDDED_CATALOG}.{name}"
    spark = lake.spark
    spark.sql(
        f"CREATE TABLE {path} (id BIGINT, region STRING, at TIMESTAMP) USING iceberg "
        f"PARTITIONED BY (region, days(at)) TBLPROPERTIES ('format-version' = '2', "
        f"'write.delete.mode' = '{mode}')"
    )
    spark.sql(
        f"INSERT INTO {path} SELECT id, IF(id % 3 = 0, NULL, IF(id % 2 = 0, 'eu', 'us')), "
        "TIMESTAMP '2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, CAST(id * 5 AS INT)) "
        "FROM range(12)"
    )
    table = lake.table(name)

    def new(*ids: int, region: str = "eu") -> Any:
        at = "TIMESTAMP '2024-01-01 06:00:00'"
        chosen = ", ".join(map(str, ids))
        return spark.sql(
            f"SELECT id, '{region}' region, {at} at FROM range(1000) WHERE id IN ({chosen})"
        )

    def check() -> None:
        theirs = sorted(map(str, spark.table(path).collect()))
        assert theirs == sorted(map(str, table.scan().collect()))

    day = "region = 'eu' AND at >= '2024-01-01' AND at < '2024-01-02'"
    result = table.replace_where(day, new(100, 101)).execute()
    assert (result.rows_deleted, result.rows_inserted) == (2, 2)
    check()
    rows = table.replace_where("id % 5 = 1", new(101, 201)).with_options(scope="rows").execute()
    assert rows.rows_deleted == 4  # 1, 6, 11 and 101
    check()
    assert table.replace_using(["id"], new(100, 7, region="xx")).execute().rows_deleted == 2
    check()
    spark.sql(f"ALTER TABLE {path} REPLACE PARTITION FIELD region WITH bucket(4, id)")
    spark.sql(f"INSERT INTO {path} VALUES (300, 'eu', TIMESTAMP '2024-01-01 06:00:00')")
    table.overwrite_partitions(new(300, region="yy"))
    check()
    found = {row["id"]: row["region"] for row in spark.table(path).collect()}
    assert found[300] == "yy"
