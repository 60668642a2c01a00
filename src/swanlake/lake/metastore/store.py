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

from sqlalchemy import ColumnElement, Connection, Engine, Executable, Row, delete
from sqlalchemy import Table as SqlTable
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


@dataclass(frozen=True)
class Question:
    """A query that a commit will ask under the lock."""

    statement: Executable
    parameters: Mapping[str, Any]
    #: False if its columns may be called anything, and are known by their places.
    has_names: bool = True


#: A question that was asked ahead, and the rows that it was answered with.
Answer = tuple[Question, Sequence[Any]]


class LockedTransaction:
    """A transaction that holds the catalog's commit lock. What is not committed is undone."""

    def __init__(
        self, store: CatalogStore, connection: Connection, answers: Sequence[Answer] = ()
    ) -> None:
        self._store = store
        self._answers = answers
        self.connection = connection
        self.locked_at = time.monotonic()

    def ask(self, question: Question) -> Sequence[Row[Any]]:
        """The answer to a question; it may have come together with the lock."""
        for asked, rows in self._answers:
            if asked.statement is question.statement and asked.parameters == question.parameters:
                return rows
        return self.connection.execute(question.statement, question.parameters).all()

    def read(self, statement: Executable) -> Sequence[Row[Any]]:
        """All rows of a query, as of now: nobody else can commit meanwhile."""
        return self.connection.execute(statement).all()

    def write(self, writes: Sequence[Write], ahead: Sequence[Question]) -> None:
        """Sends statements, to be committed with what follows, and asks what that will ask."""
        self._answers = self._store.send(self.connection, writes, ahead)

    def commit(self, writes: Sequence[Write]) -> None:
        """Sends every statement and the COMMIT together, and waits once."""
        self._store.commit(self.connection, writes)
        self._store.reached("committed")


class Moment:
    """Questions that are all answered as of one moment, without any lock."""

    def __init__(self, store: CatalogStore, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._is_first = True

    def ask(self, *questions: Question, is_last: bool = False) -> list[Sequence[Any]]:
        """The answers to questions that do not depend on one another, in their order."""
        is_first, self._is_first = self._is_first, False
        return self._store.ask(self._connection, questions, is_first=is_first, is_last=is_last)


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
    def moment(self) -> Iterator[Moment]:
        """A connection for questions that are answered as of one moment."""
        with self._usable_connection() as connection:
            yield Moment(self, connection)

    def ask(
        self,
        connection: Connection,
        questions: Sequence[Question],
        *,
        is_first: bool,
        is_last: bool,
    ) -> list[Sequence[Any]]:
        """Answers questions in a transaction, which begins with the first and ends with the last.

        Here it is SQLAlchemy's own, which SQLite shows one state of the file.
        """
        return [connection.execute(one.statement, one.parameters).all() for one in questions]

    @contextmanager
    def locked(
        self, deadline: float, ahead: Sequence[Question] = (), *, has_turn: bool = False
    ) -> Iterator[LockedTransaction]:
        """The commit lock, for the block; ``deadline`` is on the monotonic clock.

        Who has the catalog's turn already does not wait for it. What is known to be asked under the
        lock can be asked ahead, to spare round trips.
        """
        with self._usable_connection() as connection:
            patience = max(0.001, deadline - time.monotonic())
            answers = self.lock(connection, patience, ahead, has_turn=has_turn)
            transaction = LockedTransaction(self, connection, answers)
            self.reached("locked")
            yield transaction

    @contextmanager
    def _usable_connection(self) -> Iterator[Connection]:
        """A connection for the block, which nobody gets after an error."""
        with self.engine.connect() as connection:
            try:
                yield connection
            except self.errors as error:
                # The driver's connection may be in a state that SQLAlchemy does not know of.
                connection.invalidate(error)
                if self.trouble(error) is Trouble.LOST:
                    self.engine.dispose()  # those that wait to be used were lost with it
                raise

    @abstractmethod
    def lock(
        self, connection: Connection, timeout: float, ahead: Sequence[Question], *, has_turn: bool
    ) -> Sequence[Answer]:
        """Begins a transaction, takes the commit lock as its first act, and then asks.

        Questions that it does not answer are asked later, one by one.
        """

    def send(
        self, connection: Connection, writes: Sequence[Write], ahead: Sequence[Question] = ()
    ) -> Sequence[Answer]:
        """Executes statements of a commit, and then asks; questions may be left as in ``lock``."""
        for write in writes:
            connection.execute(write.statement, write.rows)
        return ()

    def commit(self, connection: Connection, writes: Sequence[Write]) -> None:
        """Executes statements of a commit, and commits."""
        self.send(connection, writes)
        self.reached("written")
        connection.commit()

    @abstractmethod
    def wait_at_most(self, connection: Connection, seconds: int) -> None:
        """Bounds every wait for a lock of the database, from now to the end of the transaction."""

    def delete_unlocked(self, table: SqlTable, condition: ColumnElement[bool]) -> Executable:
        """What deletes rows, but leaves those that others are changing, without waiting for them.

        Who holds the commit lock here cannot wait for somebody who may come to need it.
        """
        return delete(table).where(condition)

    @property
    @abstractmethod
    def next_snapshot_id(self) -> ColumnElement[int]:
        """What allocates the next snapshot id; only to be asked under the lock.

        It is always the same object, as statements are built once and kept.
        """

    #: The time of a snapshot, in a statement that is given ``earliest``.
    now: ColumnElement[datetime]

    @abstractmethod
    def earliest(self, head: datetime) -> datetime:
        """What to give ``now``, so that it is not earlier than the snapshot before."""

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
