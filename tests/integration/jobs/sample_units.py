"""Sample units; Spark's workers import them from here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa


@dataclass(frozen=True)
class Square:
    """Writes a file, and returns the square of a number."""

    number: int
    folder: Path

    def run(self, connection: duckdb.DuckDBPyConnection) -> int:
        (self.folder / str(self.number)).touch()
        found = connection.execute("SELECT ?::INTEGER ** 2", [self.number]).fetchone()
        assert found is not None
        return int(found[0])

    def undo(self, result: int) -> None:
        (self.folder / str(self.number)).unlink()


@dataclass(frozen=True)
class Refused:
    """Fails in DuckDB."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> int:
        connection.execute("SELECT CAST('swan' AS INTEGER)")
        return 0

    def undo(self, result: int) -> None:
        """Does nothing: no file was written."""


@dataclass(frozen=True)
class Surroundings:
    """Returns an environment variable of the worker, and the memory limit of its DuckDB."""

    variable: str

    def run(self, connection: duckdb.DuckDBPyConnection) -> tuple[str, str]:
        found = connection.execute("SELECT current_setting('memory_limit')").fetchone()
        assert found is not None
        return os.environ.get(self.variable, ""), str(found[0])

    def undo(self, result: tuple[str, str]) -> None:
        """Does nothing: no file was written."""


class Unspeakable(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@dataclass(frozen=True)
class Odd:
    """Fails with an unpicklable error."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> int:
        raise Unspeakable(1, 2)

    def undo(self, result: int) -> None:
        """Does nothing: no file was written."""


@dataclass(frozen=True)
class Suicidal:
    """Kills its worker the first time."""

    mark: Path

    def run(self, connection: duckdb.DuckDBPyConnection) -> int:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    def undo(self, result: int) -> None:
        """Does nothing: no file was written."""


@dataclass(frozen=True)
class Endless:
    """Reports its start and never ends."""

    mark: Path

    def run(self, connection: duckdb.DuckDBPyConnection) -> int:
        self.mark.touch()
        while self.mark.exists():
            time.sleep(0.05)
        return 0

    def undo(self, result: int) -> None:
        """Does nothing: no file was written."""

    def rows(self, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
        self.run(connection)
        yield from ()
