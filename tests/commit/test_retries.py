"""Retries of a commit that lost a race."""

from __future__ import annotations

import pytest

from icefloe.commit.catalog import with_retries
from icefloe.commit.handover import LostRaceError
from icefloe.settings import RetryPolicy


@pytest.mark.requirement("D6")
def test_lost_races_are_retried_by_the_policy():
    waits: list[float] = []

    def attempt(number: int) -> int:
        if number < 4:
            raise LostRaceError
        return number

    policy = RetryPolicy(retries=4, min_wait_s=0.1, max_wait_s=0.3)
    assert with_retries(attempt, policy, sleep=waits.append, chance=lambda: 0.0) == 4
    assert waits == [0.1, 0.2, 0.3]
    with pytest.raises(LostRaceError):
        with_retries(attempt, RetryPolicy(retries=2), sleep=waits.append)
    with pytest.raises(LostRaceError):
        with_retries(attempt, RetryPolicy(total_s=0.05), sleep=waits.append)


def test_waits_of_many_retries_stay_at_the_maximum():
    """2.0**1024 would overflow."""
    policy = RetryPolicy(retries=2**31 - 1, min_wait_s=0.001, max_wait_s=60.0)
    assert {policy.wait_s(attempt) for attempt in (1023, 1024, 10**9)} == {60.0}
    assert RetryPolicy(min_wait_s=0.0).wait_s(5000) == 0.0
    assert RetryPolicy(min_wait_s=0.001, max_wait_s=(2**31 - 1) / 1000).wait_s(64) == 2147483.647
