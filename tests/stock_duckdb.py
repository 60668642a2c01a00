"""Stock DuckDB, as other programs use it with the lake."""

from __future__ import annotations

from typing import Any

import duckdb

from swanlake.engine.database import load_extensions


def stock_duckdb(**config: Any) -> duckdb.DuckDBPyConnection:
    """Stock DuckDB with the stock extensions, nothing attached.

    Extension signatures are not checked: servers do that, and it takes longer than most tests. One
    thread leaves the other cores to other tests.
    """
    connection = duckdb.connect(config={"allow_unsigned_extensions": True, "threads": 1, **config})
    load_extensions(connection)
    return connection
