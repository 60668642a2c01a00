"""Concurrent creation of a SQLite file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from swanlake.lake.metastore.sqlite import sqlite_engine

_OPENERS = 8


def test_concurrent_switch_of_a_new_file_to_wal_succeeds(tmp_path: Path) -> None:
    """SQLite fails all but one with "database is locked", without waiting."""
    ready = Barrier(_OPENERS)

    def open_it(path: Path) -> str:
        engine = sqlite_engine(path, create=True)
        ready.wait(timeout=120)
        with engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        engine.dispose()
        return str(mode)

    with ThreadPoolExecutor(_OPENERS) as openers:
        for attempt in range(50):
            path = tmp_path / f"{attempt}.sqlite"
            assert set(openers.map(open_it, [path] * _OPENERS)) == {"wal"}
