"""A Spark session that icefloe started ends with the last lake that uses it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from pyspark import SparkContext

import icefloe
from icefloe import Lake
from icefloe.lake import open_catalog
from icefloe.spark import session
from icefloe.spark.session import StartedSessions
from test_session import run_script


class Application:
    """A SparkContext."""


class FakeSession:
    """A classic session as far as lakes see it; several may be of one application."""

    def __init__(self, application: Application | None = None) -> None:
        self.sparkContext = application or Application()
        self.stops = 0
        SparkContext._active_spark_context = self.sparkContext  # type: ignore[assignment]

    @property
    def conf(self) -> FakeSession:
        return self

    def set(self, key: str, value: str) -> None:
        """Every setting is taken."""

    def stop(self) -> None:
        self.stops += 1
        SparkContext._active_spark_context = None


class FakeConnectSession:
    """A session of Spark Connect."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.is_stopped = False
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        self.is_stopped = True


@pytest.fixture(autouse=True)
def _started_sessions(monkeypatch) -> Iterator[list[FakeSession]]:
    """Sessions that are started instead of real ones, and no session at first."""
    made: list[FakeSession] = []

    def find(_connectors: object = ()) -> FakeSession:
        if made and SparkContext._active_spark_context is made[-1].sparkContext:
            return FakeSession(made[-1].sparkContext)  # another Python object of the session
        made.append(FakeSession())
        session.started.add(made[-1])
        return made[-1]

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "_find", find)
    return made


@pytest.fixture
def made(_started_sessions) -> list[FakeSession]:
    return _started_sessions


@pytest.fixture
def opened(tmp_path) -> Callable[..., Lake]:
    open_catalog(tmp_path / "lake", None, {}).close()  # threads make its tables at once otherwise
    return lambda **options: icefloe.connect(tmp_path / "lake", **options)


def test_the_last_lake_stops_it(made, opened):
    one, other, third = opened(), opened(), opened()
    assert len(made) == 1
    one.stop()
    one.stop()
    third.stop()
    assert made[0].stops == 0
    other.stop()
    assert made[0].stops == 1
    other.stop()
    one.stop()
    assert made[0].stops == 1


def test_leaving_a_with_block_ends_its_use(made, opened):
    with opened():
        with opened():
            pass
        assert made[0].stops == 0
    assert made[0].stops == 1


def test_a_new_one_is_started_after_it_ended(made, opened):
    opened().stop()
    lake = opened()
    assert (len(made), made[0].stops, made[1].stops) == (2, 1, 0)
    lake.stop()
    assert made[1].stops == 1


def test_one_that_was_passed_in_is_the_callers_from_then_on(made, opened):
    first = opened()
    second = opened(spark=first.spark)
    second.stop()
    first.stop()
    assert made[0].stops == 0


def test_so_is_another_session_of_the_same_application(made, opened):
    """Stopping either would end both."""
    first = opened()
    opened(spark=FakeSession(made[0].sparkContext)).stop()
    first.stop()
    assert made[0].stops == 0


def test_a_session_of_the_callers_is_never_stopped(made, opened):
    own = FakeSession()
    with opened(spark=own), opened(spark=own):
        pass
    assert (own.stops, made) == (0, [])


def test_a_lake_that_was_collected_uses_nothing(made, opened):
    kept = opened()
    opened()
    gc.collect()
    kept.stop()
    assert made[0].stops == 1


def test_a_session_that_the_caller_stopped_is_left_alone(made, opened):
    """Stopping it again would end the session that came after it."""
    lake = opened()
    made[0].stop()
    successor = FakeSession()
    lake.stop()
    assert made[0].stops == 1
    assert SparkContext._active_spark_context is successor.sparkContext


def test_a_session_that_cannot_be_stopped_fails_nothing(made, opened, monkeypatch):
    lake = opened()

    def refuse() -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(made[0], "stop", refuse)
    lake.stop()
    SparkContext._active_spark_context = None
    opened()
    assert len(made) == 2


def test_a_catalog_that_cannot_be_closed_keeps_no_session(made, opened, monkeypatch):
    lake = opened()

    def refuse() -> None:
        raise OSError("busy")

    monkeypatch.setattr(lake.catalog, "close", refuse)
    with pytest.raises(OSError, match="busy"):
        lake.stop()
    assert made[0].stops == 1


def test_threads_that_connect_and_stop_at_once(made, opened):
    barrier = Barrier(4, timeout=30)

    def work() -> bool:
        barrier.wait()
        lake = opened()
        barrier.wait()  # all have a lake
        alone = made[0].stops == 0 and len(made) == 1
        barrier.wait()
        lake.stop()
        return alone

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(work) for _ in range(4)]
        assert [done.result(60) for done in running] == [True] * 4
    assert [one.stops for one in made] == [1]


def test_sessions_of_spark_connect_are_distinguished_by_their_ids():
    started, lakes = StartedSessions(), [opened_lake() for _ in range(3)]
    one, other = FakeConnectSession("1"), FakeConnectSession("2")
    for each in (one, other):
        started.add(each)
    started.used_by(lakes[0], lambda: one)
    started.used_by(lakes[1], lambda: FakeConnectSession("1"))
    started.used_by(lakes[2], lambda: other)
    started.release(lakes[2])
    started.release(lakes[0])
    assert (one.stops, other.stops) == (0, 1)
    started.release(lakes[1])
    assert one.stops == 1


class opened_lake:
    """Something that can be referred to weakly."""


@pytest.mark.spark
@pytest.mark.slow
def test_real_sessions(tmp_path: Path) -> None:
    script = """
        import icefloe
        from pyspark import SparkContext

        def running():
            return SparkContext._active_spark_context is not None

        one, other = icefloe.connect("one"), icefloe.connect("other")
        one.create_table("t", "id BIGINT").append([{"id": 1}])
        one.stop()
        with other:
            other.create_table("t", "id BIGINT").append([{"id": 2}])
            print("OTHER", other.table("t").count())
        print("ENDED", not running())
        with icefloe.connect("one") as again:
            print("AGAIN", again.table("t").count())
            spark = again.spark
            with icefloe.connect("other", spark=spark) as third:
                print("THIRD", third.table("t").count())
            print("KEPT", spark.range(3).count())
        print("CALLERS", running(), spark.range(4).count())
        spark.stop()
    """
    printed = run_script(script, tmp_path, PYTHONPATH=str(Path(icefloe.__file__).parents[1]))
    for line in ("OTHER 1", "ENDED True", "AGAIN 1", "THIRD 1", "KEPT 3", "CALLERS True 4"):
        assert line in printed, printed
