"""SwanLake: a lakehouse server and its client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swanlake._version import __version__
from swanlake.errors import (
    ConfigError,
    ConnectionLost,
    PoolClosed,
    PoolError,
    PoolTimeout,
    QueryCancelled,
    QueryError,
    QueryTimeout,
    ServerUnavailable,
    ServerUnreachable,
    SessionLost,
    SwanLakeError,
    TooManyRequests,
    WriterError,
)

if TYPE_CHECKING:
    from swanlake.client import (
        AsyncFlightSQLPool,
        AsyncSessionHandle,
        AsyncWriter,
        FlightSQLClient,
        FlightSQLPool,
        PoolConfig,
        PooledConnection,
        PoolStats,
        PreparedQuery,
        QueryOptions,
        QueryResult,
        ResultStream,
        SessionHandle,
        UpdateResult,
        Writer,
        WriterOptions,
        WriterReport,
        connect,
        dbapi,
    )
    from swanlake.client import AsyncFlightSQLPool as AsyncPool
    from swanlake.client import FlightSQLPool as Pool
    from swanlake.jobs.transforms.registry import transform

__all__ = [
    "AsyncFlightSQLPool",
    "AsyncPool",
    "AsyncSessionHandle",
    "AsyncWriter",
    "ConfigError",
    "ConnectionLost",
    "FlightSQLClient",
    "FlightSQLPool",
    "Pool",
    "PoolClosed",
    "PoolConfig",
    "PoolError",
    "PoolStats",
    "PoolTimeout",
    "PooledConnection",
    "PreparedQuery",
    "QueryCancelled",
    "QueryError",
    "QueryOptions",
    "QueryResult",
    "QueryTimeout",
    "ResultStream",
    "ServerUnavailable",
    "ServerUnreachable",
    "SessionHandle",
    "SessionLost",
    "SwanLakeError",
    "TooManyRequests",
    "UpdateResult",
    "Writer",
    "WriterError",
    "WriterOptions",
    "WriterReport",
    "__version__",
    "connect",
    "dbapi",
    "transform",
]

_ALIASES = {"Pool": "FlightSQLPool", "AsyncPool": "AsyncFlightSQLPool"}


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: Spark workers have neither Flight nor protobuf."""
    if name not in __all__:
        raise AttributeError(f"module 'swanlake' has no attribute {name!r}")
    if name == "dbapi":
        return import_module("swanlake.client.dbapi")
    if name == "transform":
        return import_module("swanlake.jobs.transforms.registry").transform
    return getattr(import_module("swanlake.client"), _ALIASES.get(name, name))
