"""Sessions of one or more servers that contend for a catalog, and what others see of it then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.flight as flight
from psycopg.conninfo import make_conninfo

from swanlake.lake.lake import Lake
from swanlake.lake.postgres import _LOCK_CLASS
from swanlake.lake.postgres_turns import TURN_CLASS
from swanlake.protocol import Actions, messages
from tests.ducks import stock_duckdb
from tests.faults.crew import Crew, History, Place, history
from tests.flight import FlightSql, eventually
from tests.server_process import ServerProcess

Row = tuple[Any, ...]
#: What a call may fail with, on the way or by the server.
CALL_ERRORS = (flight.FlightError, pa.ArrowException)
PATIENCE_SECONDS = 60.0
#: A number that nobody lives to see.
ENDLESS = "SELECT count(*) FROM range(100000000000) r(x) WHERE x % 7 = 3"


class Session:
    """A session with a name, in one catalog."""

    def __init__(self, url: str, name: str = "", catalog: str = "swanlake") -> None:
        self.name = name or f"s_{uuid4().hex[:8]}"
        self.flight = FlightSql(url, x_swanlake_session_id=self.name)
        self(f"USE {catalog}")

    def __call__(self, sql: str, **headers: str) -> list[Row]:
        """The rows of a statement."""
        return [tuple(row.values()) for row in self.flight.query(sql, None, **headers).to_pylist()]

    def commit(self) -> str | None:
        """Ends the transaction: None, or the conflict for which nothing of it was committed."""
        return self.conflict("COMMIT")

    def conflict(self, sql: str) -> str | None:
        """Runs a statement: None, or the conflict with which it failed."""
        try:
            self(sql)
        except flight.FlightUnavailableError as refused:
            message = str(refused)
            assert message.startswith("COMMIT_CONFLICT: "), message
            return message
        return None

    def cancel(self, query_id: str) -> None:
        """Has a statement of anybody stopped."""
        request = messages.ActionCancelByQueryIdRequest(query_id=query_id)
        refused = messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
        assert self.flight.ask(Actions.CANCEL_BY_QUERY_ID, request).result != refused

    def start(self, sql: str, **headers: str) -> Running:
        """Runs a statement beside others."""
        return Running(lambda: self(sql, **headers))

    def close(self) -> None:
        self.flight.close()


class Running:
    """Something in a thread of its own, with what came of it."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.error: Exception | None = None
        self.result: Any = None
        self._act = act
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._act()
        except Exception as error:  # noqa: BLE001 - who waits for it says what was to be expected
            self.error = error

    def join(self, seconds: float = PATIENCE_SECONDS) -> Self:
        """Waits for its end."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it hangs"
        return self

    def done(self) -> Any:
        """Waits for its end, which must be a good one."""
        if self.join().error is not None:
            raise self.error  # type: ignore[misc]
        return self.result


class House:
    """One lake, servers on it, and somebody who looks at its metadata without DuckDB."""

    def __init__(self, metabase: str | Path, home: Path, keeps: ExitStack) -> None:
        self.metabase = metabase
        self.home = home
        self.servers: list[ServerProcess] = []
        self._keeps = keeps
        self._lake = keeps.enter_context(Lake.open(metabase, self.data))
        self._crew = keeps.enter_context(Crew(1))
        self._duck = keeps.enter_context(stock_duckdb())
        self._numbers = iter(range(1_000_000))

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def on_postgres(self) -> bool:
        return isinstance(self.metabase, str)

    def add_server(self, *flags: str, **environment: str) -> ServerProcess:
        """One more server on the same lake."""
        home = self.home / f"server{len(self.servers)}"
        environment["SWANLAKE_DATA_PATH"] = str(self.data)
        environment["SWANLAKE_DUCKDB_THREADS"] = "1"  # what one session does leaves room for others
        if isinstance(self.metabase, str):
            environment["SWANLAKE_METABASE_URL"] = self.metabase
        else:
            self.metabase.mkdir(parents=True, exist_ok=True)
            home.mkdir()
            (home / "catalogs").symlink_to(self.metabase)
        server = ServerProcess(home, *flags, **environment)
        self._keeps.callback(server.kill)
        self.servers.append(server.start())
        return server

    def session(self, catalog: str = "swanlake", server: int = 0, name: str = "") -> Session:
        session = Session(self.servers[server].url, name, catalog)
        self._keeps.callback(session.close)
        return session

    def new_catalog(self, *statements: str) -> Rivalry:
        """A catalog for one test, in which these statements were run."""
        name = f"c{next(self._numbers)}_{uuid4().hex[:6]}"
        self.session()(f"CALL swanlake_create_catalog('{name}')")
        rivalry = Rivalry(self, name)
        first = rivalry.session()
        for statement in statements:
            first(statement)
        return rivalry

    def attach_statement(self, catalog: str) -> str:
        """How stock DuckDB attaches a catalog."""
        return self._lake.location(self._lake.catalog(catalog).info).statement

    @contextmanager
    def stock(self, catalog: str) -> Iterator[Callable[[str], list[Row]]]:
        """Stock DuckDB, which may only read this catalog."""
        attach = self.attach_statement(catalog)
        self._duck.execute(f"{attach.removesuffix(');')}, READ_ONLY); USE {catalog}")
        try:
            yield lambda sql: self._duck.execute(sql).fetchall()
        finally:
            self._duck.execute(f"USE memory; DETACH {catalog}")

    def history(self, catalog: str) -> History:
        return self._crew.ask(history, Place(self.metabase, str(self.data)), catalog)

    def writers(self, server: int = 0) -> list[dict[str, Any]]:
        """Who has the catalogs of a server, and who waits for them."""
        with_status = FlightSql(self.servers[server].url)
        try:
            found: list[dict[str, Any]] = with_status.status()["writers"]
            return found
        finally:
            with_status.close()

    def advisory_locks(self) -> int:
        """How many locks of catalogs somebody holds or waits for in the metabase."""
        assert isinstance(self.metabase, str)
        with psycopg.connect(self.metabase) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
                "WHERE locktype = 'advisory' AND datname = current_database() AND objid = ANY(%s)",
                [[TURN_CLASS, _LOCK_CLASS]],
            ).fetchone()
        assert row is not None
        return int(row[0])


class Rivalry:
    """A catalog for which sessions contend. Whatever they do, its past never changes."""

    def __init__(self, house: House, name: str) -> None:
        self.house = house
        self.name = name
        self._seen: dict[tuple[str, int], list[Row] | None] = {}

    def session(self, server: int = 0, name: str = "") -> Session:
        return self.house.session(self.name, server, name and self._full_name(name))

    def sessions(self, number: int) -> list[Session]:
        return [self.session() for _ in range(number)]

    def close_session(self, name: str, server: int = 0) -> None:
        """Closes a session from outside, whatever it does."""
        url = self.house.servers[server].url
        FlightSql(url, x_swanlake_session_id=self._full_name(name)).close_session()

    def _full_name(self, name: str) -> str:
        return f"{name}_{self.name}"

    def wait_for_line(self, *names: str, server: int = 0) -> None:
        """Returns when exactly these sessions have the catalog and wait for it, in this order."""
        eventually(lambda: self.line(server) == list(names))

    def line(self, server: int = 0) -> list[str]:
        """The sessions at the catalog's gate, the one that has it first."""
        for gate in self.house.writers(server):
            if gate["catalog"] == self.name:
                writers = (gate["holder"], *gate["waiters"])
                return [writer["name"].removesuffix(f"_{self.name}") for writer in writers]
        return []

    def assert_sound(self, *tables: str) -> None:
        """Stock DuckDB and sessions see the same rows, at all times, and the same as before."""
        past = self.house.history(self.name)
        past.assert_sound(times=False)
        session = self.session()
        with self.house.stock(self.name) as stock:
            for table in tables:
                for snapshot, *_ in past.snapshots:
                    seen = _rows_at(session, table, snapshot)
                    assert seen == _rows_at(stock, table, snapshot)
                    assert self._seen.setdefault((table, snapshot), seen) == seen


def _rows_at(ask: Callable[[str], list[Row]], table: str, snapshot: int) -> list[Row] | None:
    """The rows of a table at a snapshot; None if it was not there then."""
    at = f"{table} AT (VERSION => {snapshot})"
    try:
        rows = sorted(ask(f"FROM {at}"))
    except (pa.ArrowKeyError, duckdb.CatalogException):
        return None
    assert ask(f"SELECT count(*) FROM {at}") == [(len(rows),)]
    return rows


@contextmanager
def open_house(kind: str, postgres: Callable[[], str], folder: Path) -> Iterator[House]:
    """A lake on SQLite, or in a database of its own on PostgreSQL, without a server yet."""
    with ExitStack() as database:
        metabase: str | Path = folder / "catalogs"
        if kind == "postgres":
            name = f"test_{uuid4().hex}"
            admin = database.enter_context(psycopg.connect(postgres(), autocommit=True))
            admin.execute(f"CREATE DATABASE {name}")
            database.callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
            metabase = make_conninfo(postgres(), dbname=name)
        with ExitStack() as keeps:
            yield House(metabase, folder, keeps)
