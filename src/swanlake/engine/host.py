"""The connections of sessions: on one shared instance, or on an instance each from a warm pool.

The host replaces an instance that a fatal error has invalidated. Only the statements that were
running on it fail; sessions get a connection to the new one with their next statement.
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
from swanlake.lake.metastore.location import LakeLocation

log = logging.getLogger("swanlake.engine")


@dataclass(frozen=True)
class EngineConnection:
    """A connection for one session, and the instance it belongs to."""

    engine: Engine
    connection: duckdb.DuckDBPyConnection


class EngineHost(ABC):
    """Opens connections, closes them, and replaces broken instances."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()

    @abstractmethod
    def acquire(self) -> EngineConnection:
        """A new connection on a working instance."""

    def release(self, lease: EngineConnection) -> None:
        """Closes a connection."""
        if lease.engine.broken:
            _abandon(lease.connection)
        else:
            lease.connection.close()

    @abstractmethod
    def close(self) -> None:
        """Closes all instances of this host."""

    def report_error(self, lease: EngineConnection, error: BaseException) -> bool:
        """Reports a statement's error; True if the whole instance was invalidated, by it or before.

        The other statements of the instance are then interrupted.
        """
        if lease.engine.broken:
            return True
        if not may_invalidate(error) or lease.engine.is_valid():
            return False
        with self._lock:
            first, lease.engine.broken = not lease.engine.broken, True
        if first:
            log.error("a fatal error invalidated the engine; it is replaced: %s", error)
            lease.engine.interrupt()
        return True


class SharedHost(EngineHost):
    """One instance for all sessions; each session has a connection."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._engine = Engine(spec)

    def acquire(self) -> EngineConnection:
        with self._lock:
            if self._engine.broken:
                self._engine = Engine(self._spec)
                log.info("a new engine is ready")
            engine = self._engine
        return EngineConnection(engine, engine.connect())

    def close(self) -> None:
        self._engine.close()


class InstanceHost(EngineHost):
    """One instance per session, from a pool that a thread refills."""

    def __init__(self, spec: EngineSpec, warm_instances: int) -> None:
        super().__init__(spec)
        self._warm_instances = warm_instances
        # Built at once, so that a broken configuration fails the start, not the first session.
        self._warm = deque([self._build()])
        self._wanted = threading.Event()
        self._closed = False
        self._filler = threading.Thread(target=self._fill, name="swanlake-warm", daemon=True)
        self._filler.start()
        self._wanted.set()

    def acquire(self) -> EngineConnection:
        try:
            return self._warm.popleft()
        except IndexError:
            return self._build()
        finally:
            self._wanted.set()

    def release(self, lease: EngineConnection) -> None:
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
                    log.warning("building a warm instance failed", exc_info=True)
                    break

    def _build(self) -> EngineConnection:
        """An instance with its first connection, which is the slow one."""
        engine = Engine(self._spec)
        return EngineConnection(engine, engine.connect())


def _abandon(connection: duckdb.DuckDBPyConnection) -> None:
    """Leaks a connection of a broken instance.

    Closing or collecting it would roll back its transaction. On an invalid instance DuckDB throws
    from that destructor, which ends the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def open_host(settings: Settings, lake: LakeLocation) -> EngineHost:
    """The host that the settings select; ``lake`` is the default catalog of its sessions."""
    spec = EngineSpec.from_settings(settings, lake)
    if settings.session_isolation == "instance":
        return InstanceHost(spec, settings.warm_instances)
    return SharedHost(spec)
