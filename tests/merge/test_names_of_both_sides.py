"""Which side of a MERGE a name means: aliases that are columns too, columns that it adds, dead clauses."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from icefloe.errors import StatementError
from support.tables import rows, snapshots

HIDDEN = "id INT, source STRUCT<a: INT, id: INT>"
SOME = [{"id": 1, "source": {"a": 10, "id": 5}}, {"id": 2, "source": None}]


def values(table):
    return [(row[0], row[1] and tuple(row[1])) for row in rows(table)]


def test_a_nested_column_called_like_the_other_side(table_of, mode):
    """A qualifier is resolved first, as in Spark: `source.id` is the source's column."""
    table = table_of(HIDDEN, SOME, mode=mode)
    source = [{"id": 1, "source": {"a": 11, "id": 6}}, {"id": 5, "source": {"a": 50, "id": 1}}]

    assert table.upsert(source, on="target.id = source.id").execute().rows_updated == 1
    assert values(table) == [(1, (11, 6)), (2, None), (5, (50, 1))]
    assert table.upsert(source, on=["id"]).execute().rows_updated == 2


def test_each_clause_sees_its_own_side(table_of, mode):
    """For rows that the source does not match, `source.a` can only be the table's own field."""
    table = table_of(HIDDEN, [*SOME, {"id": 3, "source": {"a": 30, "id": 1}}], mode=mode)
    merge = table.merge([{"id": 2, "a": 7}], on="target.id = source.id")
    merge = merge.when_matched("source.a = 7").update({"source.a": "source.a"})
    merge = merge.when_not_matched_by_source("source.a > 20").delete()
    merge = merge.when_not_matched_by_source().update({"id": "id + source.a"})
    result = merge.execute()
    assert (result.rows_updated, result.rows_deleted) == (2, 1)
    assert values(table) == [(11, (10, 5)), (2, (7, None))]


def test_a_source_with_a_column_called_target(table_of, mode):
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}], mode=mode)
    source = [{"id": 1, "target": {"n": 9, "id": 4}}, {"id": 2, "target": {"n": 8, "id": 4}}]
    merge = table.merge(source, on="target.id = source.id")
    merge = merge.when_matched().update({"n": "target.n + 1"})
    merge.when_not_matched("target.n = 8").insert({"id": "id", "n": "target.n"}).execute()
    assert rows(table) == [(1, 2), (2, 8)]


def test_a_column_that_may_mean_either_is_refused(table_of):
    table = table_of(HIDDEN, SOME)
    merge = table.merge([{"id": 2, "a": 7}], on="target.id = source.id")
    with pytest.raises(StatementError, match="source_alias"):
        merge.when_not_matched_by_source(F.col("source.a") > 1).delete().execute()


def test_a_column_that_the_statement_adds_is_no_second_meaning(table_of, lake, mode):
    """Names are resolved against the table as it was; the added column can be assigned."""
    table = table_of("id INT, a INT", [{"id": 1, "a": 1}, {"id": 3, "a": 3}], mode=mode)
    result = lake.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {table.name} t USING s ON t.id = s.id AND b > 0 "
        "WHEN MATCHED AND b < 20 THEN UPDATE SET a = b "
        "WHEN MATCHED THEN UPDATE SET a = t.a + b, b = b * 2 "
        "WHEN NOT MATCHED THEN INSERT *",
        s=[{"id": 1, "a": 0, "b": 10}, {"id": 2, "a": 2, "b": 20}, {"id": 3, "a": 0, "b": 30}],
    )
    assert (result.rows_updated, result.rows_inserted) == (2, 1)
    assert rows(table) == [(1, 10, None), (2, 2, 20), (3, 33, 60)]


def test_an_added_column_is_none_of_the_tables(table_of):
    table = table_of("id INT, a INT", [{"id": 1, "a": 1}])
    merge = table.merge([{"id": 1, "a": 0, "b": 10}], on=["id"]).with_schema_evolution()
    merge = merge.when_matched("target.b IS NULL").update_all()
    with pytest.raises(StatementError, match=r"target\.b"):
        merge.execute()
    assert len(snapshots(table)) == 1


DEAD = {
    "matched": lambda m: m.when_matched().delete().when_matched("source.n = 1").update_all(),
    "not matched": lambda m: m.when_not_matched().insert_all().when_not_matched().insert_all(),
    "by source": lambda m: (
        m.when_not_matched_by_source().delete().when_not_matched_by_source("n = 1").delete()
    ),
}


@pytest.mark.parametrize("kind", DEAD)
def test_a_clause_that_can_never_apply(table_of, kind):
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    merge = DEAD[kind](table.merge([{"id": 1, "n": 2}], on=["id"]))
    for call in (merge.execute, merge.explain):
        with pytest.raises(StatementError, match="can never apply"):
            call()
    assert len(snapshots(table)) == 1


def test_a_clause_that_can_never_apply_in_sql(table_of, lake):
    table = table_of("id INT, n INT", [{"id": 1, "n": 1}])
    with pytest.raises(StatementError, match=r"when matched and s\.n = 3 then delete"):
        lake.sql(
            f"MERGE INTO {table.name} t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 2 "
            "WHEN MATCHED AND s.n = 3 THEN DELETE",
            s=[{"id": 1, "n": 3}],
        )
    # A condition that happens to be true is a condition.
    lake.sql(
        f"MERGE INTO {table.name} t USING s ON t.id = s.id WHEN MATCHED AND true THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = 2",
        s=[{"id": 1, "n": 3}],
    )
    assert rows(table) == []


def test_a_nested_column_named_like_the_other_side(table_of):
    """A clause that sees one side alone can only mean that side's own column."""
    table = table_of("id INT, source STRUCT<op: STRING>, op STRING", mode="merge-on-read")
    table.append([{"id": 1, "source": {"op": "x"}, "op": "a"}])
    merge = table.merge([{"id": 2, "op": "x"}], on=["id"])

    result = merge.when_not_matched_by_source("source.op = 'a'").delete().execute()
    assert (result.rows_deleted, len(rows(table))) == (0, 1)
    result = merge.when_not_matched_by_source("source.op = 'x'").delete().execute()
    assert (result.rows_deleted, rows(table)) == (1, [])

    other = table_of("id INT")
    source = table._lake.spark.sql("SELECT 3 AS id, named_struct('n', 9) AS target")
    merge = other.merge(source, on=["id"]).when_not_matched("target.n > 5").insert({"id": "id"})
    assert merge.execute().rows_inserted == 1
