"""Random pairs of concurrent statements: some serial order explains the rows, or one is refused.

The second statement lands while the first is between its work and its commit. A model of the
statements, on plain rows, says what the two serial orders give.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from icefloe import Lake, Table
from icefloe.errors import ConflictError
from support.races import Meanwhile
from support.random_programs import seeds

Rows = list[tuple[int, int]]
MODES = ["copy-on-write", "merge-on-read"]
PAIRS = 6


@dataclass(frozen=True)
class Statement:
    """One statement, for the engine and for the model."""

    text: str
    run: Callable[[Table], object]
    model: Callable[[Rows], Rows]


def delete(luck: random.Random, mode: str) -> Statement:
    keys = tuple(sorted(luck.sample(range(6), 2)))
    return Statement(
        f"DELETE k IN {keys}",
        lambda table: table.delete().where(f"k IN {keys}").with_options(mode=mode).execute(),
        lambda rows: [row for row in rows if row[0] not in keys],
    )


def update(luck: random.Random, mode: str) -> Statement:
    keys, least = tuple(sorted(luck.sample(range(6), 2))), luck.randint(0, 5)
    where = f"k IN {keys} AND n >= {least}"
    return Statement(
        f"UPDATE n = n + 10 WHERE {where}",
        lambda table: (
            table.update().set("n", "n + 10").where(where).with_options(mode=mode).execute()
        ),
        lambda rows: [(k, n + 10) if k in keys and n >= least else (k, n) for k, n in rows],
    )


def append(luck: random.Random, mode: str) -> Statement:
    new = (luck.randrange(6), luck.randrange(6))
    return Statement(
        f"APPEND {new}",
        lambda table: table.append([dict(zip("kn", new, strict=True))]),
        lambda rows: [*rows, new],
    )


def replace_using(luck: random.Random, mode: str) -> Statement:
    new = (luck.randrange(6), luck.randrange(6))
    return Statement(
        f"REPLACE USING k {new}",
        lambda table: (
            table.replace_using("k", [dict(zip("kn", new, strict=True))])
            .with_options(mode=mode)
            .execute()
        ),
        lambda rows: [*(row for row in rows if row[0] != new[0]), new],
    )


def merge(luck: random.Random, mode: str) -> Statement:
    source = {k: luck.randrange(6) for k in luck.sample(range(6), luck.randint(1, 3))}
    matched = luck.choice(["", "update", "delete", "update above", "delete above"])
    inserts = not matched or luck.random() < 0.7
    by_source = luck.random() < 0.2

    def run(table: Table) -> object:
        rows = [{"k": k, "n": n} for k, n in source.items()]
        statement = table.merge(rows, on=["k"]).with_options(mode=mode)
        when = statement.when_matched("source.n > target.n" if "above" in matched else None)
        if matched.startswith("update"):
            statement = when.update_all()
        elif matched:
            statement = when.delete()
        if inserts:
            statement = statement.when_not_matched().insert_all()
        if by_source:
            statement = statement.when_not_matched_by_source("n > 4").delete()
        return statement.execute()

    def model(rows: Rows) -> Rows:
        present, after = {k for k, _ in rows}, []
        for k, n in rows:
            if k not in source:
                after += [] if by_source and n > 4 else [(k, n)]
            elif not matched or ("above" in matched and source[k] <= n):
                after.append((k, n))
            elif matched.startswith("update"):
                after.append((k, source[k]))
        return after + [(k, n) for k, n in source.items() if inserts and k not in present]

    text = f"MERGE {source} matched {matched!r} inserts {inserts} by source {by_source}"
    return Statement(text, run, model)


KINDS = [delete, update, append, replace_using, merge, merge, merge]


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_a_serial_order_explains_what_two_writers_did(lake, other, before_commit, seed: int):
    luck = random.Random(f"pairs {seed}")
    for number in range(PAIRS):
        story, found, orders = race(lake, other, before_commit, luck, f"t{number}")
        assert Counter(found) in map(Counter, orders), f"seed {seed}: {story}; found {found}"


def race(
    lake: Lake, other: Lake, before_commit: Meanwhile, luck: random.Random, name: str
) -> tuple[str, Rows, list[Rows]]:
    """Two statements at once: what they were, the rows then, and those that serial orders give."""
    base: Rows = [(k, luck.randrange(6)) for k in luck.sample(range(6), luck.randint(0, 4))]
    table = lake.create_table(name, "k INT, n INT")
    for part in (base[:2], base[2:]):
        if part:
            table.append([{"k": k, "n": n} for k, n in part])
    first = luck.choice(KINDS)(luck, luck.choice(MODES))
    second = luck.choice(KINDS)(luck, luck.choice(MODES))
    landed: list[Statement] = []

    def land() -> None:
        landed.append(second)
        second.run(other.table(name))

    before_commit(land)
    orders = [second.model(first.model(base)), first.model(second.model(base))]
    try:
        first.run(table)
    except ConflictError:
        orders = [second.model(base)]
    if not landed:  # the first statement had nothing to publish
        orders = [first.model(base)]
    found = [(row.k, row.n) for row in table.scan().collect()]
    return f"{base}; {first.text}; at its commit {second.text}", found, orders
