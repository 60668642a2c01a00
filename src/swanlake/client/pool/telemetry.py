"""Log lines for the events of a pool; spans and metrics if OpenTelemetry is installed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any
from weakref import WeakSet

from swanlake.client.pool.core import PoolStats

log = logging.getLogger("swanlake.pool")

_POOL_NAME = "db.client.connection.pool.name"


class Telemetry:
    """The log, the spans and the metrics of one pool."""

    def __init__(self, pool: str, stats: Callable[[], PoolStats]) -> None:
        self.pool = pool
        self.stats = stats
        self._instruments = _instruments()
        if self._instruments is not None:
            self._instruments.pools.add(self)

    def event(self, words: str, *details: object, level: int = logging.INFO) -> None:
        """Logs an event of the pool."""
        log.log(level, "pool %s: " + words, self.pool, *details)

    def connection_event(
        self, session_id: str, words: str, *details: object, level: int = logging.INFO
    ) -> None:
        """Logs an event of one of its connections."""
        log.log(level, "pool %s: connection %s " + words, self.pool, session_id, *details)

    def open_transaction(self, session_id: str) -> None:
        """Warns about a connection that was released without commit or rollback."""
        words = "was released with an open transaction, which is rolled back"
        self.connection_event(session_id, words, level=logging.WARNING)

    def acquired(self, seconds: float) -> None:
        """Records how long a caller waited for its connection."""
        if self._instruments is not None:
            self._instruments.wait_time.record(seconds, {_POOL_NAME: self.pool})

    def timed_out(self) -> None:
        """Counts a caller that got no connection in time."""
        if self._instruments is not None:
            self._instruments.timeouts.add(1, {_POOL_NAME: self.pool})

    def span(self, name: str) -> Span:
        """A span in the caller's trace."""
        if self._instruments is None or not self._instruments.traces:
            return _NO_SPAN
        span: Span = self._instruments.tracer.start_as_current_span(
            name, attributes={"db.system.name": "swanlake", _POOL_NAME: self.pool}
        )
        return span


Span = AbstractContextManager[Any]
_NO_SPAN: Span = nullcontext()


class _Instruments:
    """The process's instruments, named by OpenTelemetry's semantic conventions."""

    def __init__(self, trace: Any, metrics: Any) -> None:
        self.tracer = trace.get_tracer("swanlake")
        self._trace = trace
        #: Weak references: the meter must not keep closed pools alive.
        self.pools: WeakSet[Telemetry] = WeakSet()
        self._observation = metrics.Observation
        meter = metrics.get_meter("swanlake")
        self.wait_time = meter.create_histogram("db.client.connection.wait_time", "s")
        self.timeouts = meter.create_counter("db.client.connection.timeouts")
        meter.create_observable_up_down_counter("db.client.connection.count", [self._count])
        meter.create_observable_up_down_counter(
            "db.client.connection.pending_requests", [self._pending]
        )

    @property
    def traces(self) -> bool:
        """False while the program has no tracer provider, so that spans would be dropped."""
        return not isinstance(self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider)

    def _count(self, _: Any) -> Iterator[Any]:
        for pool in list(self.pools):
            stats = pool.stats()
            for state, number in (("idle", stats.conn_idle), ("used", stats.conn_in_use)):
                attributes = {_POOL_NAME: pool.pool, "db.client.connection.state": state}
                yield self._observation(number, attributes)

    def _pending(self, _: Any) -> Iterator[Any]:
        for pool in list(self.pools):
            yield self._observation(pool.stats().waiting, {_POOL_NAME: pool.pool})


@cache
def _instruments() -> _Instruments | None:
    try:
        trace = importlib.import_module("opentelemetry.trace")
        metrics = importlib.import_module("opentelemetry.metrics")
    except ImportError:
        return None
    return _Instruments(trace, metrics)
