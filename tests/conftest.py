"""Fixtures for all tests: a real server process, databases and stock clients."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import duckdb
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy.dialects import registry

from swanlake.lake.lake import Lake
from tests import preloaded
from tests.covering import Choice, covering
from tests.flight import FlightSql
from tests.object_store import S3Server, gateway_program
from tests.postgres_server import PostgresServer, new_database
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

# An installed package registers its dialect with SQLAlchemy; a checkout may not be installed.
for dialect in ("swanlake", "swanlake.flightsql"):
    registry.register(dialect, "swanlake.client.sqlalchemy_dialect", "SwanLakeDialect")

# Most of the CPU time of a server's start are its imports.
preloaded.install()
ServerProcess.popen = staticmethod(preloaded.popen)

# Spark lives for seconds in tests. The optimizing compiler would take half of its CPU time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline: the time of an example depends on the machine, not on the code.
settings.register_profile("swanlake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("swanlake")


#: Files with long tests, the longest first. The last file to begin may run alone.
_LONGEST = (
    "tests/integration/writes/test_inserts",
    "tests/sqllogic",
    "tests/integration/jobs",
    "tests/integration/writes",
    "tests/differential",
    "tests/integration/lake/test_compaction",
    "tests/integration/lake/test_expiry",
    "tests/integration/test_native_reads",
    "tests/integration/test_catalog_cli",
    "tests/faults",
    "tests/integration/lake",
    "tests/integration/test_extension_damage",
    "tests/integration/test_races",
    "tests/integration/test_types",
    "tests/integration/test_locks",
)


def _begins(item: pytest.Item) -> int:
    """The place of a test's file in the order in which files begin."""
    places = (n for n, path in enumerate(_LONGEST) if item.nodeid.startswith(path))
    return next(places, len(_LONGEST))


def pytest_configure(config: pytest.Config) -> None:
    """The processes of a parallel run fork their servers from one template."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        preloaded.start()


def _choice(item: Any) -> Choice:
    """The parameters of a test, as texts: their values need not be hashable."""
    values = {name: repr(value) for name, value in item.callspec.params.items()}
    return Choice(values, item.callspec._idlist)


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins the longest files first; makes combinations that ``covering`` leaves out slow."""
    items.sort(key=_begins)
    products: dict[str, list[Any]] = {}
    for item in items:
        if (
            hasattr(item, "callspec")
            and item.get_closest_marker("covering")
            and not item.get_closest_marker("slow")
        ):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for product in products.values():
        marker = product[0].get_closest_marker("covering")
        assert marker is not None
        chosen = covering(list(map(_choice, product)), *marker.args)
        for number in set(range(len(product))).difference(chosen):
            product[number].add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keeps the collected tests out of every garbage collection: they live until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the settings of the developer's shell."""
    for name in [name for name in os.environ if name.startswith(("SWANLAKE_", "DUCKLING_QUEUE_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests without special settings; tests choose unique names."""
    with ServerProcess(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a real PostgreSQL that runs for the whole test session."""
    with PostgresServer() as server:
        yield server.url


@pytest.fixture
def postgres_database(postgres: str) -> Iterator[str]:
    """The URL of an empty database for one test."""
    with new_database(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server that runs for the whole test session."""
    with S3Server(gateway_program()) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def metabase(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """Where a lake keeps its catalogs: a directory of SQLite files, then a PostgreSQL URL."""
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
    """The shared server; the test fails if it does not survive."""
    yield shared_server
    assert shared_server.is_alive, shared_server.log_text


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers for one test: ``start_server("--max-sessions", "2")``."""
    started: list[ServerProcess] = []

    def start(*flags: str, home: Path | None = None, **environment: str) -> ServerProcess:
        number = len(started)
        server = ServerProcess(home or tmp_path / f"home{number}", *flags, **environment)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


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
    """Opens stock ADBC connections and closes all of them at the end."""

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
