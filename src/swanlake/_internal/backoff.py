"""The delay before a failed operation is retried."""

from __future__ import annotations

import random
from collections.abc import Callable

#: Doublings beyond this change no delay, and would overflow a float in the end.
_MAX_DOUBLINGS = 30


def backoff(
    failures: int,
    chance: Callable[[], float] = random.random,
    *,
    first: float = 0.1,
    longest: float = 5.0,
    jitter: float = 0.25,
) -> float:
    """Seconds to wait after so many failures in a row: exponential, capped, jittered.

    The jitter spreads out clients that lost the same server at the same moment.

    >>> [backoff(number, chance=lambda: 0.5) for number in (1, 2, 3, 10)]
    [0.1, 0.2, 0.4, 5.0]
    """
    delay = min(longest, first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return delay * (1 + jitter * (2 * chance() - 1))
