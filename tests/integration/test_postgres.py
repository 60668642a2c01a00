"""A lake whose metadata is in PostgreSQL."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import psycopg
import pyarrow.flight as flight
import pytest

from swanlake.access.policy import METADATA_PREFIX
from swanlake.engine.instance import Engine, EngineSpec
from swanlake.lake.lake import Lake
from tests.faults.postgres_proxy import PostgresProxy
from tests.flight import FlightSql
from tests.server_process import ServerProcess

PASSWORD = "hunter2-not-for-anyone's-eyes"


@pytest.fixture
def metabase(postgres: str) -> Iterator[str]:
    """The URL of a new database, for a role with a password."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS lake")
        admin.execute("DROP ROLE IF EXISTS lake_owner")
        literal = PASSWORD.replace("'", "''")
        admin.execute(f"CREATE ROLE lake_owner LOGIN PASSWORD '{literal}'".encode())
        admin.execute("CREATE DATABASE lake OWNER lake_owner")
        _require_password(admin)
        info = admin.info
        yield psycopg.conninfo.make_conninfo(
            host=info.host, port=info.port, dbname="lake", user="lake_owner", password=PASSWORD
        )


def _require_password(admin: psycopg.Connection[tuple[str]]) -> None:
    """PostgreSQL in a test trusts all roles; the owner of the lake must give its password."""
    row = admin.execute("SHOW hba_file").fetchone()
    assert row is not None
    file, rule = Path(row[0]), "local all lake_owner scram-sha-256\n"
    rules = file.read_text()
    if rule not in rules:
        file.write_text(rule + rules)
        admin.execute("SELECT pg_reload_conf()")


def test_metadata_in_postgres_survives_a_restart(
    metabase: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
) -> None:
    first = start_server(SWANLAKE_METABASE_URL=metabase)
    flight_sql(first.url).query("CREATE TABLE durable AS SELECT 1 AS i")
    first.kill()
    second = start_server(SWANLAKE_METABASE_URL=metabase, home=first.home)
    assert flight_sql(second.url).query("FROM durable")["i"].to_pylist() == [1]
    with psycopg.connect(metabase) as connection:
        tables = connection.execute(
            "SELECT table_name FROM lake_swanlake.ducklake_table"
        ).fetchall()
    assert tables == [("durable",)]
    assert not list(first.home.glob("catalogs/*"))


def test_two_servers_share_one_lake(
    metabase: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
    tmp_path: object,
) -> None:
    data = f"{tmp_path}/data"
    servers = [
        start_server(SWANLAKE_METABASE_URL=metabase, SWANLAKE_DATA_PATH=data) for _ in range(2)
    ]
    first, second = (flight_sql(server.url) for server in servers)
    first.query("CREATE TABLE shared AS SELECT 1 AS i")
    second.query("INSERT INTO shared VALUES (2)")
    assert first.query("SELECT i FROM shared ORDER BY i")["i"].to_pylist() == [1, 2]


def test_password_is_neither_queryable_nor_logged(
    metabase: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
) -> None:
    server = start_server("--log-level", "debug", SWANLAKE_METABASE_URL=metabase)
    connection = flight_sql(server.url)
    for sql in (
        "FROM duckdb_databases()",
        "FROM duckdb_secrets()",
        "FROM duckdb_settings()",
        "FROM ducklake_settings('swanlake')",
        "SHOW DATABASES",
    ):
        assert PASSWORD not in str(connection.query(sql).to_pylist())
    connection.query("CALL enable_logging('QueryLog')")
    connection.query("CALL swanlake_create_catalog('logged')")
    connection.query("FROM logged.snapshots()")  # attaches it
    logged = str(connection.query("SELECT message FROM duckdb_logs()").to_pylist())
    assert "CREATE OR REPLACE SECRET" in logged
    assert "hunter2" not in logged
    assert PASSWORD not in server.log_text


class PasswordCollector:
    """A PostgreSQL server that asks for a password in clear text."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as client:
                    if client.recv(4096)[4:8] == b"\x04\xd2\x16\x2f":  # asks for TLS
                        client.sendall(b"N")
                        client.recv(4096)
                    client.sendall(b"R" + struct.pack("!II", 8, 3))
                    self.received += client.recv(4096)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


def test_password_is_not_sent_to_another_host(
    metabase: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
) -> None:
    connection = flight_sql(start_server(SWANLAKE_METABASE_URL=metabase).url)
    paths = connection.query("SELECT path FROM duckdb_databases()")["path"].to_pylist()
    [passfile] = {
        match[0] for path in paths if (match := re.search("passfile='[^']*'", path or ""))
    }
    with closing(PasswordCollector()) as collector:
        host = f"host=127.0.0.1 port={collector.port} dbname=lake user=lake_owner"
        for address in (host, f"{host} {passfile}".replace("'", "''")):
            with pytest.raises(flight.FlightError, match="password"):
                connection.query(
                    f"ATTACH '{address}' AS evil (TYPE postgres, SECRET swanlake_metabase)"
                )
    assert b"hunter2" not in collector.received


def test_concurrent_writers_on_postgres_all_succeed(
    metabase: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
) -> None:
    server = start_server(SWANLAKE_METABASE_URL=metabase)
    flight_sql(server.url).query("CREATE TABLE writers (writer INTEGER, i INTEGER)")
    writers, each = 8, 5

    def write(writer: int) -> None:
        connection = flight_sql(server.url)
        for i in range(each):
            connection.query(f"INSERT INTO writers VALUES ({writer}, {i})")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    counted = flight_sql(server.url).query("SELECT count(DISTINCT (writer, i)) AS n FROM writers")
    assert counted["n"].to_pylist() == [writers * each]


def test_new_session_fails_while_postgres_is_unreachable(
    postgres_database: str,
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
) -> None:
    with TemporaryDirectory() as folder, PostgresProxy(postgres_database, Path(folder)) as proxy:
        server = start_server(SWANLAKE_METABASE_URL=proxy.url)
        flight_sql(server.url).query("CREATE TABLE durable AS SELECT 1 AS i")
    with pytest.raises(flight.FlightUnavailableError, match="CATALOG_UNREACHABLE"):
        flight_sql(server.url).query("SELECT 1")
    assert "Traceback" not in server.log_text
    assert server.is_alive


def test_attached_catalog_caches_its_own_metadata_only(
    postgres_database: str, tmp_path: Path
) -> None:
    with Lake.open(postgres_database, tmp_path / "data") as lake:
        first, second = (
            lake.location(lake.ensure_catalog(name).info) for name in ("swanlake", "second")
        )
        engine = Engine(EngineSpec(first, tmp_path / "tmp"))
        engine.attach(second)
        snapshots = f"FROM {METADATA_PREFIX}second.{{}}.ducklake_snapshot"
        with engine.connect() as connection:
            connection.execute(snapshots.format(second.metadata_schema))
            with pytest.raises(duckdb.CatalogException, match="does not exist"):
                connection.execute(snapshots.format(first.metadata_schema))
        engine.close()
