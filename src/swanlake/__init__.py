"""SwanLake: a lakehouse server, and the client that speaks to it."""

from swanlake._version import __version__
from swanlake.errors import SwanLakeError
from swanlake.pipeline.transforms import transform

__all__ = ["SwanLakeError", "__version__", "transform"]
