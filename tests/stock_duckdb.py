"""Stock DuckDB, as other programs use it with the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from swanlake.engine.database import load_extensions


def stock_duckdb(file: str | Path = ":memory:", **config: Any) -> duckdb.DuckDBPyConnection:
    """Stock DuckDB with the stock extensions, nothing attached.

    Extension signatures are not checked: that takes longer than most tests. One thread leaves the
    other cores to other tests.
    """
    options = {"allow_unsigned_extensions": True, "threads": 1, **config}
    connection = duckdb.connect(file, config=options)
    load_extensions(connection)
    return connection
