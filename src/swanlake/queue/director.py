"""The thread that carries out the coordinator's actions and does the queue's housekeeping."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty

from swanlake.errors import CatalogUnreachable
from swanlake.queue.coordinator import Action, Flush, Seal
from swanlake.queue.flush.executor import FlushExecutor
from swanlake.queue.ingest.enqueuer import Enqueuer
from swanlake.queue.settings import QueueSettings
from swanlake.queue.state import QueueState
from swanlake.queue.storage.ownership import Adoption, Ownership
from swanlake.queue.storage.store import SegmentStore

log = logging.getLogger("swanlake.queue")

_TICK_SECONDS = 1.0
_HEARTBEAT_SECONDS = 5.0


class Director:
    """Recovers segments at startup, then seals, flushes, sends heartbeats and adopts segments."""

    def __init__(
        self,
        settings: QueueSettings,
        state: QueueState,
        store: SegmentStore,
        ownership: Ownership,
        adoption: Adoption,
        enqueuer: Enqueuer,
        flushes: FlushExecutor,
    ) -> None:
        self._settings = settings
        self._state = state
        self._store = store
        self._ownership = ownership
        self._adoption = adoption
        self._enqueuer = enqueuer
        self._flushes = flushes
        self._thread = threading.Thread(target=self._run, name="swanlake-queue", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Waits for the thread to notice that the queue stops."""
        self._state.actions.put(None)
        self._thread.join(max(timeout, _TICK_SECONDS))

    def follow_pause(self) -> None:
        """Pauses or resumes as the pause file says: servers on one root do so together."""
        self._state.set_paused(self._settings.pause_file.exists())

    def _run(self) -> None:
        state = self._state
        while not state.stopping.is_set() and not self._guarded(self._adopt):
            state.stopping.wait(_TICK_SECONDS)
        state.recovered.set()
        with state.lock:
            state.lock.notify_all()
        ticked = swept = beat = time.monotonic()
        interval = min(_TICK_SECONDS, self._settings.limits.sweep_seconds)
        while not state.stopping.is_set():
            with suppress(Empty):
                action = state.actions.get(timeout=max(0.0, ticked + interval - time.monotonic()))
                if action is not None:
                    self._guarded(partial(self._perform, action))
                    if time.monotonic() - ticked < interval:
                        continue
            ticked = time.monotonic()
            state.tick()
            if ticked - beat >= _HEARTBEAT_SECONDS:
                beat = ticked
                self._guarded(self._heartbeat)
            if ticked - swept >= self._settings.limits.sweep_seconds:
                swept = ticked
                self._guarded(self.follow_pause)
                self._guarded(self._adopt)
                self._guarded(lambda: self._store.remove_expired(self._settings.retention_seconds))

    def _guarded(self, step: Callable[[], object]) -> bool:
        """False if a step failed; the next sweep tries it again."""
        try:
            step()
        except CatalogUnreachable as unreachable:
            log.warning("%s", unreachable)
            return False
        except Exception:
            log.exception("the queue's housekeeping failed")
            return False
        return True

    def _perform(self, action: Action) -> None:
        match action:
            case Seal():
                self._enqueuer.seal(action)
            case Flush():
                self._flushes.submit(action)

    def _heartbeat(self) -> None:
        if not self._ownership.heartbeat():
            self._state.lost_ownership = True
            log.critical("another server has taken over the queue directory of this one")

    def _adopt(self) -> None:
        self._adoption.adopt()
        self._enqueuer.deduplicator.invalidate()
