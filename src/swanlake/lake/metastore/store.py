"""One catalog's metadata: how to read, lock and write it in either database.

This interface hides what differs between PostgreSQL and SQLite; the commit is written once.
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

from sqlalchemy import ColumnElement, Connection, Engine, Executable, Row, delete
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import SQLAlchemyError

from swanlake.errors import SwanLakeError
from swanlake.lake.metastore.tables import CatalogTables


class ErrorKind(Enum):
    """What a database error means for a commit."""

    #: Another writer interfered; the same commit may succeed now.
    TRANSIENT = auto()
    #: The lock was not free before the deadline.
    LOCK_TIMEOUT = auto()
    #: The connection is gone, and with it all that was not committed.
    LOST = auto()
    #: A table of DuckLake or SwanLake is missing: no catalog, or one without a fence.
    MISSING_TABLE = auto()
    #: Anything else: a retry would fail too.
    FATAL = auto()


@dataclass(frozen=True)
class Write:
    """One statement of a commit, with its parameter rows if it is executed for several."""

    statement: Executable
    rows: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Query:
    """A query with its parameters."""

    statement: Executable
    parameters: Mapping[str, Any]
    #: False if columns are read by position: their names may be anything.
    has_names: bool = True


#: A prefetched query and its rows.
QueryResult = tuple[Query, Sequence[Any]]


class LockedTransaction:
    """A transaction that holds the catalog's commit lock; it is rolled back unless committed."""

    def __init__(
        self, store: CatalogStore, connection: Connection, prefetched: Sequence[QueryResult] = ()
    ) -> None:
        self.store = store
        self.tables = store.tables
        self._prefetched = prefetched
        self.connection = connection
        self.locked_at = time.monotonic()

    def run(self, query: Query) -> Sequence[Row[Any]]:
        """The rows of a query; they may have been prefetched with the lock."""
        for known, rows in self._prefetched:
            if known.statement is query.statement and known.parameters == query.parameters:
                return rows
        return self.connection.execute(query.statement, query.parameters).all()

    def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """All rows of a statement."""
        return self.connection.execute(statement).all()

    def write(self, writes: Sequence[Write], prefetch: Sequence[Query]) -> None:
        """Executes statements without committing, and prefetches queries behind them."""
        self._prefetched = self.store.send(self.connection, writes, prefetch)

    def commit(self, writes: Sequence[Write]) -> None:
        """Sends all statements and the COMMIT together: one round trip."""
        self.store.commit(self.connection, writes)
        self.store.reached("committed")


class CatalogStore(ABC):
    """The metadata of one catalog."""

    #: The errors that the database's driver raises.
    errors: tuple[type[Exception], ...] = (SQLAlchemyError,)

    def __init__(self, name: str, tables: CatalogTables, engine: Engine) -> None:
        self.name = name
        self.tables = tables
        self.engine = engine
        #: Called at every step of a commit; fault tests stop the process in it.
        self.reached: Callable[[str], None] = _ignore_step

    def connect(self) -> Connection:
        """A connection for reads, without any lock."""
        return self.engine.connect()

    def run_queries(
        self, connection: Connection, queries: Sequence[Query], *, is_first: bool, is_last: bool
    ) -> list[Sequence[Any]]:
        """The rows of each query; all calls from first to last see the same state, without a lock.

        By default the transaction is SQLAlchemy's own; in SQLite that sees one state of the file.
        """
        return [connection.execute(query.statement, query.parameters).all() for query in queries]

    @contextmanager
    def locked(
        self, deadline: float, prefetch: Sequence[Query] = (), *, holds_writer_lock: bool = False
    ) -> Iterator[LockedTransaction]:
        """Holds the commit lock for the block; ``deadline`` is on the monotonic clock.

        A caller that holds the writer lock must say so: taking it again would deadlock. Queries
        that are certain to run under the lock can be prefetched, to save round trips.
        """
        with self.usable_connection() as connection:
            timeout = max(0.001, deadline - time.monotonic())
            prefetched = self.lock(
                connection, timeout, prefetch, holds_writer_lock=holds_writer_lock
            )
            transaction = LockedTransaction(self, connection, prefetched)
            self.reached("locked")
            yield transaction

    @contextmanager
    def usable_connection(self) -> Iterator[Connection]:
        """A connection for the block; after an error it leaves the pool."""
        with self.engine.connect() as connection:
            try:
                yield connection
            except self.errors as error:
                # The driver's connection may be in a state that SQLAlchemy does not know of.
                connection.invalidate(error)
                if self.classify(error) is ErrorKind.LOST:
                    self.engine.dispose()  # the idle ones were lost with it
                raise

    @abstractmethod
    def lock(
        self,
        connection: Connection,
        timeout: float,
        prefetch: Sequence[Query],
        *,
        holds_writer_lock: bool,
    ) -> Sequence[QueryResult]:
        """Begins a transaction whose first statement takes the commit lock, then prefetches.

        It may leave out queries; those run later, one by one.
        """

    def send(
        self, connection: Connection, writes: Sequence[Write], prefetch: Sequence[Query] = ()
    ) -> Sequence[QueryResult]:
        """Executes statements of a commit, then prefetches as ``lock`` does."""
        for write in writes:
            connection.execute(write.statement, write.rows)
        return ()

    def commit(self, connection: Connection, writes: Sequence[Write]) -> None:
        """Executes statements, and commits."""
        self.send(connection, writes)
        self.reached("written")
        connection.commit()

    @abstractmethod
    def set_lock_timeout(self, connection: Connection, seconds: int) -> None:
        """Bounds every wait for a database lock until the end of the transaction."""

    def delete_unlocked(self, table: SqlTable, condition: ColumnElement[bool]) -> Executable:
        """A DELETE that skips rows locked by other transactions.

        The caller holds the commit lock; waiting for a transaction that needs it would deadlock.
        """
        return delete(table).where(condition)

    @property
    @abstractmethod
    def next_snapshot_id(self) -> ColumnElement[int]:
        """The SQL that allocates the next snapshot id, for use under the commit lock.

        Always the same object: statements that contain it are cached.
        """

    #: The time of a snapshot, in a statement with the parameter ``earliest``.
    now: ColumnElement[datetime]

    @abstractmethod
    def earliest(self, head: datetime) -> datetime:
        """The value of ``earliest``: a snapshot is never older than the one before it."""

    @staticmethod
    @abstractmethod
    def classify(error: Exception) -> ErrorKind:
        """What a driver's error means."""

    @abstractmethod
    def fence_statements(self) -> Sequence[Executable]:
        """What installs the fence on the catalog's tables; safe to repeat."""

    @abstractmethod
    def has_fence(self, connection: Connection) -> bool:
        """True if every piece of the fence is in place."""


def _ignore_step(step: str) -> None:
    pass


def one_line(error: BaseException) -> str:
    """A driver's message without statement, parameters and line breaks."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, SwanLakeError):
        return cause.message
    return " ".join(str(cause).split()) or type(cause).__name__
