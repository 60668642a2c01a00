"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable

_FIRST = 0.1
_LONGEST = 5.0
#: So many clients that lost the same server do not come back to it in step.
_JITTER = 0.25


def backoff(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait after so many failures in a row: twice as long each time, up to a limit.

    >>> [backoff(number, chance=lambda: 0.5) for number in (1, 2, 3, 10)]
    [0.1, 0.2, 0.4, 5.0]
    """
    wait = min(_LONGEST, _FIRST * 2.0 ** min(failures - 1, 30))
    return wait * (1 + _JITTER * (2 * chance() - 1))
