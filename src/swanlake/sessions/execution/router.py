"""Decides once, from the parsed statement alone, which executor runs it.

The order of the cases: a procedure of the server, an INSERT into the queue, a statement that reads
the queue, a write or a query of the lake that may need no extension, and the engine for the rest.
The executors of the native routes resolve names on the connection, and may fall back to the engine
as long as they have done nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckdb import StatementType

from swanlake.errors import Code, QueryError
from swanlake.queue.names import QUEUE
from swanlake.sessions.procedures import base, registry
from swanlake.sql.heads import ChangeHead, CopyHead, CreateHead, change_head, copy_head, create_head
from swanlake.sql.insert import InsertHead
from swanlake.sql.quoting import unquoted
from swanlake.sql.references import Reference, references
from swanlake.sql.statement import Kind, Statement
from swanlake.sql.tokens import Token

_MENTIONS_QUEUE = re.compile(QUEUE, re.IGNORECASE)
#: The words before the name of what a statement changes.
_BEFORE_TARGET = (
    "update into table truncate analyze vacuum exists view schema use on only copy".split()
)
_CHANGES = (
    StatementType.UPDATE,
    StatementType.DELETE,
    StatementType.MERGE_INTO,
    StatementType.DROP,
    StatementType.ALTER,
    StatementType.CREATE,
    StatementType.COPY,
    StatementType.SET,
    StatementType.ANALYZE,
    StatementType.VACUUM,
)

WriteHead = InsertHead | CreateHead | CopyHead | ChangeHead


@dataclass(frozen=True)
class RouteContext:
    """What the route of a statement depends on besides its text."""

    #: False turns the native routes off.
    native: bool = True
    in_transaction: bool = False
    #: True if the session has settings or temporary objects that other connections lack.
    has_local_state: bool = False
    #: True if the client sent rows with the statement.
    has_client_rows: bool = False
    #: False if the caller discards the rows of the statement.
    keep_rows: bool = True


@dataclass(frozen=True)
class Procedure:
    """``CALL`` of a procedure of the server."""

    procedure: base.Procedure


@dataclass(frozen=True)
class Enqueue:
    """An INSERT whose rows go into the queue."""

    head: InsertHead
    #: True if the INSERT also reads tables of the queue.
    reads_queue: bool = False


@dataclass(frozen=True)
class QueueRead:
    """A statement that reads rows still in the queue."""

    reads: tuple[Reference, ...]


@dataclass(frozen=True)
class NativeWrite:
    """A write to one table that may need no extension."""

    head: WriteHead


@dataclass(frozen=True)
class NativeRead:
    """A query that may find all its rows in the metadata."""


@dataclass(frozen=True)
class Engine:
    """Everything else, as DuckDB runs it."""


Route = Procedure | Enqueue | QueueRead | NativeWrite | NativeRead | Engine


def route(statement: Statement, context: RouteContext) -> Route:
    """The route of a statement; raises if it does with the queue what the queue cannot do."""
    procedure = registry.find_procedure(statement)
    if procedure is not None:
        return Procedure(procedure)
    if _MENTIONS_QUEUE.search(statement.text):
        queue_route = _queue_route(statement)
        if queue_route is not None:
            return queue_route
    if context.native and not context.in_transaction and not statement.is_expanded:
        head = write_head(statement)
        if head is not None:
            return NativeWrite(head)
        may_read = not (context.has_local_state or context.has_client_rows)
        if statement.type == StatementType.SELECT and may_read and context.keep_rows:
            return NativeRead()
    return Engine()


def enqueue_head(statement: Statement) -> InsertHead | None:
    """The head of an INSERT into the queue; None for every other statement."""
    if statement.type != StatementType.INSERT or not _MENTIONS_QUEUE.search(statement.text):
        return None
    head = statement.insert_head
    return head if head is not None and _is_queue_table(head.target) else None


def write_head(statement: Statement) -> WriteHead | None:
    """The head of a statement that does nothing but write to one table; None for all others."""
    if statement.type != StatementType.INSERT:
        return create_head(statement) or copy_head(statement) or change_head(statement)
    head = statement.insert_head
    if head is None or head.alternative is not None:
        return None
    if "conflict" in statement.text.lower() and statement.has_conflict_clause:
        return None
    return head


def refused(why: str) -> QueryError:
    """The error for what the queue cannot do."""
    return QueryError(f"{why}.", identifier="QUEUE_REFUSED", code=Code.INVALID_ARGUMENT)


def _queue_route(statement: Statement) -> Enqueue | QueueRead | None:
    """The route of a statement in which the queue's name occurs; None if only as a word."""
    head = enqueue_head(statement)
    if head is not None:
        return _enqueue_route(statement, head)
    if statement.type == StatementType.PREPARE:
        raise refused(
            "PREPARE cannot read the queue: its rows change until the statement is executed"
        )
    if statement.type == StatementType.EXPLAIN:
        explained = statement.insert_head
        if explained is not None and _is_queue_table(explained.target):
            raise refused("An INSERT into the queue has no plan to explain")
    _refuse_changes(statement)
    reads = tuple(references(statement.text, QUEUE))
    return QueueRead(reads) if reads else None


def _enqueue_route(statement: Statement, head: InsertHead) -> Enqueue:
    if head.alternative is not None:
        raise refused(f"INSERT OR {head.alternative} cannot go through the queue")
    if statement.kind is Kind.QUERY:
        raise refused("RETURNING cannot be used on the queue")
    start, end = statement.split_at(head.target_start, head.target_end)
    is_mentioned = _MENTIONS_QUEUE.search(start) or _MENTIONS_QUEUE.search(end)
    return Enqueue(head, bool(is_mentioned) and len(references(statement.text, QUEUE)) > 1)


def _refuse_changes(statement: Statement) -> None:
    if statement.attaches and QUEUE in statement.names:
        raise refused(f"No database can be called {QUEUE}, the name of the queue")
    if statement.type not in _CHANGES:
        return
    if statement.type == StatementType.CREATE and any(
        token.is_word("view", "macro", "function") for token in statement.tokens[:6]
    ):
        raise refused("A view or macro cannot read the queue: it would outlive its rows")
    if statement.type == StatementType.COPY and not statement.may_write:
        return
    padded = [None, None, *statement.tokens]
    if any(map(_is_target, padded[:-2], padded[1:-1], padded[2:])):
        raise refused(
            f"{statement.tokens[0].text.upper()} cannot be done on {QUEUE}: it takes INSERT "
            "and SELECT, and its tables are those of the lake. Do it on the table itself"
        )


def _is_target(second: Token | None, before: Token | None, token: Token | None) -> bool:
    """True for the name of the queue where a statement names what it changes.

    ``second`` and ``before`` are the two tokens before it.
    """
    if token is None or before is None or unquoted(token.text).lower() != QUEUE:
        return False
    if second is not None and second.is_word("as"):
        return False  # CREATE TABLE t AS TABLE …
    if before.is_word("from"):
        return second is not None and second.is_word("delete")
    return before.is_word(*_BEFORE_TARGET)


def _is_queue_table(name: tuple[str, ...]) -> bool:
    return len(name) > 1 and name[0].lower() == QUEUE
