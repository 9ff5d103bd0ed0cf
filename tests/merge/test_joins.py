"""The join is no wider than the clauses need, and gives the same rows however it runs."""

from __future__ import annotations

import pytest

from icefloe.errors import CardinalityError
from support.merge_rows import SCHEMA, in_order, row, triples
from support.tables import snapshots

pytestmark = pytest.mark.requirement("M03")

TARGET = [row(1, "us", 1), row(2, "eu", 2), row(3, None, 3), row(None, "us", 4)]
SOURCE = [row(2, "eu", 20), row(5, "us", 50), row(None, "x", 60), row(5, "us", 51)]


def with_clauses(merge, kinds):
    if "m" in kinds:
        merge = merge.when_matched().update({"n": "source.n"})
    if "i" in kinds:
        merge = merge.when_not_matched().insert_all()
    if "o" in kinds:
        merge = merge.when_not_matched_by_source().update({"n": "target.n - 100"})
    return merge


def expected(kinds):
    kept = [
        (1, "us", -99 if "o" in kinds else 1),
        (2, "eu", 20 if "m" in kinds else 2),
        (3, None, -97 if "o" in kinds else 3),
        (None, "us", -96 if "o" in kinds else 4),
    ]
    new = [(5, "us", 50), (None, "x", 60), (5, "us", 51)] if "i" in kinds else []
    return in_order([*kept, *new])


SHAPES = {
    "i": ("anti", "anti"),
    "m": ("inner", "inner"),
    "mi": ("probe", "right outer"),
    "o": ("target anti", "target anti"),
    "mo": ("left outer", "left outer"),
    "io": ("full outer", "full outer"),
    "mio": ("full outer", "full outer"),
}


REWRITING = ("o", "mi", "mio")  # these in copy-on-write, the others in merge-on-read


@pytest.mark.parametrize(
    ("kinds", "mode"),
    [
        pytest.param(
            kinds,
            mode,
            marks=[] if (kinds in REWRITING) == (mode[0] == "c") else [pytest.mark.slow],
        )
        for kinds in SHAPES
        for mode in ("copy-on-write", "merge-on-read")
    ],
)
class TestEveryShape:
    """The shape is told, and gives the right rows."""

    def test_with_the_source_broadcast(self, table_of, kinds, mode):
        check(table_of(SCHEMA, TARGET, mode=mode), kinds, SHAPES[kinds][0])

    def test_shuffled(self, table_of, shuffled, kinds, mode):
        check(table_of(SCHEMA, TARGET, mode=mode), kinds, SHAPES[kinds][1])


def check(table, kinds, shape):
    merge = with_clauses(table.merge(SOURCE, on=["id"]), kinds)
    plan = merge.explain()
    assert plan.join == shape
    assert len(plan.clauses) == len(kinds)
    assert len(snapshots(table)) == 1  # nothing was done

    result = merge.execute()

    counts = {"m": 1, "i": 3, "o": 3}
    assert result.clauses == tuple(counts[kind] for kind in kinds)
    assert triples(table) == expected(kinds)


def test_explain_shows_one_pass_with_clauses_of_every_kind(table_of, mode, partition_by):
    """One scan of the table and one full outer join; str(plan) says so to people."""
    table = table_of(SCHEMA, TARGET, mode=mode, partition_by=partition_by)

    plan = with_clauses(table.merge(SOURCE, on="target.id = source.id"), "mio").explain()

    assert plan.join == "full outer"
    assert (plan.operation, plan.mode, plan.source_rows) == ("merge", mode, 4)
    assert plan.where == "target.id = source.id"
    assert plan.clauses == (
        "when matched then update n = source.n",
        "when not matched then insert *",
        "when not matched by source then update n = target.n - 100",
    )
    told = str(plan)
    assert told.count("join full outer") == 1
    assert told.count("-> ") == 5  # the stages: one scan first
    assert told.index("scan ->") < told.index("join full outer")
    for clause in plan.clauses:
        assert clause in told
    assert len(snapshots(table)) == 1


def test_duplicates_are_found_in_every_shape(table_of, shuffled):
    table = table_of(SCHEMA, TARGET)
    twice = [*SOURCE, row(2, "eu", 21)]
    for kinds in ("m", "mi", "mo", "mio"):
        merge = with_clauses(table.merge(twice, on=["id"]), kinds)
        with pytest.raises(CardinalityError) as caught:
            merge.execute()
        assert caught.value.keys == (2,)
    assert len(snapshots(table)) == 1

    merge = with_clauses(table.merge(twice, on=["id"]), "mio").with_options(duplicates="first")
    assert merge.execute().clauses == (1, 3, 3)
    assert triples(table) == expected("mio")


@pytest.mark.slow
@pytest.mark.parametrize(
    "on", ["target.id = source.id OR target.n = source.n", "target.n * 10 = source.n"]
)
def test_conditions_without_plain_keys_shuffled(table_of, shuffled, mode, on):
    for kinds in SHAPES:
        table = table_of(SCHEMA, TARGET, mode=mode)
        with_clauses(table.merge(SOURCE, on), kinds).execute()
        assert triples(table) == expected(kinds), kinds
