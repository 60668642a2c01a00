"""Turns at a catalog in PostgreSQL.

The commit lock belongs to whoever inserts a snapshot, and the stock extension does that over a
connection of its own. Who wants it to find the catalog at rest needs another lock around it: every
committer of SwanLake takes this one first. PostgreSQL's queue for it is first come, first served.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from swanlake.errors import CatalogUnreachable
from swanlake.lake.turns import Turns, TurnTimeout

log = logging.getLogger("swanlake.lake")

#: The second half of the key of a turn; the first is that of the commit lock.
TURN_CLASS = 0x5377616E
_CHECK_INTERVAL = 0.05
_CANCEL_SECONDS = 2.0
_TAKE = b"SELECT pg_advisory_lock(hashtext($1), $2::int)"
_GIVE = "SELECT pg_advisory_unlock(hashtext(%s), %s)"


class TurnConnections:
    """Connections that hold turns, and those that are free to."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._free: list[psycopg.Connection[Any]] = []

    @contextmanager
    def one(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for the block; it is closed if the block fails."""
        with self._lock:
            connection = self._free.pop() if self._free else None
        if connection is None or connection.closed:
            try:
                connection = self._connect()
            except psycopg.Error as lost:
                raise _unreachable(lost) from lost
            connection.autocommit = True
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._free.append(connection)

    def close(self) -> None:
        """Closes those that are free."""
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()


class PostgresTurns(Turns):
    """An advisory lock of a connection that does nothing else; it ends with the connection."""

    def __init__(self, connections: TurnConnections, schema: str) -> None:
        self._connections = connections
        self._key = f'"{schema}"'

    @contextmanager
    def turn(self, deadline: float, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        with self._connections.one() as connection:
            self._take(connection, deadline, check)
            try:
                yield
            finally:
                self._give(connection)

    def _take(
        self, connection: psycopg.Connection[Any], deadline: float, check: Callable[[], None]
    ) -> None:
        # Not connection.execute(): nothing could be checked while that waits.
        server = connection.pgconn
        server.send_query_params(_TAKE, [self._key.encode(), str(TURN_CLASS).encode()])
        server.flush()
        try:
            while server.is_busy():
                if not select.select([server.socket], [], [], _CHECK_INTERVAL)[0]:
                    check()
                    if time.monotonic() >= deadline:
                        raise TurnTimeout("another writer had the catalog until the deadline")
                server.consume_input()
        except psycopg.Error as lost:
            raise _unreachable(lost) from lost
        except BaseException:
            # A server that learns of it only when the lock is free would keep its place in line.
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CANCEL_SECONDS)
            raise
        while (result := server.get_result()) is not None:
            if result.status != ExecStatus.TUPLES_OK:
                raise _unreachable(result.error_message.decode(errors="replace"))

    def _give(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute(_GIVE, [self._key, TURN_CLASS])
        except psycopg.Error as lost:
            # The lock went with the connection. What was done meanwhile was still in order: the
            # commit lock and the fence saw to that.
            log.warning("the turn at %s was lost before it was given back: %s", self._key, lost)
            connection.close()


def _unreachable(reason: object) -> CatalogUnreachable:
    return CatalogUnreachable(
        f"The lake's metadata cannot be reached to commit: {' '.join(str(reason).split())}"
    )
