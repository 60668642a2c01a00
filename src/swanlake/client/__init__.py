"""The client, which is all that the base install of SwanLake contains.

Sub-packages: ``api`` (options, requests, results), ``aio`` and ``sync`` (pools, sessions, writers
for tasks and for threads), ``pool`` (decisions and background threads of a pool), ``writer``
(batching and sending of rows), ``transport`` (Flight SQL connections).
"""

from swanlake.client.aio.pool import AsyncFlightSQLPool, AsyncPooledConnection, AsyncSessionHandle
from swanlake.client.aio.session import AsyncPreparedQuery
from swanlake.client.aio.writer import AsyncWriter
from swanlake.client.api.options import (
    UNSET,
    PoolConfig,
    QueryOptions,
    WriterOptions,
)
from swanlake.client.api.result import QueryResult, UpdateResult
from swanlake.client.api.stream import AsyncResultStream, ResultStream
from swanlake.client.client import FlightSQLClient, connect
from swanlake.client.pool.core import PoolStats
from swanlake.client.sync.pool import FlightSQLPool, PooledConnection, SessionHandle
from swanlake.client.sync.session import PreparedQuery
from swanlake.client.sync.writer import Writer
from swanlake.client.transport.connection import CANCEL_GRACE, CONNECT_TIMEOUT
from swanlake.client.writer.batching import Acknowledged, Failure, WriterReport

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
