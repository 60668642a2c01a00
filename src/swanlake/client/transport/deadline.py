"""A limit in time: told as seconds by the caller, kept as one moment from then on."""

from __future__ import annotations

import time

from swanlake.errors import QueryTimeout

#: Seconds beyond which a limit is none, as infinity is: clocks and locks do not count so far.
_LONGEST = 366 * 24 * 3600.0


class Deadline:
    """The moment at which a call must be over; there may be none."""

    __slots__ = ("_at", "timeout")

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and timeout > _LONGEST:
            timeout = None
        self.timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds that are left, None for no limit; raises QueryTimeout if none are."""
        if self._at is None or self.timeout is None:
            return None
        left = self._at - time.monotonic()
        if left <= 0:
            raise too_late(self.timeout)
        return left

    def patience(self, more: float) -> float | None:
        """How long to wait for somebody who keeps the deadline himself and may be late."""
        return None if self._at is None else max(0.0, self._at - time.monotonic()) + more


class GivenUp(QueryTimeout):
    """A limit that this side kept, because the other side did not: what runs there is unknown."""


def too_late(timeout: float) -> GivenUp:
    """What is raised when a statement is given up."""
    return GivenUp(f"The statement did not end within its limit of {timeout:g} s and was given up.")
