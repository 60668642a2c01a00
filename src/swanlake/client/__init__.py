"""The client: what the base install of SwanLake is."""

from swanlake.client.async_pool import AsyncFlightSQLPool
from swanlake.client.async_session import (
    AsyncPooledConnection,
    AsyncPreparedQuery,
    AsyncSessionHandle,
)
from swanlake.client.async_stream import AsyncResultStream
from swanlake.client.batching import Acknowledged, Failure, WriterReport
from swanlake.client.client import FlightSQLClient, PreparedQuery, connect
from swanlake.client.options import (
    CANCEL_GRACE,
    CONNECT_TIMEOUT,
    UNSET,
    PoolConfig,
    QueryOptions,
    WriterOptions,
)
from swanlake.client.pool import FlightSQLPool, PooledConnection, SessionHandle
from swanlake.client.pool_core import PoolStats
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.stream import ResultStream
from swanlake.client.writer import AsyncWriter, Writer

__all__ = [
    "CANCEL_GRACE",
    "CONNECT_TIMEOUT",
    "UNSET",
    "Acknowledged",
    "AsyncFlightSQLPool",
    "AsyncPooledConnection",
    "AsyncPreparedQuery",
    "AsyncResultStream",
    "AsyncSessionHandle",
    "AsyncWriter",
    "Failure",
    "FlightSQLClient",
    "FlightSQLPool",
    "PoolConfig",
    "PoolStats",
    "PooledConnection",
    "PreparedQuery",
    "QueryOptions",
    "QueryResult",
    "ResultStream",
    "SessionHandle",
    "UpdateResult",
    "Writer",
    "WriterOptions",
    "WriterReport",
    "connect",
]
