"""All sessions of a server: found by id, made on first use, closed when nobody needs them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from swanlake.config import Settings
from swanlake.errors import NotFound, QueryCancelled, SessionLimitReached, SessionLost
from swanlake.lake.gate import GateStatus
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.results import ResultStream
from swanlake.sessions.runs import Run, Watchdog
from swanlake.sessions.services import SessionServices
from swanlake.sessions.session import Session

log = logging.getLogger("swanlake.sessions")

#: An address is not given to another connection sooner than this after the last call.
_RECENT_SECONDS = 10.0


@dataclass
class SessionMetrics:
    """What has happened to sessions since the server started."""

    active: int = 0
    created: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    lifetime_seconds_total: float = 0.0
    lifetime_seconds_max: float = 0.0

    @property
    def lifetime_seconds_average(self) -> float:
        return self.lifetime_seconds_total / max(sum(self.closed.values()), 1)


class _Place:
    """A key's place in the registry, taken before its session exists so that only one is made."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        #: What the kernel calls the TCP connection of a session that is named after its address.
        self.connection: str | None = None


class SessionRegistry:
    """Finds, makes, counts and closes sessions, and keeps the results they have not delivered."""

    def __init__(
        self,
        settings: Settings,
        services: SessionServices,
        connected_peers: Callable[[], Mapping[str, str] | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._services = services
        self._connected_peers = connected_peers
        self._lock = threading.Lock()
        self._places: dict[SessionKey, _Place] = {}
        #: Results whose ticket was not redeemed yet, and those on their way to a client.
        self._results: dict[bytes, ResultStream] = {}
        self._delivering: dict[bytes, ResultStream] = {}
        self._calls: set[Run] = set()
        self._metrics = SessionMetrics()
        self.watchdog = Watchdog()
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(
            target=self._sweep_often, name="swanlake-sweep", daemon=True
        )
        self._sweeper.start()

    # ---- sessions ------------------------------------------------------------------------------

    def get(self, key: SessionKey, *, resume: bool = False) -> Session:
        """The session of that key, made if it is new; with ``resume`` a new one is an error."""
        while True:
            place = self._place(key, resume)
            with place.lock:
                if not self._is_current(key, place):
                    continue  # it was closed, or could not be made, while we waited for it
                if place.session is None:
                    place.session = self._open(key, place)
                return place.session

    def _open(self, key: SessionKey, place: _Place) -> Session:
        try:
            session = Session(key, self._services)
        except BaseException:
            with self._lock:
                self._places.pop(key, None)
            raise
        if key.from_peer:
            place.connection = (self._connected_peers() or {}).get(key.id)
        with self._lock:
            self._metrics.created += 1
        log.info("session %s opened", key)
        return session

    def _is_current(self, key: SessionKey, place: _Place) -> bool:
        """True if the place is still the key's; its session is in use from now on."""
        if self._was_taken_over(key, place):
            self.close(key, "disconnected")
            return False
        with self._lock:
            if self._places.get(key) is not place:
                return False
            if place.session is not None:
                place.session.touch()  # under the lock, so that no sweep closes it as idle
            return True

    def _was_taken_over(self, key: SessionKey, place: _Place) -> bool:
        """True if another connection now has the address that an idle session is named after."""
        session = place.session
        if session is None or place.connection is None or session.idle_seconds < _RECENT_SECONDS:
            return False
        peers = self._connected_peers()
        return peers is not None and peers.get(key.id) != place.connection

    def find(self, key: SessionKey) -> Session | None:
        """The session of that key if there is one; never makes one."""
        with self._lock:
            place = self._places.get(key)
        return place.session if place else None

    def close(self, key: SessionKey, reason: str) -> bool:
        """Closes a session at once; False if there is none."""
        with self._lock:
            place = self._places.pop(key, None)
        if place is None:
            return False
        with place.lock:
            session = place.session
        if session is not None:
            self._end(session, reason)
        return True

    def sweep(self) -> int:
        """Closes sessions idle for too long or without their client, and drops old results."""
        self._drop_old_results()
        peers = self._connected_peers()
        with self._lock:
            known = [(key, place.session) for key, place in self._places.items() if place.session]
        closed = 0
        for key, session in known:
            with self._lock:
                reason = self._reason_to_close(key, session, peers)
                if reason is None or self._places.pop(key, None) is None:
                    continue
            self._end(session, reason)
            closed += 1
        return closed

    def metrics(self) -> SessionMetrics:
        """A copy of the counters, with the number of open sessions."""
        with self._lock:
            now = self._metrics
            return SessionMetrics(
                active=len(self._places),
                created=now.created,
                closed=Counter(now.closed),
                lifetime_seconds_total=now.lifetime_seconds_total,
                lifetime_seconds_max=now.lifetime_seconds_max,
            )

    # ---- results and cancellation --------------------------------------------------------------

    def keep(self, stream: ResultStream) -> None:
        """Holds a result until its ticket is redeemed."""
        with self._lock:
            self._results[stream.handle] = stream

    def redeem(self, handle: bytes, identity: str) -> ResultStream:
        """The result behind a ticket, once."""
        with self._lock:
            stream = self._results.get(handle)
            if stream is not None and stream.run.session.identity == identity:
                self._delivering[handle] = self._results.pop(handle)
                return stream
        raise NotFound(
            "There is no such result: it was fetched before, expired, or its session was closed. "
            "Run the statement again.",
            identifier="RESULT_NOT_FOUND",
        )

    def delivered(self, stream: ResultStream) -> None:
        """Closes a redeemed result: it was read to its end, or nobody reads it any more."""
        with self._lock:
            self._delivering.pop(stream.handle, None)
        stream.leave()

    @property
    def results_waiting(self) -> int:
        """How many results nobody has fetched yet."""
        return len(self._results)

    @property
    def lake_writes(self) -> dict[str, int]:
        """How often sessions wrote to the lake in which way."""
        return self._services.writes.as_dict()

    @property
    def lake_reads(self) -> dict[str, int]:
        """How often queries of sessions needed no lake."""
        return self._services.reads.as_dict()

    @property
    def writers(self) -> list[GateStatus]:
        """Who writes to which catalog now, or waits to."""
        return self._services.lake.writers()

    def runs(self, identity: str) -> list[Run]:
        """The caller's statements that run, or whose result was not read to its end yet."""
        with self._lock:
            streams = [*self._results.values(), *self._delivering.values()]
        runs = {*(stream.run for stream in streams), *self.running()}
        return [run for run in runs if run.session.identity == identity]

    @contextmanager
    def tracking(self, run: Run) -> Iterator[None]:
        """The time in which a call works on a statement, or waits for its turn to."""
        with self._lock:
            self._calls.add(run)
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(run)

    def running(self) -> set[Run]:
        """The statements that execute, are fetched from, or wait for their turn."""
        with self._lock:
            return {*self._calls, *self.watchdog.running()}

    def forget(self, run: Run) -> None:
        """Drops the result of a cancelled statement."""
        with self._lock:
            stream = self._results.pop(run.handle, None)
        if stream is not None:
            stream.abandon(QueryCancelled("The statement was cancelled on request."))

    # ---- end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Closes everything."""
        self._stopped.set()
        with self._lock:
            keys = list(self._places)
        for key in keys:
            self.close(key, "shutdown")
        self.watchdog.close()

    # ---- inside --------------------------------------------------------------------------------

    def _place(self, key: SessionKey, resume: bool) -> _Place:
        for attempt in ("as it is", "after a sweep"):
            with self._lock:
                place = self._places.get(key)
                if place is not None:
                    return place
                if resume:
                    raise SessionLost(
                        f"The session {key.id} does not exist here: the server restarted, or "
                        "closed it when it was idle. Open a new one."
                    )
                if len(self._places) < self._settings.max_sessions:
                    return self._places.setdefault(key, _Place())
            if attempt == "as it is":
                self.sweep()
        raise SessionLimitReached(
            f"All {self._settings.max_sessions} sessions are in use. Close one that is no longer "
            "needed, try again later, or raise max_sessions."
        )

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
            lifetime = time.monotonic() - session.created
            self._metrics.closed[reason] += 1
            self._metrics.lifetime_seconds_total += lifetime
            self._metrics.lifetime_seconds_max = max(self._metrics.lifetime_seconds_max, lifetime)
        for stream in orphans:
            stream.abandon(QueryCancelled(f"The session was closed ({reason})."))
        log.info("session %s closed (%s) after %.1f s", session.key, reason, lifetime)

    def _drop_old_results(self) -> None:
        oldest = time.monotonic() - self._settings.result_ttl_seconds
        with self._lock:
            expired = [s for s in self._results.values() if s.created < oldest]
            for stream in expired:
                del self._results[stream.handle]
        for stream in expired:
            stream.abandon(QueryCancelled("Nobody fetched the result in time."))

    def _sweep_often(self) -> None:
        while not self._stopped.wait(self._settings.session_sweep_seconds):
            try:
                self.sweep()
            except Exception:
                log.exception("the sweep failed and will be tried again")
