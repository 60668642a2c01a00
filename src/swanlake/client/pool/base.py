"""What a pool for threads and a pool for tasks have in common: all that does not wait."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from swanlake.client.address import Address
from swanlake.client.connection import Connection, Request
from swanlake.client.deadline import Deadline
from swanlake.client.forks import is_cut_off
from swanlake.client.keeper import Configure, Keeper
from swanlake.client.options import PoolConfig, QueryOptions, Unset
from swanlake.client.pool_core import PoolStats
from swanlake.client.statements import Timeout, limit
from swanlake.errors import ConnectionLost, ServerUnreachable, SessionLost

#: What can happen to a statement because of its connection, and may not happen on another one.
TRANSPORT_ERRORS = (ServerUnreachable, ConnectionLost, SessionLost)


class PoolBase:
    """Connections to one server, shared by many.

    ``config`` and ``overrides`` say how: ``Pool(url, max_size=8)``. ``configure`` is called with
    every new connection before its first use, in a thread of its own; ``on_reconnect_failed`` with
    the pool when the server could not be reached for ``reconnect_timeout``.
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
        address = Address.parse(
            url, token=token, user=user, password=password, tls_ca=tls_ca, headers=headers
        )
        self._address = address
        me = weakref.ref(self)  # the keeper's threads must not keep a forgotten pool alive

        def gave_up() -> None:
            pool = me()
            if pool is not None and on_reconnect_failed is not None:
                on_reconnect_failed(pool)

        config = replace(config or PoolConfig(), **overrides)
        self._keeper = Keeper(address, config, configure, gave_up)

    @property
    def name(self) -> str:
        """The pool's name in logs, errors and metrics."""
        return str(self._keeper.config.name)

    @property
    def config(self) -> PoolConfig:
        return self._keeper.config

    @property
    def closed(self) -> bool:
        return self._keeper.closed

    def stats(self) -> PoolStats:
        """How the pool is doing."""
        return self._keeper.stats()

    def pop_stats(self) -> PoolStats:
        """How the pool has been doing since the last time; the counts begin anew."""
        return self._keeper.stats(pop=True)

    def drain(self) -> None:
        """Replaces every connection: idle ones now, those in use when they come back."""
        self._keeper.drain()

    def resize(self, *, min_idle: int, max_size: int) -> None:
        """Changes the bounds; connections that are too many go when they are idle."""
        self._keeper.resize(min_idle=min_idle, max_size=max_size)

    def _connection_to(self, address: Address) -> Connection:
        """A connection outside of the pool, with its limits; to be opened."""
        config = self.config
        return Connection(
            address, connect_timeout=config.connect_timeout, cancel_grace=config.cancel_grace
        )

    def _deadline(self, options: QueryOptions | None, timeout: Timeout) -> Deadline:
        return Deadline(limit(options, timeout, self.config.default_query_timeout))

    def _patience(self, deadline: Deadline, timeout: Timeout) -> float | None:
        """How long to wait for a connection: no longer than the statement itself may take."""
        longest = self.config.acquire_timeout if isinstance(timeout, Unset) else timeout
        limits = (Deadline(longest).patience(0), deadline.patience(0))
        return min((one for one in limits if one is not None), default=None)

    def _may_repeat(self, request: Request[Any], options: QueryOptions | None) -> bool:
        wish = options.retry_on_failure if options is not None else None
        asked = wish if isinstance(wish, bool) else self.config.retry_on_failure
        return asked and request.repeatable

    def _check_filled(self) -> None:
        """Raises why the first connections will not come, if they will not."""
        failure = self._keeper.hopeless
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__name__} {self.name} {self._address.url} {state}>"

    def __del__(self) -> None:
        keeper: Keeper | None = getattr(self, "_keeper", None)
        if keeper is not None and keeper.started and not keeper.closed and not is_cut_off():
            keeper.close_forgotten()
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
