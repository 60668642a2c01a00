"""SwanLake: a lakehouse server, and the client that speaks to it."""

from swanlake._version import __version__
from swanlake.client import FlightSQLClient, QueryOptions, connect, dbapi
from swanlake.errors import SwanLakeError
from swanlake.pipeline.transforms import transform

__all__ = [
    "FlightSQLClient",
    "QueryOptions",
    "SwanLakeError",
    "__version__",
    "connect",
    "dbapi",
    "transform",
]
