"""Where sessions get their connections: one shared instance, or one each from a warm pool.

An instance that a fatal error has invalidated is replaced here. Nothing but the statements that
were running on it fails; sessions find out when they next ask for a connection.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

import duckdb

from swanlake.config import Settings
from swanlake.engine.errors import may_invalidate
from swanlake.engine.instance import Engine, EngineSpec
from swanlake.lake.location import LakeLocation

log = logging.getLogger("swanlake.engine")


@dataclass(frozen=True)
class Lease:
    """A connection for one session, and the instance it belongs to."""

    engine: Engine
    connection: duckdb.DuckDBPyConnection


class EngineHost(ABC):
    """Gives connections, takes them back, and replaces instances that broke."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()

    @abstractmethod
    def lease(self) -> Lease:
        """A fresh connection on a working instance."""

    def release(self, lease: Lease) -> None:
        """Takes a connection back for good."""
        if lease.engine.broken:
            _abandon(lease.connection)
        else:
            lease.connection.close()

    @abstractmethod
    def close(self) -> None:
        """Closes every instance this host still holds."""

    def report(self, lease: Lease, error: BaseException) -> bool:
        """Looks at an error of a statement; True if it took the whole instance with it."""
        if not may_invalidate(error) or lease.engine.is_valid():
            return False
        with self._lock:
            first, lease.engine.broken = not lease.engine.broken, True
        if first:
            log.error("a fatal error invalidated the engine, a new one takes over: %s", error)
        return True


class SharedHost(EngineHost):
    """One instance for all sessions: a session costs a connection."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._engine = Engine(spec)

    def lease(self) -> Lease:
        with self._lock:
            if self._engine.broken:
                self._engine = Engine(self._spec)
                log.info("a new engine is ready")
            engine = self._engine
        return Lease(engine, engine.connect())

    def close(self) -> None:
        self._engine.close()


class InstanceHost(EngineHost):
    """An instance per session, taken from a pool that is refilled in the background."""

    def __init__(self, spec: EngineSpec, warm_instances: int) -> None:
        super().__init__(spec)
        self._warm_instances = warm_instances
        # The first is built at once: it says at the start what would fail at the first session.
        self._warm = deque([self._build()])
        self._wanted = threading.Event()
        self._closed = False
        self._filler = threading.Thread(target=self._fill, name="swanlake-warm", daemon=True)
        self._filler.start()
        self._wanted.set()

    def lease(self) -> Lease:
        try:
            return self._warm.popleft()
        except IndexError:
            return self._build()
        finally:
            self._wanted.set()

    def release(self, lease: Lease) -> None:
        super().release(lease)
        lease.engine.close()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()
        self._filler.join(timeout=10)
        while self._warm:
            self.release(self._warm.popleft())

    def _fill(self) -> None:
        while not self._closed:
            self._wanted.wait()
            self._wanted.clear()
            while not self._closed and len(self._warm) < self._warm_instances:
                try:
                    self._warm.append(self._build())
                except Exception:
                    log.warning("no warm instance could be built", exc_info=True)
                    break

    def _build(self) -> Lease:
        """An instance whose first connection, the slow one, is already made."""
        engine = Engine(self._spec)
        return Lease(engine, engine.connect())


def _abandon(connection: duckdb.DuckDBPyConnection) -> None:
    """Keeps a connection of a broken instance for ever.

    Closing it, or letting it be collected, would roll its transaction back; DuckDB refuses that on
    an invalid instance by throwing from a destructor, which ends the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def open_host(settings: Settings, lake: LakeLocation) -> EngineHost:
    """Builds the host that the settings ask for; its sessions begin in the given catalog."""
    spec = EngineSpec.from_settings(settings, lake)
    if settings.session_isolation == "instance":
        return InstanceHost(spec, settings.warm_instances)
    return SharedHost(spec)
