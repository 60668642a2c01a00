"""Queries that many tests run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

#: Runs for minutes on any machine, and returns nothing before it ends.
ENDLESS_QUERY = "SELECT count(*) FROM range(1_000_000_000_000) r(x) WHERE x % 7 = 3"
#: Returns rows at once, and more than any test can read.
ENDLESS_ROWS = "FROM range(1_000_000_000_000)"


def waiting_query(pipe: Path) -> str:
    """Creates a named pipe; the query sums the numbers that are written to it, one a line.

    It runs until a writer has closed the pipe. Meanwhile it cannot be interrupted.
    """
    os.mkfifo(pipe)
    return f"SELECT sum(i) AS s FROM read_csv('{pipe}', columns = {{'i': 'INTEGER'}})"


def rows(cursor: Any, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    cursor.execute(sql, parameters)
    return list(cursor.fetchall())
