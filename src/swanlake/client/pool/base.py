"""The parts of a pool that do not depend on how its callers wait."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from swanlake.client.api import requests
from swanlake.client.api.options import PoolConfig, QueryOptions, Timeout, Unset
from swanlake.client.pool.core import PoolStats
from swanlake.client.pool.runtime import Configure, PoolRuntime
from swanlake.client.transport.address import Address
from swanlake.client.transport.connection import Request
from swanlake.client.transport.deadline import Deadline
from swanlake.client.transport.fork_guard import threads_unavailable
from swanlake.errors import ConnectionLost, ServerUnreachable, SessionLost

#: Errors of a statement's connection, which another connection may not have.
TRANSPORT_ERRORS = (ServerUnreachable, ConnectionLost, SessionLost)


class PoolBase:
    """Connections to one server, shared by many callers.

    ``overrides`` replace fields of ``config``: ``Pool(url, max_size=8)``. ``configure`` is called
    with every new connection before its first use, in a background thread. ``on_reconnect_failed``
    is called with the pool when the server was unreachable for ``reconnect_timeout``.
    """

    def __init__(
        self,
        url: str,
        config: PoolConfig | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls_ca: str | PathLike[str] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        configure: Configure | None = None,
        on_reconnect_failed: Callable[[Any], object] | None = None,
        **overrides: Any,
    ) -> None:
        self._address = Address.parse(
            url, token=token, user=user, password=password, tls_ca=tls_ca, headers=headers
        )
        reference = weakref.ref(self)  # the runtime's threads must not keep an unused pool alive

        def reconnect_failed() -> None:
            pool = reference()
            if pool is not None and on_reconnect_failed is not None:
                on_reconnect_failed(pool)

        config = replace(config or PoolConfig(), **overrides)
        self._runtime = PoolRuntime(self._address, config, configure, reconnect_failed)

    @property
    def name(self) -> str:
        """The pool's name in logs, errors and metrics."""
        return str(self._runtime.config.name)

    @property
    def config(self) -> PoolConfig:
        return self._runtime.config

    @property
    def closed(self) -> bool:
        return self._runtime.closed

    def stats(self) -> PoolStats:
        """The current figures, and the counts since the start or the last ``pop_stats``."""
        return self._runtime.stats()

    def pop_stats(self) -> PoolStats:
        """Like ``stats``, and resets the counts."""
        return self._runtime.stats(pop=True)

    def drain(self) -> None:
        """Replaces every connection: idle ones now, those in use when they are released."""
        self._runtime.drain()

    def resize(self, *, min_idle: int, max_size: int) -> None:
        """Changes the bounds; surplus connections are closed when they are idle."""
        self._runtime.resize(min_idle=min_idle, max_size=max_size)

    def _deadline(self, options: QueryOptions | None, timeout: Timeout) -> Deadline:
        return requests.deadline(options, timeout, self.config.default_query_timeout)

    def _acquire_deadline(self, deadline: Deadline, timeout: Timeout) -> Deadline:
        """When to stop waiting for a connection: not after the deadline of the statement itself."""
        longest = self.config.acquire_timeout if isinstance(timeout, Unset) else timeout
        return Deadline(longest).or_sooner(deadline)

    def _may_retry(self, request: Request[Any], options: QueryOptions | None) -> bool:
        choice = options.retry_on_failure if options is not None else None
        allowed = choice if isinstance(choice, bool) else self.config.retry_on_failure
        return allowed and request.idempotent

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__name__} {self.name} {self._address.url} {state}>"

    def __del__(self) -> None:
        runtime: PoolRuntime | None = getattr(self, "_runtime", None)
        if runtime is None or not runtime.started or runtime.closed or threads_unavailable():
            return
        runtime.close_abandoned()
        warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
