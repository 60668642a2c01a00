"""Statements and sessions as values that callers may read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from swanlake.access.identity import Role

#: The outcome of a statement that did not fail.
OK = "ok"


@dataclass(frozen=True)
class StatementOrigin:
    """A statement and its caller."""

    query_id: str
    session_id: str
    user: str
    role: Role
    #: ``host:port`` of the client.
    address: str
    #: Cut off at ``MAX_SQL_CHARACTERS``.
    sql: str
    #: DuckDB's name for the type of the statement, such as ``SELECT``; empty before it is parsed.
    kind: str
    #: Seconds since 1970. Few records are shown, so ``started_at`` is computed when it is read.
    started: float
    #: Until now, or until the server was done with the statement.
    seconds: float
    #: The rows that it returned or changed, so far.
    rows: int

    @property
    def started_at(self) -> datetime:
        """When the statement arrived."""
        return datetime.fromtimestamp(self.started, UTC)


@dataclass(frozen=True)
class RunningStatement(StatementOrigin):
    """A statement that runs, or whose result was not read to its end."""

    #: ``executing``, ``waiting for its session``, ``waiting for the commit lock of …``,
    #: ``delivering`` or ``queued result``.
    state: str
    #: From 0 to 1, as DuckDB estimates it; None if it does not.
    progress: float | None


@dataclass(frozen=True)
class FinishedStatement(StatementOrigin):
    """A statement that has ended."""

    #: ``ok``, or the identifier of its error.
    outcome: str
    #: The message of its error.
    error: str | None
    #: True if it may have changed more than the session.
    may_change: bool
    #: The procedure that it called, with its arguments, unless that only reads.
    action: str | None = None

    @property
    def ended_at(self) -> datetime:
        """When the server was done with the statement."""
        return datetime.fromtimestamp(self.started + self.seconds, UTC)

    @property
    def is_failed(self) -> bool:
        """True if the statement ended with an error."""
        return self.outcome != OK


@dataclass(frozen=True)
class StatementGroup:
    """The statements of one user that differ only in values."""

    #: Identifies the group.
    fingerprint: str
    user: str
    kind: str
    #: One of the statements, with ``?`` for each literal.
    text: str
    count: int
    errors: int
    rows: int
    total_seconds: float
    mean_seconds: float
    #: Estimates; they are at most a tenth too high.
    p50_seconds: float
    p99_seconds: float
    max_seconds: float
    last_seen_at: datetime


@dataclass(frozen=True)
class SessionInfo:
    """A session that is open."""

    session_id: str
    user: str
    role: Role
    #: ``host:port`` of the client that called last.
    address: str
    opened_at: datetime
    idle_seconds: float
    #: ``executing``, ``idle`` or ``idle in transaction``.
    state: str
    in_transaction: bool
    #: The statements so far.
    statements: int
    #: The current catalog; None if it is not known without a query.
    catalog: str | None


@dataclass(frozen=True)
class Cancelled:
    """The outcome of stopping a statement."""

    query_id: str
    user: str
    #: True if DuckDB was interrupted; otherwise it waited, or only its result was left.
    was_running: bool
