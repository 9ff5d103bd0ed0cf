"""Try again after a lost race: the loop alone, with its clock passed in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from icefloe.settings import RetryPolicy

T = TypeVar("T")


class LostRaceError(Exception):
    """Another writer moved the table between reading its head and swapping it."""


def with_retries(
    attempt: Callable[[int], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> T:
    """Call `attempt` (with its number, from 1) until it returns or the policy is used up.

    Only `LostRaceError` is retried; every other exception reaches the caller at once. Waits are
    shortened by chance, up to half, so that writers that lost together do not meet again.
    """
    started = clock()
    for number in range(policy.retries + 1):
        try:
            return attempt(number + 1)
        except LostRaceError:
            wait = policy.wait_s(number)
            if number == policy.retries or clock() - started + wait > policy.total_s:
                raise
            sleep(wait * (1 - chance() / 2))
    raise AssertionError("unreachable")
