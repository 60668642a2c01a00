"""All sessions of a server: found by key, opened on first use, closed when idle."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from swanlake._internal.tracing import begin, recording
from swanlake.access.identity import Identity
from swanlake.access.scope import Scope
from swanlake.config import Settings
from swanlake.errors import (
    NotFound,
    QueryCancelled,
    SessionLimitReached,
    SessionLost,
    SwanLakeError,
)
from swanlake.queue.batch_ids import BatchId
from swanlake.sessions.activity.activity import LiveRun
from swanlake.sessions.activity.log import clock_offset
from swanlake.sessions.activity.records import SessionInfo
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.results.pending import PendingResult
from swanlake.sessions.results.stream import Outcome, ResultStream
from swanlake.sessions.run import Run, Watchdog, time_limit
from swanlake.sessions.services import SessionServices
from swanlake.sessions.session import Session

log = logging.getLogger("swanlake.sessions")

#: An address is not reused by another connection sooner than this after the last call.
_RECENT_SECONDS = 10.0
#: Results that a session may leave unfetched; beyond it, the oldest are dropped.
_MAX_UNFETCHED = 256


@dataclass
class SessionMetrics:
    """Counts of sessions since the server started."""

    active: int = 0
    created: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    lifetime_seconds_total: float = 0.0
    lifetime_seconds_max: float = 0.0

    @property
    def lifetime_seconds_average(self) -> float:
        return self.lifetime_seconds_total / max(sum(self.closed.values()), 1)


class _Slot:
    """A key's entry in the registry, reserved before the session exists so that only one opens."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        #: The socket's inode of a session that is identified by its peer's address.
        self.connection: str | None = None


class SessionRegistry:
    """Finds, opens, counts and closes sessions, and holds results that were not fetched yet."""

    def __init__(
        self,
        settings: Settings,
        services: SessionServices,
        connected_peers: Callable[[], Mapping[str, str] | None] = lambda: None,
        find_connection: Callable[[str], str | None] | None = None,
    ) -> None:
        self._settings = settings
        self.services = services
        self._connected_peers = connected_peers
        self._find_connection = find_connection or (lambda id: (connected_peers() or {}).get(id))
        self._lock = threading.Lock()
        self._slots: dict[SessionKey, _Slot] = {}
        #: Results whose ticket was not redeemed yet, and those that are being delivered.
        self._results: dict[bytes, ResultStream | PendingResult] = {}
        self._delivering: dict[bytes, ResultStream | PendingResult] = {}
        self._calls: set[Run] = set()
        self._metrics = SessionMetrics()
        self.watchdog = Watchdog()
        services.activity.connect(self)
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(
            target=self._sweep_periodically, name="swanlake-sweep", daemon=True
        )
        self._sweeper.start()

    def get(
        self, key: SessionKey, identity: Identity, *, resume: bool = False, address: str = ""
    ) -> Session:
        """The session of a key, opened if it is new; with ``resume`` a new one is an error."""
        while True:
            slot = self._reserve_slot(key, identity, resume)
            with slot.lock:
                if not self._is_current(key, slot):
                    continue  # it was closed, or could not be made, while we waited for it
                if slot.session is None:
                    slot.session = self._open(key, slot, identity, address)
                if Scope.from_identity(slot.session.identity) == Scope.from_identity(identity):
                    return slot.session
            self.close(key, "the caller's role or grants changed")

    def _open(self, key: SessionKey, slot: _Slot, identity: Identity, address: str) -> Session:
        try:
            session = Session(key, self.services, identity)
        except BaseException:
            with self._lock:
                self._slots.pop(key, None)
            raise
        session.address = address
        if key.from_peer:
            slot.connection = self._find_connection(key.id)
        with self._lock:
            self._metrics.created += 1
        log.debug("session %s opened", key)
        self._audit(session, "opened")
        return session

    def _audit(self, session: Session, kind: str, outcome: str = "ok") -> None:
        self.services.audit.record(
            "session",
            user=session.key.identity,
            role=session.identity.role.value,
            address=session.address or None,
            session_id=session.key.id,
            kind=kind,
            outcome=outcome,
        )

    def _is_current(self, key: SessionKey, slot: _Slot) -> bool:
        """True if the slot is still the key's; its session then counts as in use."""
        if self._was_taken_over(key, slot):
            self.close(key, "disconnected")
            return False
        with self._lock:
            if self._slots.get(key) is not slot:
                return False
            if slot.session is not None:
                slot.session.touch()  # under the lock, so that no sweep closes it as idle
            return True

    def _was_taken_over(self, key: SessionKey, slot: _Slot) -> bool:
        """True if another connection now has the address that identifies an idle session."""
        session = slot.session
        if session is None or slot.connection is None or session.idle_seconds < _RECENT_SECONDS:
            return False
        peers = self._connected_peers()
        return peers is not None and peers.get(key.id) != slot.connection

    def find(self, key: SessionKey) -> Session | None:
        """The session of a key if there is one; never opens one."""
        with self._lock:
            slot = self._slots.get(key)
        return slot.session if slot else None

    def close(self, key: SessionKey, reason: str) -> bool:
        """Closes a session; False if there is none."""
        with self._lock:
            slot = self._slots.pop(key, None)
        if slot is None:
            return False
        with slot.lock:
            session = slot.session
        if session is not None:
            self._end(session, reason)
        return True

    def sweep(self) -> int:
        """Closes sessions that are idle or lost their client, and drops expired results."""
        self._drop_old_results()
        peers = self._connected_peers()
        with self._lock:
            known = [(key, slot.session) for key, slot in self._slots.items() if slot.session]
        closed = 0
        for key, session in known:
            with self._lock:
                reason = self._reason_to_close(key, session, peers)
                if reason is None or self._slots.pop(key, None) is None:
                    continue
            self._end(session, reason)
            closed += 1
        return closed

    def metrics(self) -> SessionMetrics:
        """A copy of the counters, with the number of open sessions."""
        with self._lock:
            closed = Counter(self._metrics.closed)
            return replace(self._metrics, active=len(self._slots), closed=closed)

    def start(self, run: Run, statement: Callable[[], Outcome], schema: Any) -> PendingResult:
        """Executes a query in the background; ``schema`` is that of its result."""
        pending = PendingResult(run, schema)

        def execute() -> None:
            with self.track(run):
                pending.execute(statement)

        self.services.background.run(execute)
        return pending

    def add_result(self, result: ResultStream | PendingResult) -> None:
        """Holds a result until its ticket is redeemed, or it expires."""
        result.run.has_reader = True
        with self._lock:
            self._results[result.handle] = result
            forgotten = self._find_forgotten(result.run.session)
            for old in forgotten:
                del self._results[old.handle]
        for old in forgotten:
            old.abandon(QueryCancelled("The session has too many results that were not fetched."))

    def _find_forgotten(self, session: SessionKey) -> list[ResultStream | PendingResult]:
        """The oldest unfetched results of a session beyond the limit: each may hold a file."""
        if len(self._results) <= _MAX_UNFETCHED:
            return []
        waiting = [one for one in self._results.values() if one.run.session == session]
        return waiting[:-_MAX_UNFETCHED]

    def take_result(self, handle: bytes, identity: str) -> ResultStream | PendingResult:
        """The result of a ticket; each can be taken once."""
        with self._lock:
            result = self._results.get(handle)
            if result is not None and result.run.session.identity == identity:
                self._delivering[handle] = self._results.pop(handle)
                result.run.keep_result()
                return result
        raise NotFound(
            "There is no such result: it was fetched before, expired, or its session was closed. "
            "Run the statement again.",
            identifier="RESULT_NOT_FOUND",
        )

    def release_result(self, result: ResultStream | PendingResult) -> None:
        """Closes a taken result: it was read to its end, or its reader is gone."""
        with self._lock:
            self._delivering.pop(result.handle, None)
        result.release_reader()
        _end(result)

    @property
    def results_waiting(self) -> int:
        """The number of results that were not fetched yet."""
        return len(self._results)

    @property
    def result_bytes(self) -> int:
        """The bytes in memory of results that were not read to their end yet."""
        with self._lock:
            streams = [*self._results.values(), *self._delivering.values()]
        return sum(stream.memory_bytes for stream in streams)

    def runs(self, identity: str) -> list[Run]:
        """An identity's statements that run, or whose result was not read to its end yet."""
        with self._lock:
            streams = [*self._results.values(), *self._delivering.values()]
        runs = {*(stream.run for stream in streams), *self.running()}
        return [run for run in runs if run.session.identity == identity]

    @contextmanager
    def run(
        self,
        session: Session,
        identity: Identity,
        *,
        address: str,
        query_id: str | None = None,
        timeout: float = 0.0,
        batch_id: Callable[[], BatchId | None] = lambda: None,
        traceparent: str = "",
        is_client_gone: Callable[[], bool],
    ) -> Iterator[Run]:
        """A statement of a session; it ends with the block, unless its result waits for a reader.

        ``timeout`` is what its caller requests; 0 is the operator's limit.
        """
        run = Run(
            self.watchdog,
            session.key,
            identity=identity,
            address=address,
            query_id=query_id,
            timeout=time_limit(timeout, self._settings.query_timeout_seconds),
            batch_id=batch_id,
            trace=begin(traceparent) if self.services.send_trace else None,
            on_end=self._end_run,
        )
        session.address = address
        with self.track(run), run.client_waiting(is_client_gone):
            try:
                yield run
            except BaseException as error:
                run.end(error)
                raise
            if not run.has_reader:
                run.end()

    def _end_run(self, run: Run) -> None:
        self.services.activity.log.add(run)
        if run.trace is not None and self.services.send_trace is not None:
            self.services.send_trace(run)

    @contextmanager
    def track(self, run: Run) -> Iterator[None]:
        """Lists a statement as running for the block."""
        with self._lock:
            self._calls.add(run)
        try:
            with recording(run.trace):
                yield
        finally:
            with self._lock:
                self._calls.discard(run)

    def running(self) -> set[Run]:
        """The statements that execute, deliver rows, or wait for their session."""
        with self._lock:
            return {*self._calls, *self.watchdog.running()}

    def cancel(self, run: Run, reason: SwanLakeError) -> bool:
        """Stops a statement and drops its result; True if DuckDB was working for it."""
        was_running = run.cancel(reason)
        with self._lock:
            waiting = self._results.pop(run.handle, None)
            delivering = self._delivering.get(run.handle)
        if waiting is not None:
            waiting.abandon(reason)
            _end(waiting)
        elif delivering is not None:  # its reader is told with its next batch
            delivering.drop_rows()
        return was_running

    def live_runs(self) -> list[LiveRun]:
        """The statements that run, or whose result was not read to its end."""
        with self._lock:
            waiting = {result.run for result in self._results.values()}
            delivering = {result.run for result in self._delivering.values()}
            sessions = {key: slot.session for key, slot in self._slots.items()}
        blocked = {
            waiter.name: queue.catalog
            for queue in self.services.lake.writers()
            for waiter in queue.waiters
        }
        executing = self.running() - delivering
        return [
            *(LiveRun(run, "delivering") for run in delivering),
            *(LiveRun(run, "queued result") for run in waiting - delivering - executing),
            *(
                LiveRun(run, _state(run, sessions.get(run.session), blocked))
                for run in executing
                if not run.has_ended
            ),
        ]

    def session_keys(self) -> list[SessionKey]:
        """The keys of the open sessions."""
        with self._lock:
            return list(self._slots)

    def session_infos(self) -> list[SessionInfo]:
        """The open sessions."""
        with self._lock:
            sessions = [slot.session for slot in self._slots.values() if slot.session]
        offset = clock_offset()
        return [
            SessionInfo(
                session_id=session.key.id,
                user=session.key.identity,
                role=session.identity.role,
                address=session.address,
                opened_at=datetime.fromtimestamp(offset + session.created, UTC),
                idle_seconds=session.idle_seconds,
                state=_session_state(session),
                in_transaction=session.transaction.open,
                statements=session.statements,
                catalog=session.known_catalog,
            )
            for session in sessions
        ]

    def stop(self) -> None:
        """Closes all sessions."""
        self._stopped.set()
        with self._lock:
            keys = list(self._slots)
        for key in keys:
            self.close(key, "shutdown")
        self.watchdog.close()

    def _reserve_slot(self, key: SessionKey, identity: Identity, resume: bool) -> _Slot:
        for sweeps_first in (False, True):
            if sweeps_first:
                self.sweep()
            with self._lock:
                slot = self._slots.get(key)
                if slot is not None:
                    return slot
                if resume:
                    raise SessionLost(
                        f"The session {key.id} does not exist here: the server restarted, or "
                        "closed it when it was idle. Open a new one."
                    )
                refusal = self._find_refusal(identity)
                if not refusal:
                    return self._slots.setdefault(key, _Slot())
        raise SessionLimitReached(refusal)

    def _find_refusal(self, identity: Identity) -> str:
        """Why the caller cannot have another session; empty if it can."""
        settings, opened = self._settings, len(self._slots)
        if identity.is_admin:
            if opened < settings.max_sessions:
                return ""
            return (
                f"All {settings.max_sessions} sessions are in use. Close one that is no longer "
                "needed, try again later, or raise max_sessions."
            )
        if opened >= max(settings.max_sessions - settings.reserved_sessions, 1):
            return (
                "All sessions are in use. Close one that is no longer needed, or try again later."
            )
        own = sum(key.identity == identity.name for key in self._slots)
        if own >= settings.max_sessions_per_identity:
            return f"{identity.name} has {own} sessions, and may have no more. Close one of them."
        return ""

    def _reason_to_close(
        self, key: SessionKey, session: Session, peers: Mapping[str, str] | None
    ) -> str | None:
        if session.running:
            return None
        if key.from_peer and peers is not None and key.id not in peers:
            return "disconnected"
        if session.idle_seconds > self._settings.session_timeout_seconds:
            return "idle"
        return None

    def _end(self, session: Session, reason: str) -> None:
        session.close(reason)
        with self._lock:
            orphans = [s for s in self._results.values() if s.run.session == session.key]
            for stream in orphans:
                del self._results[stream.handle]
            orphans += [s for s in self._delivering.values() if s.run.session == session.key]
            lifetime = time.monotonic() - session.created
            self._metrics.closed[reason] += 1
            self._metrics.lifetime_seconds_total += lifetime
            self._metrics.lifetime_seconds_max = max(self._metrics.lifetime_seconds_max, lifetime)
        for stream in orphans:
            stream.abandon(QueryCancelled(f"The session was closed ({reason})."))
            _end(stream)
        log.debug("session %s closed (%s) after %.1f s", session.key, reason, lifetime)
        self._audit(session, "closed", reason)

    def _drop_old_results(self) -> None:
        oldest = time.monotonic() - self._settings.result_ttl_seconds
        with self._lock:
            expired = [s for s in self._results.values() if s.created < oldest]
            for stream in expired:
                del self._results[stream.handle]
        for stream in expired:
            stream.abandon(QueryCancelled("The result expired: it was not fetched in time."))
            _end(stream)

    def leave_retired_engines(self) -> None:
        """Moves idle sessions from retired engines to the current one."""
        with self._lock:
            sessions = [slot.session for slot in self._slots.values() if slot.session]
        for session in sessions:
            session.leave_retired_engine()

    def _sweep_periodically(self) -> None:
        while not self._stopped.wait(self._settings.session_sweep_seconds):
            try:
                self.sweep()
            except Exception:
                log.exception("sweeping sessions failed; it is tried again at the next interval")


def _end(result: ResultStream | PendingResult) -> None:
    """The statement of a result ends: its rows were read, or never will be."""
    result.run.end(result.error or result.run.stop_reason)


def _state(run: Run, session: Session | None, blocked: Mapping[str, str]) -> str:
    """What a statement does that is not yet executed; ``blocked`` are sessions, and by what."""
    if session is not None and session.current not in (None, run):
        return "waiting for its session"
    if run.session.id in blocked:
        return f"waiting for the commit lock of {blocked[run.session.id]}"
    return "executing"


def _session_state(session: Session) -> str:
    if session.running:
        return "executing"
    return "idle in transaction" if session.transaction.open else "idle"
