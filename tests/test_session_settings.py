"""Temporary settings of a session are restored, whoever holds them last."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Barrier
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icefloe.errors import StatementError
from icefloe.spark.errors import translate_spark_errors
from icefloe.spark.session import spark_conf

KEY = "spark.sql.adaptive.enabled"
LOGGER = "SQLQueryContextLogger"


class Settings(dict[str, str]):
    """The settings of a session; setting them fails once it has ended."""

    ended = False

    def set(self, key: str, value: str) -> None:
        if self.ended:
            raise ConnectionRefusedError
        self[key] = value


def wrapper(settings: Settings, **how: object) -> SimpleNamespace:
    """One of the Python objects of a session."""
    return SimpleNamespace(conf=settings, **how)


def classic(settings: Settings) -> SimpleNamespace:
    java = SimpleNamespace(sessionUUID=lambda: "the same")
    return wrapper(settings, _jsparkSession=java)


def connect(settings: Settings) -> SimpleNamespace:
    return wrapper(settings, session_id="the same")


def run_overlapping(
    first: Callable[[], AbstractContextManager[None]],
    second: Callable[[], AbstractContextManager[None]],
    between: Callable[[], None] = lambda: None,
) -> None:
    """The second of two threads enters while the first is inside, and leaves after it."""
    barrier = Barrier(2, timeout=30)

    def early() -> None:
        with first():
            barrier.wait()  # the second may enter
            barrier.wait()
        between()
        barrier.wait()  # the second may leave

    def late() -> None:
        barrier.wait()
        with second():
            barrier.wait()
            barrier.wait()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(early), threads.submit(late)]:
            done.result(timeout=60)


def test_a_setting_comes_back_after_the_last_holder(spark):
    before = spark.conf.get(KEY)
    first, second = spark_conf(spark, KEY, "false"), spark_conf(spark, KEY, "false")

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert spark.conf.get(KEY) == "false"
    second.__exit__(None, None, None)

    assert spark.conf.get(KEY) == before


def test_a_setting_comes_back_after_a_failure(spark):
    before = spark.conf.get(KEY)

    with pytest.raises(ValueError, match="no"), spark_conf(spark, KEY, "false"):
        raise ValueError("no")

    assert spark.conf.get(KEY) == before


@pytest.mark.parametrize("of", [classic, connect])
def test_two_python_objects_of_one_session_share_what_they_hold(of):
    """Each kept the other's value for the one to restore."""
    settings = Settings({KEY: "true"})

    def holding() -> AbstractContextManager[None]:
        return spark_conf(of(settings), KEY, "false")

    inside: list[str] = []
    run_overlapping(holding, holding, lambda: inside.append(settings[KEY]))

    assert inside == ["false"]
    assert settings[KEY] == "true"


def test_other_sessions_hold_their_own():
    one, other = Settings({KEY: "true"}), Settings({KEY: "true"})
    with spark_conf(wrapper(one, session_id="one"), KEY, "false"):
        with spark_conf(wrapper(other, session_id="other"), KEY, "false"):
            assert (one[KEY], other[KEY]) == ("false", "false")
        assert (one[KEY], other[KEY]) == ("false", "true")


def test_two_objects_of_sparks_own(spark):
    """The same with PySpark's objects, and another session beside them."""
    before = spark.conf.get(KEY)
    active = SparkSession._activeSession
    again = SparkSession(spark.sparkContext, spark._jsparkSession)
    SparkSession._activeSession = active
    other = spark.newSession()
    SparkSession._activeSession = active
    try:
        run_overlapping(
            lambda: spark_conf(spark, KEY, "false"),
            lambda: spark_conf(again, KEY, "false"),
            lambda: other.conf.set(KEY, "true"),
        )
        assert spark.conf.get(KEY) == before
        with spark_conf(other, KEY, "false"):
            assert spark.conf.get(KEY) == before
    finally:
        spark.conf.set(KEY, before)


@pytest.mark.parametrize("failing", [False, True])
def test_a_session_that_has_ended_hides_neither_result_nor_error(failing, caplog):
    """The setting of an ended session needs no restoring."""
    settings = Settings({KEY: "true"})
    caplog.set_level(logging.DEBUG, "icefloe")
    expected = pytest.raises(ValueError, match="first") if failing else nullcontext()
    with expected, spark_conf(connect(settings), KEY, "false"):
        settings.ended = True
        if failing:
            raise ValueError("first")
    assert "could not restore" in caplog.text

    settings.ended = False
    settings[KEY] = "true"
    with spark_conf(connect(settings), KEY, "false"):
        assert settings[KEY] == "false"
    assert settings[KEY] == "true"


def test_pysparks_loggers_come_back_after_the_last_thread():
    """The second thread kept the first one's silence for the level to restore."""
    with translate_spark_errors():
        logger = logging.getLogger(LOGGER)
    before = logger.level
    inside: list[int] = []
    try:
        run_overlapping(
            translate_spark_errors, translate_spark_errors, lambda: inside.append(logger.level)
        )
        assert inside == [logging.CRITICAL]
        assert logger.level == before
    finally:
        logger.setLevel(before)


def test_many_threads_leave_nothing_behind():
    """With two objects of one session, by chance."""
    settings = Settings({KEY: "true"})
    with translate_spark_errors():
        logger = logging.getLogger(LOGGER)
    before = logger.level
    barrier = Barrier(4, timeout=30)

    def work() -> None:
        own = classic(settings)
        for _ in range(200):
            with spark_conf(own, KEY, "false"), translate_spark_errors():
                assert settings[KEY] == "false"
                assert logger.level == logging.CRITICAL
        barrier.wait()

    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work) for _ in range(4)]:
                done.result(timeout=60)
        assert (settings[KEY], logger.level) == ("true", before)
    finally:
        logger.setLevel(before)


def test_loggers_come_back_after_an_error():
    with translate_spark_errors():
        logger = logging.getLogger(LOGGER)
    before = logger.level
    with pytest.raises(StatementError), translate_spark_errors():
        raise PySparkException("no")
    assert logger.level == before
