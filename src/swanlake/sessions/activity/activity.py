"""Lists and stops statements and sessions, as far as the caller may."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from swanlake.access.identity import Identity
from swanlake.errors import InvalidRequest, NotFound, QueryCancelled, SwanLakeError
from swanlake.sessions.activity.log import (
    Listener,
    StatementLog,
    clock_offset,
    cut_off,
    type_name,
)
from swanlake.sessions.activity.records import (
    Cancelled,
    FinishedStatement,
    RunningStatement,
    SessionInfo,
    StatementGroup,
)
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.run import Run

_LIMIT = 100


@dataclass(frozen=True)
class LiveRun:
    """A statement that runs, or whose result was not read to its end, and what it does now."""

    run: Run
    state: str


class LiveSessions(Protocol):
    """The open sessions of a server, and their statements."""

    def live_runs(self) -> Sequence[LiveRun]:
        """The statements that run, or whose result was not read to its end."""

    def session_infos(self) -> Sequence[SessionInfo]:
        """The open sessions."""

    def session_keys(self) -> Sequence[SessionKey]:
        """The keys of the open sessions."""

    def cancel(self, run: Run, reason: SwanLakeError) -> bool:
        """Stops a statement and drops its result; True if DuckDB was working for it."""

    def close(self, key: SessionKey, reason: str) -> bool:
        """Closes a session; False if there is none."""


class Activity:
    """What the server does: statements that run or have ended, and sessions.

    ``by`` is the caller. An admin sees and stops everything, others only what is theirs.
    """

    def __init__(self) -> None:
        self.log = StatementLog()
        self._live: LiveSessions | None = None

    def connect(self, live: LiveSessions) -> None:
        """Sets where running statements and sessions are; called once, at the start."""
        self._live = live

    def running(self, by: Identity) -> list[RunningStatement]:
        """The statements that run, or whose result was not read to its end; oldest first."""
        is_visible, now, offset = _visibility(by), time.monotonic(), clock_offset()
        live = [one for one in self._live_runs() if one.run.sql and is_visible(_user(one.run))]
        live.sort(key=lambda one: one.run.started)
        return [_running(one, now, offset) for one in live]

    def recent(self, by: Identity, limit: int = _LIMIT) -> list[FinishedStatement]:
        """The statements that ended last, newest first."""
        return self.log.recent(limit, _visibility(by))

    def errors(self, by: Identity, limit: int = _LIMIT) -> list[FinishedStatement]:
        """The statements that failed last, newest first."""
        return self.log.errors(limit, _visibility(by))

    def slow(self, by: Identity, limit: int = _LIMIT) -> list[StatementGroup]:
        """Groups of statements that differ only in values; first those that took the most time."""
        return self.log.slow(limit, _visibility(by))

    def sessions(self, by: Identity) -> list[SessionInfo]:
        """The open sessions, oldest first."""
        is_visible = _visibility(by)
        infos = self._live.session_infos() if self._live is not None else ()
        return sorted(
            (info for info in infos if is_visible(info.user)), key=lambda info: info.opened_at
        )

    def cancel(self, query_id: str, by: Identity) -> list[Cancelled]:
        """Stops the statements of a query id and drops their results; raises NotFound."""
        is_visible = _visibility(by)
        runs = [one.run for one in self._live_runs() if one.run.query_id == query_id]
        runs = [run for run in runs if is_visible(_user(run))]
        if not runs:
            raise NotFound(
                f"No statement with the query id {query_id} runs or has an unread result. "
                "swanlake_queries() lists those that you may cancel.",
                identifier="QUERY_NOT_FOUND",
            )
        return [self._cancel(run, by) for run in runs]

    def close_session(
        self, session_id: str, by: Identity, user: str | None = None
    ) -> list[Cancelled]:
        """Closes a session, and stops its statements; raises NotFound.

        Two users may have sessions of the same id: then an admin has to name the ``user``.
        """
        is_visible = _visibility(by)
        keys = [
            key
            for key in (self._live.session_keys() if self._live is not None else ())
            if key.id == session_id and is_visible(key.identity) and user in (None, key.identity)
        ]
        if not keys or self._live is None:
            raise NotFound(
                f"There is no session {session_id}. swanlake_sessions() lists those that you may "
                "close.",
                identifier="SESSION_NOT_FOUND",
            )
        if len(keys) > 1:
            raise InvalidRequest(f"Several users have a session {session_id}: name the user, too.")
        [key] = keys
        runs = [one.run for one in self._live_runs() if one.run.session == key]
        cancelled = [self._cancel(run, by) for run in runs]
        self._live.close(key, f"closed by {by.name}")
        return cancelled

    def add_listener(self, listener: Listener) -> None:
        """Registers a function that is called once with each statement that ends from now on.

        A thread of the activity calls it, a moment after the end. What it raises is logged.
        """
        self.log.add_listener(listener)

    def close(self) -> None:
        """Tells the listeners of the last statements."""
        self.log.close()

    def _live_runs(self) -> Sequence[LiveRun]:
        return self._live.live_runs() if self._live is not None else ()

    def _cancel(self, run: Run, by: Identity) -> Cancelled:
        assert self._live is not None
        is_own = by.name == _user(run)
        what = "on request" if is_own else f"by {by.name}"
        reason = QueryCancelled(f"The statement was cancelled {what}.")
        return Cancelled(run.query_id, _user(run), self._live.cancel(run, reason))


def _user(run: Run) -> str:
    return run.session.identity


def _visibility(by: Identity) -> Callable[[str], bool]:
    """Whether the caller may see the statements of a user."""
    return lambda user: by.is_admin or user == by.name


def _running(live: LiveRun, now: float, offset: float) -> RunningStatement:
    run = live.run
    return RunningStatement(
        query_id=run.query_id,
        session_id=run.session.id,
        user=_user(run),
        role=run.identity.role,
        address=run.address,
        sql=cut_off(run.sql),
        kind=type_name(run.statement),
        started=offset + run.started,
        seconds=now - run.started,
        rows=run.rows,
        state=live.state,
        progress=run.progress,
    )
