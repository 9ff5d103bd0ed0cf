"""A fault at every call to the database and to files: all or nothing, and the error says which."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from icefloe import Lake, Table
from icefloe.errors import CommitStateUnknownError, IcefloeError, StorageError, TableNotFoundError
from support.inline_lakes import (
    EVERY_OPERATION,
    OPERATIONS,
    ROWS,
    SPARK_OPERATIONS,
    Operation,
    SparkNeededError,
    cases,
    everything,
    new_table,
    open_place,
    present_name,
    row,
    rows_of,
)
from support.pyiceberg_tables import later, make, open_lake
from support.unreferenced_files import leftovers
from support.watched_calls import Call, Watch, watching

FAULTS = ["instead of the call", "after the call"]
SAMPLE = 2  # calls of each statement in the default run


@pytest.mark.requirement("L03", "L07", "X02", "X10")
@pytest.mark.parametrize(("place", "name", "every"), cases(0), indirect=["place"])
def test_a_fault_at_any_call_leaves_all_or_nothing(place, name, every):
    check_faults(partial(open_place, place), place, OPERATIONS[name], every)


@pytest.mark.requirement("L03", "L18", "X02", "X10")
@pytest.mark.parametrize(("place", "name", "every"), cases(2, SPARK_OPERATIONS), indirect=["place"])
def test_a_fault_at_any_call_of_a_statement_over_both_tiers(place, spark, name, every):
    """Faults of the driver's calls: Spark's tasks have their own."""

    def open_lake() -> Lake:
        return Lake(open_place(place).catalog, spark)

    check_faults(open_lake, place, SPARK_OPERATIONS[name], every)


def check_faults(
    open_lake: Callable[[], Lake], place: str, operation: Operation, every: bool
) -> None:
    """Let an operation fail at each of its calls, or at a few of them."""
    numbers = list(range(1, count_calls(open_lake, place, operation) + 1))
    choose = random.Random(name_of(operation))
    for fault in FAULTS if every else [choose.choice(FAULTS)]:
        chosen = numbers if every else choose.sample(numbers, SAMPLE)
        hits = [check_fault(open_lake, place, operation, fault, number) for number in chosen]
        assert any(hits) or not every


def count_calls(open_lake: Callable[[], Lake], place: str, operation: Operation) -> int:
    """How many calls the operation makes, which it does."""
    with open_place(place) as lake:
        operation.make(lake, "shop.counted")
    with open_lake() as lake, watching(Watch()) as watch:
        operation.run(lake, "shop.counted")
    assert rows_of(place, operation, "shop.counted") == operation.after
    return len(watch.calls)


def check_fault(
    open_lake: Callable[[], Lake], place: str, operation: Operation, fault: str, number: int
) -> bool:
    """Run the operation with a fault at one of its calls; False if it made fewer."""
    name = f"shop.t{number}_{FAULTS.index(fault)}"
    with open_place(place) as lake:
        operation.make(lake, name)
    hit: list[str] = []

    def fail(call: Call) -> None:
        if call.number == number:
            hit.append(call.name)
            call.fail()

    with open_lake() as lake:
        watch = Watch(before=fail) if fault == FAULTS[0] else Watch(after=fail)
        error = error_of(lake, operation, name, watch)
        about = f"{number}: {hit} {error!r}"
        found = rows_of(place, operation, name)
        if not hit:
            assert (error, found) == (None, operation.after)
            return False
        match error:
            case None:
                assert found == operation.after, about
            case CommitStateUnknownError():
                assert found in (operation.before, operation.after), about
            case IcefloeError():
                assert found == operation.before, about
            case SparkNeededError() if hit[0].startswith("read "):
                # A data file that the driver cannot read is left to Spark.
                assert found == operation.before, about
            case _:
                raise AssertionError(about) from error
        if found is not None and not isinstance(error, CommitStateUnknownError):
            current = lake.table(present_name(place, operation, name))
            orphans = leftovers(current)
            if not hit[0].startswith("delete "):
                assert orphans == set(), about
        check_next_statement(lake, place, operation, name, about)
    return True


def error_of(lake: Lake, operation: Operation, name: str, watch: Watch) -> BaseException | None:
    with watching(watch):
        try:
            operation.run(lake, name)
        except Exception as error:  # noqa: BLE001 - judged by the caller
            return error
    return None


def check_next_statement(
    lake: Lake, place: str, operation: Operation, name: str, about: str
) -> None:
    """The lake that had the fault works, and the same statement is not in the way of others."""
    present = present_name(place, operation, name)
    if present is None:
        with pytest.raises(TableNotFoundError):
            lake.table(name).insert([row(9)])
        new_table(lake, name)
        present, before = name, ROWS
    else:
        before = everything(lake.table(present))
    table = lake.table(present)
    if operation is OPERATIONS["switch on"] or operation is OPERATIONS["switch off"]:
        table.set_properties({"icefloe.inline.enabled": True})
    table.insert([row(9, "next")])
    assert everything(table) == [*before, (9, "next")], about
    table.flush()
    assert everything(table) == [*before, (9, "next")], about
    assert len(table.iceberg.scan().to_arrow()) == len(before) + 1, about
    if name_of(operation) == "insert with a key":
        operation.run(lake, name)
        assert (4, "new") in everything(table), about
        assert len(everything(table)) == len(OPERATIONS["insert"].after or []) + 1, about


def name_of(operation: Operation) -> str:
    return next(name for name, each in EVERY_OPERATION.items() if each is operation)


READS: dict[str, Callable[[Table], object]] = {
    "count": lambda table: table.count(),
    "count of some": lambda table: table.count("id > 1"),
    "to_arrow": lambda table: sorted(table.to_arrow()["id"].to_pylist()),
    "facts": lambda table: table.inline.rows if table.inline else None,
    "row ids": lambda table: table._lake.tier.cut(table._state()).rows.row_ids,
}


@pytest.mark.requirement("L16", "X03")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_read_with_a_fault_gives_all_rows_or_an_error(tmp_path, read, fault):
    """Never the rows of files alone."""
    with open_place(str(tmp_path)) as lake:
        new_table(lake)
    with open_place(str(tmp_path)) as lake:
        table = lake.table("shop.t")
        with watching(Watch()) as watch:
            expected = READS[read](table)
        for number in range(1, len(watch.calls) + 1):
            lake.tier.close()

            def fail(call: Call, number: int = number) -> None:
                if call.number == number:
                    call.fail()

            failing = Watch(before=fail) if fault == FAULTS[0] else Watch(after=fail)
            with watching(failing):
                try:
                    assert READS[read](table) == expected, failing.calls
                except (IcefloeError, SparkNeededError) as error:
                    assert not isinstance(error, CommitStateUnknownError)
        assert READS[read](table) == expected


@pytest.mark.requirement("X10")
def test_a_commit_that_fails_is_not_taken_for_one_that_landed(tmp_path):
    """SQLAlchemy leaves the transaction open in its pool, where the next reader would see it."""
    with open_lake(tmp_path) as lake:
        table = make(lake, "t", 1, 2, 3)

        def fail(call: Call) -> None:
            if call.name == "COMMIT":
                call.fail()

        with watching(Watch(before=fail)):
            with pytest.raises(CommitStateUnknownError):
                table.expire_snapshots(older_than=later())
            with pytest.raises(StorageError, match="Nothing was changed"):
                table.set_properties({"p": "1"})
            with pytest.raises(StorageError, match=r"drop default\.t.*Nothing was changed"):
                lake.drop_table("t")
        assert len(table.iceberg.metadata.snapshots) == 3
        assert len(table.expire_snapshots(older_than=later()).snapshots_expired) == 2
