"""Idempotency keys, leases, deletes of rows in files, intents, and numbers of changes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from icefloe.errors import StorageError
from icefloe.inline.bookkeeping import (
    acquire_lease,
    claim_key,
    find_seq,
    next_stamp,
    read_flushed,
    read_intent,
    read_key,
    release_lease,
    remove_intent,
    remove_keys,
    renew_lease,
    stamp_above,
    write_flushed,
    write_intent,
)
from icefloe.inline.deletes import (
    DeleteFacts,
    add_deletes,
    age_of_deletes,
    keep_former_deletes,
    read_deletes,
    read_facts,
    read_former_deletes,
    remove_deletes,
    remove_deletes_of_files,
    remove_former_deletes,
    write_facts,
    write_former_deletes,
)
from icefloe.inline.layout import DELETED, FILE, FORMAT, STORE, inline_columns
from icefloe.inline.rows import last_change, remove_through
from icefloe.inline.tables import drop_table, register_table
from support.inline_store import NAME, SCHEMA, insert_in


def test_keys_keep_the_first_result(store, table):
    odd = "\0'; --" + "x" * 5000
    with store.writing() as connection:
        other = register_table(connection, NAME, "other", inline_columns(SCHEMA))
        assert read_key(connection, table, odd) is None
        assert claim_key(connection, table, odd, "first", next_stamp(connection)) is None
    with store.writing() as connection:
        stamp = next_stamp(connection)
        assert claim_key(connection, table, odd, "second", stamp) == "first"
        assert claim_key(connection, other, odd, "third", stamp) is None
        assert read_key(connection, table, odd) == "first"
        assert remove_keys(connection, table, stamp.at + 1) == 1
        assert read_key(connection, table, odd) is None
        assert read_key(connection, other, odd) == "third"


def test_one_of_two_concurrent_statements_has_the_key(open_store, table):
    def claim(number: int) -> str | None:
        with open_store().writing() as connection:
            stamp = next_stamp(connection)
            taken = claim_key(connection, table, "key", str(number), stamp)
            time.sleep(0.1)
            return taken

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(claim, range(4)))
    [winner] = [number for number, taken in enumerate(results) if taken is None]
    assert [taken for taken in results if taken is not None] == [str(winner)] * 3


def test_changes_are_found_by_their_number(store, table):
    with store.writing() as connection:
        inserted = insert_in(connection, table, 1)
        keyed = next_stamp(connection)
        claim_key(connection, table, "key", "{}", keyed)
        unused = next_stamp(connection).seq
    with store.reading() as connection:
        assert find_seq(connection, table, keyed.seq)
        assert find_seq(connection, table, keyed.seq - 1)
        assert not find_seq(connection, table, unused)
    assert inserted.count == 1


def test_leases_expire_by_the_clock_of_the_database(store, table):
    with store.writing() as connection:
        assert acquire_lease(connection, table, "a", 60_000)
    with store.writing() as connection:
        assert not acquire_lease(connection, table, "b", 60_000)
        assert not renew_lease(connection, table, "b", 60_000)
        release_lease(connection, table, "b")
        assert renew_lease(connection, table, "a", 50)
    time.sleep(0.1)
    with store.writing() as connection:
        assert acquire_lease(connection, table, "b", 60_000)
        assert acquire_lease(connection, table, "b", 60_000)
        assert not renew_lease(connection, table, "a", 60_000)
    with store.writing() as connection:
        release_lease(connection, table, "b")
        assert acquire_lease(connection, table, "a", 60_000)


def test_one_of_many_gets_the_lease(open_store, table):
    def acquire(number: int) -> bool:
        with open_store().writing() as connection:
            return acquire_lease(connection, table, str(number), 60_000)

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(acquire, range(6))) == 1


def test_deletes_of_rows_in_files(store, table):
    many = range(0, 5000, 2)
    with store.writing(lock=table) as connection:
        stamp = next_stamp(connection)
        assert add_deletes(connection, table, {"a": [3, 1], "b": many}, stamp) == 2502
        assert add_deletes(connection, table, {"a": [3, 4]}, stamp) == 1
        assert add_deletes(connection, table, {"c": []}, stamp) == 0
    with store.reading() as connection:
        read = read_deletes(connection, table)
        assert {path: list(rows) for path, rows in read.items()} == {"a": [1, 3, 4], "b": [*many]}
        assert find_seq(connection, table, stamp.seq)
        assert not find_seq(connection, table, stamp.seq + 1)
    with store.writing(lock=table) as connection:
        assert remove_deletes(connection, table, {"a": [1, 9], "b": many, "x": [1]}) == 2501
        assert list(read_deletes(connection, table)["a"]) == [3, 4]
        assert connection.execute(FILE.select()).fetchall()[0].path == "a"
        assert remove_deletes_of_files(connection, table, ["a", "b", *map(str, range(900))]) == 2
        assert (read_deletes(connection, table), connection.execute(FILE.select()).first()) == (
            {},
            None,
        )


def test_deletes_of_files_that_left_the_table(store, table):
    def former() -> dict[str, list[int]]:
        return {path: [*rows] for path, rows in read_former_deletes(connection, table).items()}

    with store.writing(lock=table) as connection:
        add_deletes(connection, table, {"a": [1, 3], "b": range(700)}, next_stamp(connection))
        assert former() == {}
        for _ in range(2):
            keep_former_deletes(connection, table, ["b", "x", *map(str, range(900))])
            assert former() == {"b": [*range(700)]}
        assert list(read_deletes(connection, table)) == ["a", "b"]
        keep_former_deletes(connection, table, ["a"])
        write_former_deletes(connection, table, {"a": [3, 4], "c": range(600)})
        assert former() == {"a": [3, 4], "c": [*range(600)]}
        assert remove_former_deletes(connection, table) == 602
        assert (former(), remove_former_deletes(connection, table)) == ({}, 0)
        write_former_deletes(connection, table, {"a": [1]})
        drop_table(connection, table)
        assert former() == {}


def test_what_is_known_of_all_deletes(store, table):
    with store.writing(lock=table) as connection:
        assert read_facts(connection, table) == DeleteFacts()
        assert age_of_deletes(connection, table) is None
        stamp = next_stamp(connection)
        write_facts(connection, table, DeleteFacts(7, 2, stamp.at - 5000, 11))
        assert read_facts(connection, table) == DeleteFacts(7, 2, stamp.at - 5000, 11)
        assert 5000 <= (age_of_deletes(connection, table) or 0) < 60_000
        write_facts(connection, table, DeleteFacts(8, 0, stamp.at, None))
        assert read_facts(connection, table) == DeleteFacts(8)


def test_a_store_of_an_earlier_format_gets_the_tables_that_it_lacks(store, table, open_store):
    with store.writing() as connection:
        DELETED.drop(connection.connection)
        connection.execute(STORE.update().values(format=1))
    opened = open_store()
    with opened.reading() as connection:
        assert read_facts(connection, table) == DeleteFacts()
        assert connection.execute(STORE.select()).one().format == FORMAT


def test_intents(store, table):
    with store.writing() as connection:
        assert read_intent(connection, table) is None
        assert write_intent(connection, table, 7, 2**62)
        assert not write_intent(connection, table, 8, 1)
    with store.writing() as connection:
        intent = read_intent(connection, table)
        assert (intent.cut, intent.snapshot_id) == (7, 2**62)
        assert 0 <= intent.age < 60_000
        assert not remove_intent(connection, table, 1)
        assert remove_intent(connection, table, 2**62)
        assert read_intent(connection, table) is None


def test_what_is_flushed_never_becomes_less(store, table):
    with store.writing() as connection:
        assert read_flushed(connection, table) == 0
        for through, expected in ((7, 7), (5, 7), (2**62, 2**62)):
            write_flushed(connection, table, through)
            assert read_flushed(connection, table) == expected


def test_changes_are_numbered_above_those_that_are_flushed(store, table):
    """Also where the database has counted less: it was restored from a backup."""
    with store.writing() as connection:
        first = next_stamp(connection).seq
        assert stamp_above(connection, first - 1).seq == first + 1
        assert stamp_above(connection, first + 5000).seq == first + 5001
        assert next_stamp(connection).seq == first + 5002
    with store.writing() as connection, pytest.raises(StorageError, match="not a backup"):
        stamp_above(connection, 2**60)


def test_concurrent_changes_are_numbered_above_and_apart(open_store, table):
    def number(_: int) -> int:
        with open_store().writing() as connection:
            return stamp_above(connection, 1000).seq

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(number, range(12)))
    assert len(set(numbers)) == 12
    assert min(numbers) > 1000


def test_rows_of_changes_up_to_one(store, table):
    with store.writing() as connection:
        assert last_change(connection, table) is None
        for ids in ((1, 2), (3,), (4, 5)):
            insert_in(connection, table, *ids)
        newest = last_change(connection, table)
        by_number = [last_change(connection, table, rows=rows) for rows in range(1, 8)]
        second = newest - 1
        first = by_number[0]
        assert by_number == [first, first, second, newest, newest, newest, newest]
        assert last_change(connection, table, table.rows.c.seq < newest) == second
        assert remove_through(connection, table, second) == 3
        assert remove_through(connection, table, second) == 0
        assert last_change(connection, table) == newest
