"""Settings that limit memory, threads and connections take effect on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.pool import QueuePool

from swanlake.engine import instance
from swanlake.engine.instance import Engine, EngineSpec
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.postgres import postgres_engine
from swanlake.lake.model.types import ColumnSpec
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.waiting import eventually

RESULT_BUFFER_BYTES = 16_000_000


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("small") / "home",
        *("--duckdb-memory-limit", "120MiB", "--duckdb-threads", "3"),
        *("--result-buffer-bytes", str(RESULT_BUFFER_BYTES)),
    ) as server:
        yield server


def test_engine_has_its_memory_limit_and_its_threads(
    small_server: ServerProcess, flight_sql: Callable[..., FlightSql]
) -> None:
    connection = flight_sql(small_server.url)
    setting = (
        "SELECT current_setting('memory_limit') AS m, current_setting('threads')::INTEGER AS t"
    )
    assert connection.query(setting).to_pylist() == [{"m": "120.0 MiB", "t": 3}]
    with pytest.raises(pa.ArrowException, match="OUT_OF_MEMORY"):
        connection.query("SELECT list(range) FROM range(50_000_000)")
    assert connection.query("SELECT 1 AS i")["i"].to_pylist() == [1]


def spilled_bytes(server: ServerProcess) -> int:
    """The size of the results on disk, in files that were unlinked when they were opened."""
    directory = str(server.home / "tmp")
    found = 0
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            if descriptor.readlink().as_posix().startswith(directory):
                found += descriptor.stat().st_size
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def test_result_spills_beyond_its_buffer(
    small_server: ServerProcess, flight_sql: Callable[..., FlightSql]
) -> None:
    """The first result fits into the buffer, and the second would fit into the default one."""
    connection = flight_sql(small_server.url)
    for rows, least_on_disk in ((500_000, 0), (2_000_000, 48_000_000 - RESULT_BUFFER_BYTES)):
        info = connection.execute(f"SELECT x, x AS y, x AS z FROM range({rows}) r(x)")
        assert connection.query("SELECT 1").num_rows == 1  # the rest of the result is buffered
        assert least_on_disk <= spilled_bytes(small_server) <= 2 * least_on_disk
        assert connection.fetch(info).read_all().num_rows == rows
        eventually(lambda: spilled_bytes(small_server) == 0)


# ---- connections to PostgreSQL -------------------------------------------------------------------

#: As docs/operations.md promises: kept per catalog, and used for commits and metadata.
KEPT, OWN = 32, 25


@pytest.fixture
def engine_connections(postgres: str, postgres_database: str) -> Iterator[Callable[[], int]]:
    """Counts the connections of a server's engine to its database."""
    database = conninfo_to_dict(postgres_database)["dbname"]
    with psycopg.connect(postgres, autocommit=True) as admin:

        def count() -> int:
            row = admin.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = %s AND application_name <> 'swanlake'",
                [database],
            ).fetchone()
            assert row is not None
            return int(row[0])

        yield count


def test_engine_keeps_a_limited_number_of_connections_to_postgres(
    postgres_database: str,
    tmp_path: Path,
    engine_connections: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction has a connection of its own; the engine keeps some of them."""
    # So that connections are closed because of their number, not of their age.
    pool = instance._CONNECTION_POOL.replace("timeout_millis = 10000", "timeout_millis = 600000")
    monkeypatch.setattr(instance, "_CONNECTION_POOL", pool)
    with Lake.open(postgres_database, tmp_path / "data") as lake:
        catalog = lake.create_catalog("swanlake")
        catalog.create_table("main", "t", [ColumnSpec("i", "INTEGER")])
        engine = Engine(EngineSpec(lake.location(catalog.info), tmp_path / "tmp"))
        connections = [engine.connect() for _ in range(KEPT + 8)]
        for connection in connections:
            connection.execute("BEGIN; SELECT count(*) FROM t").fetchall()
        assert engine_connections() >= len(connections)
        for connection in connections:
            connection.execute("COMMIT")
        eventually(lambda: engine_connections() <= KEPT)
        assert engine_connections() > KEPT // 2
        for connection in connections:
            connection.close()
        engine.close()


def test_idle_catalog_gives_its_connections_back(
    postgres_database: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
    engine_connections: Callable[[], int],
) -> None:
    server = start_server(SWANLAKE_METABASE_URL=postgres_database)
    session = flight_sql(server.url)
    session.query("CREATE TABLE t AS SELECT 1 AS i")
    assert engine_connections() > 0
    eventually(lambda: engine_connections() == 0)
    assert session.query("FROM t").num_rows == 1


def test_commits_and_metadata_share_a_limited_number_of_connections(
    postgres_database: str,
) -> None:
    engine = postgres_engine(postgres_database)
    try:
        pool = engine.pool
        assert isinstance(pool, QueuePool)
        pool._timeout = 0.1
        with ExitStack() as held:
            for _ in range(OWN):
                held.enter_context(engine.connect())
            with pytest.raises(sqlalchemy.exc.TimeoutError):
                engine.connect()
        with engine.connect() as connection:
            assert connection.scalar(sqlalchemy.text("SELECT 1")) == 1
    finally:
        engine.dispose()
