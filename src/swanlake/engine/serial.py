"""A DuckDB instance with one thread, for queries of nothing but their text and parameters.

DuckDB wakes a thread of its scheduler for every query. For a query of a few rows, that costs as
much CPU time as the query, and four context switches. The number of threads is one setting of an
instance, so small queries have an instance of their own, in which their callers are the only
threads. It has no catalog, no extension and little memory: what it refuses, another instance runs.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import duckdb

from swanlake._internal.free_list import FreeList
from swanlake.engine.database import open_database
from swanlake.engine.instance import LOSSLESS

_MEMORY_LIMIT = "64MB"
_MAX_CONNECTIONS = 16


class SerialEngine:
    """Connections of the instance, which is opened with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._root: duckdb.DuckDBPyConnection | None = None
        self._connections = self._new_list()

    def connection(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection for the block, which may leave nothing on it unless it raises."""
        return self._connections.borrow()

    def close(self) -> None:
        """Closes the instance; the next connection opens another one, as after a fatal error."""
        with self._lock:
            root, self._root = self._root, None
            # Connections that are in use return to the old list, and are not used again.
            connections, self._connections = self._connections, self._new_list()
        connections.close()
        if root is not None:
            root.close()

    def _new_list(self) -> FreeList[duckdb.DuckDBPyConnection]:
        return FreeList(self._open_connection, limit=_MAX_CONNECTIONS)

    def _open_connection(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._root is None:
                self._root = open_database(None, _MEMORY_LIMIT, threads=1, extensions=())
                self._root.execute(LOSSLESS)
            return self._root.cursor()
