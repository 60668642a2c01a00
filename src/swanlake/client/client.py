"""One connection to a server."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

from swanlake.client.sync.session import SessionStatements
from swanlake.client.transport.address import Address
from swanlake.client.transport.connection import CANCEL_GRACE, CONNECT_TIMEOUT, Connection


class FlightSQLClient(SessionStatements):
    """One session on a server; a context manager, usable from many threads, one at a time.

    >>> with swanlake.connect("grpc://localhost:4214") as client:  # doctest: +SKIP
    ...     client.query("SELECT 42 AS answer").to_pylist()
    [{'answer': 42}]
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls_ca: str | PathLike[str] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        cancel_grace: float = CANCEL_GRACE,
    ) -> None:
        address = Address.parse(
            url, token=token, user=user, password=password, tls_ca=tls_ca, headers=headers
        )
        connection = Connection(address, connect_timeout=connect_timeout, cancel_grace=cancel_grace)
        super().__init__(connection, timeout)
        connection.open()

    def close(self, *, timeout: float = 5.0) -> None:
        """Stops what runs and ends the session within about ``timeout`` seconds; idempotent."""
        self._connection.close(timeout)

    def __enter__(self) -> FlightSQLClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        connection = getattr(self, "_own", None)
        if connection is not None and not connection.closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<FlightSQLClient {self._connection.driver.address.url} {state}>"


def connect(url: str = "grpc://127.0.0.1:4214", **options: Any) -> FlightSQLClient:
    """Connects to a server; the options are those of ``FlightSQLClient``."""
    return FlightSQLClient(url, **options)
