"""SwanLake: a lakehouse server, and the client that speaks to it."""

from swanlake._version import __version__
from swanlake.client import (
    AsyncFlightSQLPool,
    AsyncSessionHandle,
    FlightSQLClient,
    FlightSQLPool,
    PoolConfig,
    PooledConnection,
    PoolStats,
    QueryOptions,
    SessionHandle,
    connect,
)
from swanlake.errors import SwanLakeError
from swanlake.pipeline.transforms import transform

Pool = FlightSQLPool
AsyncPool = AsyncFlightSQLPool

__all__ = [
    "AsyncFlightSQLPool",
    "AsyncPool",
    "AsyncSessionHandle",
    "FlightSQLClient",
    "FlightSQLPool",
    "Pool",
    "PoolConfig",
    "PoolStats",
    "PooledConnection",
    "QueryOptions",
    "SessionHandle",
    "SwanLakeError",
    "__version__",
    "connect",
    "transform",
]
