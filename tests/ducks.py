"""Stock DuckDB, as other programs use it on the lake."""

from __future__ import annotations

import duckdb

from swanlake.engine.extensions import load_extensions


def stock_duckdb(**config: bool) -> duckdb.DuckDBPyConnection:
    """Stock DuckDB with the stock extensions, nothing attached.

    Nobody checks their signatures: servers do, and it takes longer than most tests.
    """
    connection = duckdb.connect(config={"allow_unsigned_extensions": True, **config})
    load_extensions(connection)
    return connection
