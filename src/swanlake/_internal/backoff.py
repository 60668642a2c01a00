"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable


def backoff(
    failures: int,
    chance: Callable[[], float] = random.random,
    *,
    first: float = 0.1,
    longest: float = 5.0,
    jitter: float = 0.25,
) -> float:
    """Seconds to wait after so many failures in a row: twice as long each time, up to a limit.

    The jitter is for the many clients that lost the same server: they do not come back in step.

    >>> [backoff(number, chance=lambda: 0.5) for number in (1, 2, 3, 10)]
    [0.1, 0.2, 0.4, 5.0]
    """
    wait = min(longest, first * 2.0 ** min(failures - 1, 30))
    return wait * (1 + jitter * (2 * chance() - 1))
