"""The client: what the base install of SwanLake is."""

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
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.stream import ResultStream
from swanlake.client.writer import AsyncWriter, Writer

__all__ = [
    "CANCEL_GRACE",
    "CONNECT_TIMEOUT",
    "UNSET",
    "Acknowledged",
    "AsyncWriter",
    "Failure",
    "FlightSQLClient",
    "PoolConfig",
    "PreparedQuery",
    "QueryOptions",
    "QueryResult",
    "ResultStream",
    "UpdateResult",
    "Writer",
    "WriterOptions",
    "WriterReport",
    "connect",
]
