"""Stock DuckDB as one of those who run the tasks of a fan-out."""

from __future__ import annotations

import duckdb

from swanlake.bench.fanout import Row
from swanlake.bench.runner import Execute
from swanlake.errors import CommitConflict, QueryError


def executing(duck: duckdb.DuckDBPyConnection) -> Execute:
    """What runs statements in stock DuckDB, whose errors become ours."""

    def execute(sql: str) -> list[Row]:
        try:
            return duck.execute(sql).fetchall()
        except duckdb.Error as error:
            message = " ".join(str(error).split())
            if "Transaction conflict" in message:
                raise CommitConflict(message) from None
            raise QueryError(message) from None

    return execute
