"""How much of a running statement is done, asked on a separate connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.sql.quoting import literal

_TIMEOUT = 2.0


class Progress:
    """Asks for the progress of statements; silent if the server does not know it."""

    def __init__(self, open_client: Callable[[], FlightSQLClient]) -> None:
        self._open_client = open_client
        self._client: FlightSQLClient | None = None
        self._is_known = True

    def find(self, query_id: str) -> float | None:
        """The done part of a statement between 0 and 1, or None; from one thread at a time."""
        if not self._is_known:
            return None
        try:
            self._client = self._client or self._open_client()
            found = self._client.query(
                f"SELECT progress FROM swanlake_queries() WHERE query_id = {literal(query_id)}",
                timeout=_TIMEOUT,
            ).scalar()
        except SwanLakeError as error:
            # Another Flight SQL server has no such function; ours may just be busy.
            self._is_known = error.identifier not in ("CATALOG_ERROR", "BINDER_ERROR")
            self.close()
            return None
        return None if found is None else float(found)

    def close(self) -> None:
        """Closes the connection; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(SwanLakeError):
                client.close(timeout=1.0)
