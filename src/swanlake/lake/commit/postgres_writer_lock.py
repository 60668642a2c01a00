"""The writer lock of a catalog in PostgreSQL.

The commit lock belongs to the transaction that inserts a snapshot, and the stock extension does
that on a connection of its own. To give it the catalog alone, SwanLake holds a second lock around
it, which every SwanLake committer takes before the commit lock. PostgreSQL grants it first come,
first served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from swanlake._internal.free_list import FreeList
from swanlake._internal.waiting import never_cancelled
from swanlake.errors import CatalogUnreachable
from swanlake.lake.commit.writer_lock import WriterLock, WriterLockTimeout
from swanlake.lake.metastore.advisory_locks import LockConnection, LockKey
from swanlake.lake.metastore.postgres_connection import connect

log = logging.getLogger("swanlake.lake")

LockConnections = FreeList[LockConnection]


def lock_connections(url: str) -> LockConnections:
    """The connections that writer locks of one process share."""

    def create() -> LockConnection:
        try:
            return LockConnection(connect(url))
        except psycopg.Error as lost:
            raise _unreachable(lost) from lost

    return FreeList(create, is_reusable=lambda connection: connection.is_open)


class PostgresWriterLock(WriterLock):
    """An advisory lock of a connection that does nothing else."""

    def __init__(self, connections: LockConnections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        self._key = LockKey.for_writers(schema)

    @contextmanager
    def hold(self, deadline: float, check: Callable[[], None] = never_cancelled) -> Iterator[None]:
        with self._connections.borrow() as connection:
            try:
                is_acquired = connection.acquire(self._key, deadline, check)
            except psycopg.Error as lost:
                raise _unreachable(lost) from lost
            if not is_acquired:
                raise WriterLockTimeout("another writer had the catalog until the deadline")
            try:
                yield
            finally:
                self._release(connection)

    def _release(self, connection: LockConnection) -> None:
        try:
            connection.release(self._key)
        except psycopg.Error as lost:
            # The lock ended with the connection. The commit lock and the fence kept the order.
            log.warning("the writer lock of %s was lost before its release: %s", self._schema, lost)
            connection.close()


def _unreachable(reason: object) -> CatalogUnreachable:
    return CatalogUnreachable(
        f"The lake's metadata cannot be reached to commit: {' '.join(str(reason).split())}"
    )
