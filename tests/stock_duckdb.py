"""Stock DuckDB, as other programs use it on the lake."""

from __future__ import annotations

from typing import Any

import duckdb

from swanlake.engine.extensions import load_extensions


def stock_duckdb(**config: Any) -> duckdb.DuckDBPyConnection:
    """Stock DuckDB with the stock extensions, nothing attached.

    Nobody checks their signatures: servers do, and it takes longer than most tests. More threads
    would only be in the way of the other tests.
    """
    connection = duckdb.connect(config={"allow_unsigned_extensions": True, "threads": 1, **config})
    load_extensions(connection)
    return connection
