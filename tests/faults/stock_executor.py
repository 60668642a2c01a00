"""Runs the tasks of a fan-out in stock DuckDB."""

from __future__ import annotations

import duckdb

from swanlake.bench.fanout import Row
from swanlake.bench.runner import Execute
from swanlake.errors import CommitConflict, QueryError


def stock_executor(duck: duckdb.DuckDBPyConnection) -> Execute:
    """Executes statements in stock DuckDB and translates its errors into SwanLake's."""

    def execute(sql: str) -> list[Row]:
        try:
            return duck.execute(sql).fetchall()
        except duckdb.Error as error:
            message = " ".join(str(error).split())
            if "Transaction conflict" in message:
                raise CommitConflict(message) from None
            raise QueryError(message) from None

    return execute
