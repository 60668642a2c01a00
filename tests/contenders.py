"""Deployments of one or more servers whose sessions contend for a catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Self
from uuid import uuid4

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.lake.lake import Lake
from swanlake.lake.metastore.advisory_locks import WRITER_LOCK_CLASS
from swanlake.lake.metastore.fence import COMMIT_LOCK_CLASS
from swanlake.protocol import Actions, messages
from tests.faults.workers import CatalogHistory, LakeAddress, WorkerPool, read_history
from tests.flight import FlightSql
from tests.postgres_server import new_database
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb
from tests.waiting import eventually

Row = tuple[Any, ...]
#: Errors of a call, raised by the transport or by the server.
CALL_ERRORS = (flight.FlightError, pa.ArrowException)
TIMEOUT_SECONDS = 240.0


class Session:
    """A named session in one catalog."""

    def __init__(self, url: str, name: str = "", catalog: str = "swanlake") -> None:
        self.name = name or f"s_{uuid4().hex[:8]}"
        self.flight = FlightSql(url, x_swanlake_session_id=self.name)
        self(f"USE {catalog}")

    def __call__(self, sql: str, **headers: str) -> list[Row]:
        """The rows of a statement."""
        return [tuple(row.values()) for row in self.flight.query(sql, None, **headers).to_pylist()]

    def commit(self) -> str | None:
        """Commits the transaction; returns the message of the conflict if it failed with one."""
        return self.conflict("COMMIT")

    def conflict(self, sql: str) -> str | None:
        """Runs a statement; returns the message of the conflict if it failed with one."""
        try:
            self(sql)
        except flight.FlightUnavailableError as refused:
            message = str(refused)
            assert message.startswith("COMMIT_CONFLICT: "), message
            return message
        return None

    def cancel(self, query_id: str) -> None:
        """Cancels a statement of any session."""
        request = messages.ActionCancelByQueryIdRequest(query_id=query_id)
        refused = messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
        assert self.flight.action_result(Actions.CANCEL_BY_QUERY_ID, request).result != refused

    def start(self, sql: str, **headers: str) -> BackgroundCall:
        """Runs a statement in the background."""
        return BackgroundCall(lambda: self(sql, **headers))

    def close(self) -> None:
        self.flight.close()


class BackgroundCall:
    """A call that runs in a thread, and its result or its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: Exception | None = None
        self.result: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001 - raised by get(), or examined by the test
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float = TIMEOUT_SECONDS) -> Self:
        """Waits until the call ends, successfully or not."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the call did not end within {seconds:g} s"
        return self

    def get(self) -> Any:
        """Waits for the call; returns its result or raises its error."""
        if self.join().error is not None:
            raise self.error  # type: ignore[misc]
        return self.result


class Deployment:
    """One lake with servers on it, and a process that reads its metadata without DuckDB."""

    def __init__(self, metabase: str | Path, home: Path, cleanup: ExitStack) -> None:
        self.metabase = metabase
        self.home = home
        self.servers: list[ServerProcess] = []
        self._cleanup = cleanup
        self._lake = cleanup.enter_context(Lake.open(metabase, self.data))
        self._workers = cleanup.enter_context(WorkerPool(1))
        self._duck = cleanup.enter_context(stock_duckdb())
        self._numbers = iter(range(1_000_000))

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def on_postgres(self) -> bool:
        return isinstance(self.metabase, str)

    def add_server(self, *flags: str, **environment: str) -> ServerProcess:
        """Starts another server on the same lake."""
        home = self.home / f"server{len(self.servers)}"
        environment["SWANLAKE_DATA_PATH"] = str(self.data)
        if isinstance(self.metabase, str):
            environment["SWANLAKE_METABASE_URL"] = self.metabase
        else:
            self.metabase.mkdir(parents=True, exist_ok=True)
            home.mkdir()
            (home / "catalogs").symlink_to(self.metabase)
        server = ServerProcess(home, *flags, **environment)
        self._cleanup.callback(server.kill)
        self.servers.append(server.start())
        return server

    def session(self, catalog: str = "swanlake", server: int = 0, name: str = "") -> Session:
        session = Session(self.servers[server].url, name, catalog)
        self._cleanup.callback(session.close)
        return session

    def new_catalog(self, *statements: str) -> ContendedCatalog:
        """Creates a catalog and runs these statements in it."""
        name = f"c{next(self._numbers)}_{uuid4().hex[:6]}"
        self.session()(f"CALL swanlake_create_catalog('{name}')")
        catalog = ContendedCatalog(self, name)
        session = catalog.session()
        for statement in statements:
            session(statement)
        return catalog

    def attach_statement(self, catalog: str) -> str:
        """The statement with which stock DuckDB attaches a catalog."""
        return self._lake.location(self._lake.catalog(catalog).info).statement

    @contextmanager
    def stock(self, catalog: str) -> Iterator[Callable[[str], list[Row]]]:
        """Queries a catalog in stock DuckDB, attached read-only."""
        attach = self.attach_statement(catalog)
        self._duck.execute(f"{attach.removesuffix(');')}, READ_ONLY); USE {catalog}")
        try:
            yield lambda sql: self._duck.execute(sql).fetchall()
        finally:
            self._duck.execute(f"USE memory; DETACH {catalog}")

    def history(self, catalog: str) -> CatalogHistory:
        return self._workers.call(read_history, LakeAddress(self.metabase, str(self.data)), catalog)

    def writers(self, server: int = 0) -> list[dict[str, Any]]:
        """Holders and waiters of a server's commit locks, as its status reports them."""
        connection = FlightSql(self.servers[server].url)
        try:
            writers: list[dict[str, Any]] = connection.status()["writers"]
            return writers
        finally:
            connection.close()

    def advisory_locks(self) -> int:
        """The number of catalog locks in PostgreSQL that are held or waited for."""
        assert isinstance(self.metabase, str)
        with psycopg.connect(self.metabase) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
                "WHERE locktype = 'advisory' AND datname = current_database() AND objid = ANY(%s)",
                [[WRITER_LOCK_CLASS, COMMIT_LOCK_CLASS]],
            ).fetchone()
        assert row is not None
        return int(row[0])


class ContendedCatalog:
    """A catalog for which sessions contend, and the history of which must never change."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        self.deployment = deployment
        self.name = name
        self._seen: dict[tuple[str, int], list[Row] | None] = {}

    def session(self, server: int = 0, name: str = "") -> Session:
        return self.deployment.session(self.name, server, name and self._full_name(name))

    def sessions(self, number: int) -> list[Session]:
        return [self.session() for _ in range(number)]

    def close_session(self, name: str, server: int = 0) -> None:
        """Closes a session from another connection."""
        url = self.deployment.servers[server].url
        FlightSql(url, x_swanlake_session_id=self._full_name(name)).close_session()

    def _full_name(self, name: str) -> str:
        return f"{name}_{self.name}"

    def wait_for_lock_queue(self, *names: str, server: int = 0) -> None:
        """Waits until exactly these sessions hold and wait for the lock, in this order."""
        eventually(lambda: self.lock_queue(server) == list(names))

    def lock_queue(self, server: int = 0) -> list[str]:
        """The sessions that hold and wait for the catalog's commit lock, the holder first."""
        for queue in self.deployment.writers(server):
            if queue["catalog"] == self.name:
                writers = (queue["holder"], *queue["waiters"])
                return [writer["name"].removesuffix(f"_{self.name}") for writer in writers]
        return []

    def assert_sound(self, *tables: str) -> None:
        """Checks that stock DuckDB and sessions read the same rows at every snapshot, as before."""
        history = self.deployment.history(self.name)
        history.assert_sound(times=False)
        session = self.session()
        with self.deployment.stock(self.name) as stock:
            for table in tables:
                for snapshot, *_ in history.snapshots:
                    seen = _rows_at(session, table, snapshot)
                    assert seen == _rows_at(stock, table, snapshot)
                    assert self._seen.setdefault((table, snapshot), seen) == seen


def _rows_at(query: Callable[[str], list[Row]], table: str, snapshot: int) -> list[Row] | None:
    """The rows of a table at a snapshot; None if the table did not exist."""
    at = f"{table} AT (VERSION => {snapshot})"
    try:
        rows = sorted(query(f"FROM {at}"))
    except (pa.ArrowKeyError, duckdb.CatalogException):
        return None
    assert query(f"SELECT count(*) FROM {at}") == [(len(rows),)]
    return rows


@contextmanager
def _open_deployment(kind: str, postgres: Callable[[], str], folder: Path) -> Iterator[Deployment]:
    """A lake on SQLite or in a new PostgreSQL database, without servers."""
    with ExitStack() as database:
        metabase: str | Path = folder / "catalogs"
        if kind == "postgres":
            metabase = database.enter_context(new_database(postgres()))
        with ExitStack() as cleanup:
            yield Deployment(metabase, folder, cleanup)


#: Runs a test on the ``deployment`` in PostgreSQL only.
postgres_only = pytest.mark.parametrize("deployment", ["postgres"], indirect=True)


def deployment_fixture(
    servers: int, *, scope: Literal["function", "module"] = "module", **environment: str
) -> Any:
    """Makes a fixture: a lake in each kind of metabase, with servers of these settings."""

    @pytest.fixture(scope=scope, params=["postgres", "sqlite"])
    def deployment(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Deployment]:
        folder = tmp_path_factory.mktemp("deployment")
        with _open_deployment(
            request.param, lambda: request.getfixturevalue("postgres"), folder
        ) as deployment:
            for _ in range(servers):
                deployment.add_server(**environment)
            yield deployment

    return deployment
