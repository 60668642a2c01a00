"""The shell's connection, reopened when the server is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from swanlake._internal.backoff import backoff
from swanlake.cli.shell.completion import Place
from swanlake.cli.shell.session_state import SessionState
from swanlake.client import FlightSQLClient
from swanlake.errors import ConnectionLost, ServerUnreachable, SessionLost, SwanLakeError

#: How long a reconnect is tried before the prompt is back; the next statement tries again.
_RECONNECT_SECONDS = 60.0
_PLACE = "SELECT current_catalog(), current_schema()"

#: The errors after which a session does not exist any more.
LOST = (ConnectionLost, ServerUnreachable, SessionLost)


class Link:
    """A client, what its session holds, and where it is."""

    def __init__(self, open_client: Callable[[], FlightSQLClient], client: FlightSQLClient) -> None:
        self._open_client = open_client
        self.client = client
        self.state = SessionState()
        self.place = Place()
        self.is_lost = False

    def mark_lost(self) -> list[str]:
        """Gives the connection up; returns what the session held, as phrases."""
        lost = self.state.lost()
        self.state = SessionState()
        self.place = Place()
        self.is_lost = True
        with suppress(SwanLakeError):
            self.client.close(timeout=0.5)
        return lost

    def reconnect(self) -> None:
        """Tries for a minute to connect; raises the last error if the server does not answer."""
        deadline = time.monotonic() + _RECONNECT_SECONDS
        failures = 0
        while True:
            try:
                self.client = self._open_client()
                break
            except ServerUnreachable:
                failures += 1
                pause = backoff(failures, longest=2.0)
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        self.is_lost = False

    def find_place(self) -> None:
        """Asks the server for the current catalog and schema, outside of a transaction."""
        if self.state.in_transaction:
            return
        with suppress(SwanLakeError):  # other Flight SQL servers may not know the functions
            [(catalog, schema)] = self.client.query(_PLACE).rows()
            self.place = Place(str(catalog), str(schema))

    def close(self) -> None:
        """Ends the session."""
        self.client.close()
