"""Queries that many tests run."""

from __future__ import annotations

from typing import Any

#: Runs for minutes on any machine, and returns nothing before it ends.
ENDLESS_QUERY = "SELECT count(*) FROM range(1_000_000_000_000) r(x) WHERE x % 7 = 3"


def rows(cursor: Any, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    cursor.execute(sql, parameters)
    return list(cursor.fetchall())
