"""Both engines write at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from icefloe.errors import ConflictError
from support.two_engines import Both

pytestmark = pytest.mark.iceberg

MakeBoth = Callable[..., Both]

NUMBERS = "id BIGINT, region STRING, n INT"
RETRIES = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "10"}
ROUNDS = 4


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_increments_of_one_row_by_both_lose_nothing(both: MakeBoth, mode: str) -> None:
    t = both(NUMBERS).made_by_us(**RETRIES)
    t.append([{"id": 1, "region": "eu", "n": 0}, {"id": 2, "region": "eu", "n": 0}])
    t.reference_mode(mode)
    adding = t.ours.update().set("n", "n + 1").where("id = 1").with_options(mode=mode, retries=50)

    _at_once(
        [lambda: _until_won(lambda: t.sql("UPDATE {t} SET n = n + 1 WHERE id = 1"))] * ROUNDS,
        [adding.execute] * ROUNDS,
    )
    t.expect(lambda r: {**r, "n": 2 * ROUNDS} if r["id"] == 1 else r)
    t.check()


def test_appends_by_both_lose_nothing(both: MakeBoth) -> None:
    t = both(NUMBERS).made_by_reference(("region",), **RETRIES)

    _at_once(
        [lambda n=n: t.sql(f"INSERT INTO {{t}} VALUES ({n}, 'theirs', 0)") for n in range(ROUNDS)],
        [lambda n=n: t.ours.append([{"id": n, "region": "ours", "n": 0}]) for n in range(ROUNDS)],
    )
    t.expected = [{"id": n, "region": r, "n": 0} for n in range(ROUNDS) for r in ("theirs", "ours")]
    t.check()
    assert len(t.ours.iceberg.metadata.snapshots) == 2 * ROUNDS


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_changes_of_different_partitions_do_not_conflict(both: MakeBoth, mode: str) -> None:
    t = both(NUMBERS).made_by_us(("region",), **RETRIES)
    t.append({"id": i, "region": r, "n": 0} for i in range(3) for r in ("ours", "theirs"))
    t.reference_mode(mode)
    adding = t.ours.update().set("n", "n + 1").where("region = 'ours' AND id > 0")

    # Neither side may fail, though nothing runs a statement again.
    _at_once(
        [lambda: t.sql("UPDATE {t} SET n = n + 1 WHERE region = 'theirs' AND id > 0")] * ROUNDS,
        [adding.with_options(mode=mode).execute] * ROUNDS,
    )
    t.expect(lambda r: {**r, "n": ROUNDS} if r["id"] > 0 else r)
    t.check()


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_commit_of_the_reference_between_our_read_and_our_commit(
    both: MakeBoth, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = both(NUMBERS).made_by_us(("region",))
    t.append({"id": i, "region": r, "n": 0} for i in range(4) for r in ("eu", "us"))
    t.reference_mode(mode)
    adding = t.ours.update().set("n", "n + 1").where("region = 'eu' AND id = 1")
    adding = adding.with_options(mode=mode)

    _before_our_commit(monkeypatch, t, "UPDATE {t} SET n = n + 10 WHERE region = 'us'")
    assert adding.execute().attempts == 2
    t.expect(lambda r: {**r, "n": 10} if r["region"] == "us" else r)
    t.expect(lambda r: {**r, "n": 1} if (r["region"], r["id"]) == ("eu", 1) else r)
    t.check()

    for statement, change in (
        ("UPDATE {t} SET n = n + 10 WHERE region = 'eu' AND id = 1", 10),
        ("INSERT INTO {t} SELECT 1, 'eu', 100", None),
        ("DELETE FROM {t} WHERE region = 'eu' AND id = 1 AND n < 100", "gone"),
    ):
        _before_our_commit(monkeypatch, t, statement)
        with pytest.raises(ConflictError):
            adding.execute()
        if change is None:
            t.expected.append({"id": 1, "region": "eu", "n": 100})
        elif change == "gone":
            t.expect(lambda r: None if r["n"] == 11 else r)
        else:
            t.expect(lambda r: {**r, "n": 11} if (r["region"], r["id"]) == ("eu", 1) else r)
        t.check()


def test_a_compaction_between_our_read_and_our_commit(
    both: MakeBoth, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = both(NUMBERS).made_by_us()
    for i in range(3):
        t.append([{"id": i, "region": "eu", "n": 0}, {"id": i + 10, "region": "eu", "n": 0}])
    adding = t.ours.update().set("n", "n + 1").where("id = 1")
    compact = (
        f"CALL icefloe.system.rewrite_data_files(table => '{t.name}', "
        "options => map('rewrite-all', 'true'))"
    )
    _before_our_commit(monkeypatch, t, compact)
    with pytest.raises(ConflictError, match="removed by another writer"):
        adding.execute()
    t.check()

    _before_our_commit(monkeypatch, t, compact)
    adding.with_options(retries=1).execute()
    t.expect(lambda r: {**r, "n": 1} if r["id"] == 1 else r)
    t.check()


def _before_our_commit(monkeypatch: pytest.MonkeyPatch, t: Both, statement: str) -> None:
    """Let the reference run a statement when icefloe next asks the catalog to commit."""
    catalog = t.lake.catalog
    commit = type(catalog).commit_table.__get__(catalog)

    def late(*arguments: object) -> object:
        monkeypatch.undo()
        t.sql(statement)
        return commit(*arguments)

    monkeypatch.setattr(catalog, "commit_table", late)


def _at_once(theirs: list[Callable[[], object]], ours: list[Callable[[], object]]) -> None:
    """Run both lists of steps at the same time, each in order; the first error is raised."""
    begin = threading.Barrier(2)
    errors: list[BaseException] = []

    def run(steps: list[Callable[[], object]]) -> None:
        begin.wait()
        try:
            for step in steps:
                step()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(steps,)) for steps in (theirs, ours)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _until_won(statement: Callable[[], object], tries: int = 50) -> None:
    """Run a statement of the reference again for as long as it loses to another writer."""
    for _ in range(tries):
        try:
            statement()
        except (PySparkException, Py4JJavaError) as lost:
            if not any(known in str(lost) for known in _LOST):
                raise
        else:
            return
    pytest.fail(f"The reference lost {tries} times.")


_LOST = ("ValidationException", "CommitFailedException", "conflicting", "Missing required files")
