"""Limits failed logins per address."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: Failures that an address may have at once, and the time after which it may have another.
_BURST = 20
_SECONDS_PER_FAILURE = 3.0
#: Beyond it, the addresses whose last failure is the oldest are forgotten.
_MAX_ADDRESSES = 10_000


@dataclass
class _Failures:
    count: float
    at: float


class LoginLimiter:
    """Counts failed logins; their number decays with time.

    limiter.is_blocked("192.0.2.1")       # before a secret is checked
    limiter.record_failure("192.0.2.1")   # when it was wrong
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        burst: int = _BURST,
        seconds_per_failure: float = _SECONDS_PER_FAILURE,
        max_addresses: int = _MAX_ADDRESSES,
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._seconds = seconds_per_failure
        self._max_addresses = max_addresses
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def is_blocked(self, source: str) -> bool:
        """True if the source had too many failures lately."""
        with self._lock:
            return self._count(source) > self._burst - 1

    def record_failure(self, source: str) -> bool:
        """Counts a failure; False if the source was blocked already: it need not be logged."""
        with self._lock:
            count = self._count(source)
            if count > self._burst - 1:
                return False
            self._failures[source] = _Failures(count + 1, self._clock())
            self._failures.move_to_end(source)
            if len(self._failures) > self._max_addresses:
                self._failures.popitem(last=False)
            return True

    def _count(self, source: str) -> float:
        known = self._failures.get(source)
        if known is None:
            return 0.0
        return max(0.0, known.count - (self._clock() - known.at) / self._seconds)


def limited_address(host: str) -> str:
    """The address whose failures are counted: an IPv6 network has more than can be counted."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
