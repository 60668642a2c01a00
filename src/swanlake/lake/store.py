"""One catalog's metadata, whichever database keeps it: how to read it, lock it and write it.

Everything that differs between PostgreSQL and SQLite is behind this interface; the commit itself is
written once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Executable, Row
from sqlalchemy.exc import SQLAlchemyError

from swanlake.errors import SwanLakeError
from swanlake.lake.tables import CatalogTables


class Trouble(Enum):
    """What an error of the database means for a commit."""

    #: Another writer was in the way; the same commit may succeed now.
    TRANSIENT = auto()
    #: The lock was not free before the deadline.
    LOCK_TIMEOUT = auto()
    #: The connection is gone, and with it whatever was not committed.
    LOST = auto()
    #: A table of ours or of DuckLake is not there: no catalog, or one without a fence.
    MISSING_TABLE = auto()
    #: Anything else: no use in trying again.
    FATAL = auto()


@dataclass(frozen=True)
class Write:
    """One statement of a commit, with its rows if it takes several."""

    statement: Executable
    rows: Sequence[Mapping[str, Any]] | None = None


class LockedTransaction:
    """A transaction that holds the catalog's commit lock. What is not committed is undone."""

    def __init__(self, store: CatalogStore, connection: Connection) -> None:
        self._store = store
        self.connection = connection
        self.locked_at = time.monotonic()

    def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """All rows of a query, as of now: nobody else can commit meanwhile."""
        return self.connection.execute(statement).all()

    def commit(self, writes: Sequence[Write]) -> None:
        """Sends every statement and the COMMIT together, and waits once."""
        with self._store.batch(self.connection):
            for write in writes:
                self.connection.execute(write.statement, write.rows)
            self._store.reached("written")
            self.connection.commit()
        self._store.reached("committed")


class CatalogStore(ABC):
    """The metadata of one catalog."""

    #: Every error the database's drivers raise.
    errors: tuple[type[Exception], ...] = (SQLAlchemyError,)

    def __init__(self, name: str, tables: CatalogTables, engine: Engine) -> None:
        self.name = name
        self.tables = tables
        self.engine = engine
        #: Told of every step of a commit; fault tests stop the process here.
        self.reached: Callable[[str], None] = _go_on

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection for reading what is committed, without any lock."""
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def locked(self, deadline: float) -> Iterator[LockedTransaction]:
        """The commit lock, for the block; ``deadline`` is on the monotonic clock."""
        with self.engine.connect() as connection:
            try:
                self.lock(connection, max(0.001, deadline - time.monotonic()))
                self.reached("locked")
                yield LockedTransaction(self, connection)
            except self.errors as error:
                # The driver's connection may be in a state that SQLAlchemy does not know of.
                connection.invalidate(error)
                raise

    @abstractmethod
    def lock(self, connection: Connection, timeout: float) -> None:
        """Begins a transaction and takes the commit lock as its first act."""

    @contextmanager
    def batch(self, connection: Connection) -> Iterator[None]:
        """Statements of the block need not wait for one another's answers."""
        yield

    @abstractmethod
    def allocate_snapshot_id(self) -> Executable:
        """The query that gives the next snapshot id; only to be asked under the lock."""

    @abstractmethod
    def now(self, not_before: datetime) -> ColumnElement[datetime]:
        """The time of a snapshot, never earlier than that of the one before it."""

    @abstractmethod
    def trouble(self, error: Exception) -> Trouble:
        """What an error of the drivers means."""

    @abstractmethod
    def fence_statements(self) -> Sequence[Executable]:
        """What installs the fence on the tables of the catalog; repeating it does no harm."""

    @abstractmethod
    def has_fence(self, connection: Connection) -> bool:
        """True if every piece of the fence is in place."""


def _go_on(step: str) -> None:
    pass


def one_line(error: BaseException) -> str:
    """What a driver says, without its statement, parameters and line breaks."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, SwanLakeError):
        return cause.message
    return " ".join(str(cause).split()) or type(cause).__name__
