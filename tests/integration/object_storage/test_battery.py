"""Everything that writes or deletes files, on an object store: statements, Spark, maintenance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swanlake import FlightSQLClient
from tests.object_store import SECRET, S3Server
from tests.server_process import ServerProcess

pytestmark = pytest.mark.slow

PIPELINES = {
    "inline": {"SWANLAKE_PIPELINE": "inline"},
    # Its init SQL would fail in a worker, which has no database of that name.
    "spark": {
        "SWANLAKE_PIPELINE": "spark",
        "PYSPARK_PYTHON": sys.executable,
        "SWANLAKE_DUCKLAKE_INIT_SQL": "CREATE MACRO memory.main.twice(x) AS 2 * x; USE swanlake",
    },
}


@pytest.fixture(params=PIPELINES)
def client_on(
    request: pytest.FixtureRequest,
    metabase: str | Path,
    s3: S3Server,
    start_server: Callable[..., ServerProcess],
) -> Iterator[Callable[[str], FlightSQLClient]]:
    """Connects to a server with each pipeline and metabase, whose files are under a URL."""
    clients: list[FlightSQLClient] = []

    def connect(data: str) -> FlightSQLClient:
        environment = s3.environment(data, **PIPELINES[request.param])
        environment["DUCKLING_QUEUE_DLQ_TARGET"] = f"{data}-dead-letters"
        if isinstance(metabase, str):
            environment["SWANLAKE_METABASE_URL"] = metabase
        clients.append(FlightSQLClient(start_server(**environment).url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def rows(client: FlightSQLClient, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.query(sql).table.to_pylist()
    return found


def test_rows_survive_everything(client_on: Callable[[str], FlightSQLClient], s3: S3Server) -> None:
    data = f"{s3.new_bucket()}/lake"
    client = client_on(data)
    client.execute("CREATE TABLE t (i BIGINT, day DATE)")
    client.execute("ALTER TABLE t SET PARTITIONED BY (day)")
    for day in range(1, 5):
        client.execute(
            f"INSERT INTO t SELECT range, DATE '2026-01-0{day}' FROM range({day * 1000 - 1000}, "
            f"{day * 1000})"
        )
        client.execute(
            f"INSERT INTO duckling_queue.t SELECT range, DATE '2026-01-0{day}' FROM "
            f"range({day * 1000 + 9000}, {day * 1000 + 10_000})"
        )
        (flushed,) = rows(client, "CALL duckling_queue_flush()")
        assert (flushed["rows"], flushed["dead_letters"]) == (1000, 0)
    client.execute("DELETE FROM t WHERE i % 10 = 0")
    client.execute("UPDATE t SET i = -i WHERE i % 10 = 1")
    client.execute("MERGE INTO t USING (SELECT 2 AS i) AS s ON t.i = s.i WHEN MATCHED THEN DELETE")
    total = "SELECT count(*) AS n, sum(i) AS s FROM t"
    before = rows(client, total)
    client.query("CALL swanlake_fork_catalog('swanlake', 'copy')")
    client.query("CALL swanlake_compact('main.t')")
    assert rows(client, total) == before
    client.query("CALL swanlake_expire(keep_last := 1)")
    client.execute("INSERT INTO copy.main.t VALUES (1, NULL)")
    assert rows(client, "SELECT count(*) AS n FROM copy.main.t")[0]["n"] == before[0]["n"] + 1
    assert rows(client, "CALL swanlake_cleanup(older_than := '0s')")
    assert rows(client, "CALL swanlake_cleanup(older_than := '0s')") == []  # nothing was stuck
    assert rows(client, total) == before
    assert rows(client, "SELECT count(*) AS n FROM copy.main.t")[0]["n"] == before[0]["n"] + 1
    client.execute("CREATE TABLE gone (i BIGINT)")
    client.execute("INSERT INTO duckling_queue.gone SELECT range FROM range(100)")
    client.execute("DROP TABLE gone")
    client.query("CALL duckling_queue_flush()")
    (letter,) = rows(client, "CALL duckling_queue_dead_letters()")
    assert letter["rows"] == 100
    assert s3.path(letter["path"]).is_file()
    assert SECRET not in str(rows(client, "SELECT * FROM duckdb_secrets()"))
