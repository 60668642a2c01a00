"""How an engine attaches a catalog: the bounds of its waits."""

from __future__ import annotations

from typing import Any, cast

import duckdb
import pytest

from swanlake.lake.metastore.location import LakeLocation


class Statements:
    """A connection that records what it is to execute."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def execute(self, sql: str) -> Any:
        self.executed.append(sql)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("dbname=lake", "-c lock_timeout=30s"),
        ("dbname=lake options='-c work_mem=8MB'", "-c lock_timeout=30s -c work_mem=8MB"),
        ("dbname=lake options='-c lock_timeout=1s'", "-c lock_timeout=30s -c lock_timeout=1s"),
    ],
)
def test_engine_waits_for_locks_in_postgres_for_30_seconds(url: str, options: str) -> None:
    """Options of the URL are kept; the last value of an option applies."""
    location = LakeLocation("lake", metabase_url=url, metadata_schema="lake_lake")
    statements = Statements()
    location.attach(cast("duckdb.DuckDBPyConnection", statements))
    [attach] = [sql for sql in statements.executed if sql.startswith("ATTACH")]
    assert f"options=''{options}''" in attach
    assert "connect_timeout=''10''" in attach
