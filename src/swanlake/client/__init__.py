"""The client: what the base install of SwanLake is."""

from swanlake.client.client import FlightSQLClient, PreparedQuery, connect
from swanlake.client.options import CANCEL_GRACE, CONNECT_TIMEOUT, UNSET, PoolConfig, QueryOptions
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.stream import ResultStream

__all__ = [
    "CANCEL_GRACE",
    "CONNECT_TIMEOUT",
    "UNSET",
    "FlightSQLClient",
    "PoolConfig",
    "PreparedQuery",
    "QueryOptions",
    "QueryResult",
    "ResultStream",
    "UpdateResult",
    "connect",
]
