"""Settings that hold for a moment come back, whoever holds them last."""

from __future__ import annotations

import pytest

from icefloe.session_settings import held

KEY = "spark.sql.adaptive.enabled"


def test_a_setting_comes_back_after_the_last_holder(spark):
    before = spark.conf.get(KEY)
    first, second = held(spark, KEY, "false"), held(spark, KEY, "false")

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert spark.conf.get(KEY) == "false"
    second.__exit__(None, None, None)

    assert spark.conf.get(KEY) == before


def test_a_setting_comes_back_after_a_failure(spark):
    before = spark.conf.get(KEY)

    with pytest.raises(ValueError, match="no"), held(spark, KEY, "false"):
        raise ValueError("no")

    assert spark.conf.get(KEY) == before
