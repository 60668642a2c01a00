"""Deadlines: a caller's timeout in seconds, fixed as one moment when the call begins."""

from __future__ import annotations

import time

from swanlake.errors import QueryTimeout

#: Longer timeouts mean no limit: clocks and locks overflow on them, as they do on infinity.
_MAX_TIMEOUT = 366 * 24 * 3600.0


class Deadline:
    """The moment by which a call must end; None means no limit."""

    __slots__ = ("_at", "timeout")

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and timeout > _MAX_TIMEOUT:
            timeout = None
        self.timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, None for no limit; raises QueryTimeout after the deadline."""
        if self._at is None or self.timeout is None:
            return None
        left = self._at - time.monotonic()
        if left <= 0:
            raise client_timeout(self.timeout)
        return left

    def or_sooner(self, other: Deadline) -> Deadline:
        """The one of two deadlines that comes first."""
        if other._at is not None and (self._at is None or other._at < self._at):
            return other
        return self

    def seconds_left(self, extra: float = 0.0) -> float | None:
        """Seconds left plus ``extra``, None for no limit; never raises."""
        return None if self._at is None else max(0.0, self._at - time.monotonic()) + extra


class ClientTimeout(QueryTimeout):
    """A deadline that the client enforced: the server may still be running the statement."""


def client_timeout(timeout: float) -> ClientTimeout:
    """The error for a statement that the client stopped waiting for."""
    return ClientTimeout(
        f"The statement did not end within its limit of {timeout:g} s and was given up."
    )


class WaitTimeout(TimeoutError):
    """A wait that ended before its future was done."""
