"""The connections of sessions: on one shared instance, or on an instance each from a warm pool.

The host replaces an instance that a fatal error has invalidated. Only the statements that were
running on it fail; sessions get a connection to the new one with their next statement.

It also replaces an instance that is outgrown: its caches cannot be emptied. The old instance is
*retired*. Sessions without state leave it, the others keep it, and it is closed after the last one.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import duckdb

from swanlake._internal.memory import release_free_memory
from swanlake.access.scope import UNRESTRICTED, Scope
from swanlake.config import Settings
from swanlake.engine.database import remove_abandoned_directories
from swanlake.engine.errors import may_invalidate
from swanlake.engine.instance import Engine, EngineMemory, EngineSpec
from swanlake.engine.serial import SerialEngine
from swanlake.errors import SwanLakeError
from swanlake.lake.metastore.location import LakeLocation

log = logging.getLogger("swanlake.engine")


#: Seconds between two checks whether an instance is outgrown.
_CHECK_SECONDS = 1.0
#: The next instance is opened no sooner than this many times the CPU time that the last one took.
_REST_FACTOR = 5
#: Seconds until it tries again to replace an instance that could not be replaced.
_RETRY_SECONDS = 60.0
_JOIN_SECONDS = 10.0
#: A sealed instance attaches no more catalogs than this before a statement names them.
_SEALED_CATALOGS = 32
#: Seconds after which an instance of restricted sessions is closed that no session uses.
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class EngineConnection:
    """A connection for one session, and the instance it belongs to."""

    engine: Engine
    connection: duckdb.DuckDBPyConnection


@dataclass(frozen=True)
class EngineSeal:
    """What an instance of restricted sessions can reach."""

    #: Directories and URLs; None if it is not sealed.
    directories: tuple[str, ...] | None = None
    #: The catalogs of the lake: a sealed instance attaches those of its scope when it is opened.
    catalogs: tuple[LakeLocation, ...] = ()


class EngineHost(ABC):
    """Opens connections, closes them, and replaces broken and outgrown instances."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        #: What the next instance of a restricted scope can reach.
        self.seal: Callable[[Scope], EngineSeal] = lambda scope: EngineSeal()
        self._lock = threading.Lock()
        #: The instances with connections in use, and how many.
        self._leases: Counter[Engine] = Counter()
        #: Outgrown instances that could not be replaced, and when to try it again.
        self._kept: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()
        #: Called while a retired instance is in use; moves idle sessions to another one.
        self.move_idle_sessions: Callable[[], None] = lambda: None
        #: Runs small queries that read nothing; None if it might answer otherwise than the others.
        self.serial: SerialEngine | None = None
        self._stopped = threading.Event()
        self._checker = threading.Thread(
            target=self._check_periodically, name="swanlake-engine", daemon=True
        )

    @abstractmethod
    def acquire(
        self, scope: Scope = UNRESTRICTED, catalogs: Collection[LakeLocation] = ()
    ) -> EngineConnection:
        """A new connection on a working instance of a scope, which has these catalogs if sealed."""

    @abstractmethod
    def check_answers(self) -> None:
        """Raises unless a new session would get an instance that answers queries."""

    def _open(self, scope: Scope, catalogs: Collection[LakeLocation]) -> Engine:
        if not scope.is_restricted:
            return Engine(self._spec)
        seal = self.seal(scope)
        wanted = dict.fromkeys((*catalogs, *seal.catalogs[:_SEALED_CATALOGS]))
        spec = replace(
            self._spec, scope=scope, catalogs=tuple(wanted), directories=seal.directories
        )
        return Engine(spec)

    def release(self, lease: EngineConnection) -> None:
        """Closes a connection."""
        if lease.engine.broken:
            _abandon(lease.connection)
        else:
            lease.connection.close()
        self._forget_lease(lease.engine)

    def _forget_lease(self, engine: Engine) -> None:
        with self._lock:
            self._leases[engine] -= 1
            if not self._leases[engine]:
                del self._leases[engine]

    def close(self) -> None:
        """Closes all instances of this host."""
        self._stopped.set()
        if self._checker.is_alive():
            self._checker.join(_JOIN_SECONDS)

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

    @property
    def engines(self) -> list[Engine]:
        """The instances that sessions use."""
        with self._lock:
            return list(self._leases)

    def memory(self) -> list[EngineMemory]:
        """The memory of each instance that works."""
        found = []
        for engine in self.engines:
            with suppress(duckdb.Error):  # it broke, or its last session was closed
                found.append(engine.memory())
        return found

    @abstractmethod
    def check(self) -> None:
        """Retires outgrown instances, and closes retired ones that are not used any more."""

    def _is_replaceable(self, engine: Engine) -> bool:
        """True if an instance is outgrown, and sessions made nothing in it for one another."""
        now = time.monotonic()
        if engine.retired or engine.broken or now < self._kept.get(engine, now):
            return False
        if not engine.is_outgrown:
            return False
        objects = engine.session_objects()
        if objects:
            self._keep(engine, f"sessions share objects in it: {', '.join(objects)}")
        return not objects

    def _keep(self, engine: Engine, reason: object) -> None:
        """Tries later to replace an instance; says once why it could not."""
        if engine not in self._kept:
            log.warning(
                "the engine has cached many old versions of the catalogs, and a new one cannot "
                "take its place because %s",
                reason,
            )
        self._kept[engine] = time.monotonic() + _RETRY_SECONDS

    def _check_periodically(self) -> None:
        while not self._stopped.wait(_CHECK_SECONDS):
            try:
                self.check()
                if any(engine.retired for engine in self.engines):
                    self.move_idle_sessions()
            except Exception:
                log.exception("checking the engine failed; it is tried again")


class SharedHost(EngineHost):
    """One instance for all sessions of a scope; each session has a connection."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._engine = Engine(spec)
        if not spec.init_sql:  # it may change settings
            self.serial = SerialEngine()
        #: The instances of restricted sessions, and since when no session uses them.
        self._restricted: dict[Scope, Engine] = {}
        # Not self._lock, which all sessions need: opening waits for the metadata database.
        self._opening = threading.Lock()
        self._unused_since: dict[Engine, float] = {}
        self._retired: list[Engine] = []
        self._rests_until = 0.0
        self._checker.start()

    def acquire(
        self, scope: Scope = UNRESTRICTED, catalogs: Collection[LakeLocation] = ()
    ) -> EngineConnection:
        engine = self._lease_restricted(scope, catalogs) if scope.is_restricted else self._lease()
        try:
            return EngineConnection(engine, engine.connect())
        except BaseException:
            self._forget_lease(engine)
            raise

    def check_answers(self) -> None:
        engine = self._lease()
        try:
            engine.check_answers()
        finally:
            self._forget_lease(engine)

    def _lease(self) -> Engine:
        """The instance of unrestricted sessions, with one more connection in use."""
        with self._lock:
            if self._engine.broken:
                self._engine = Engine(self._spec)
                log.info("a new engine is ready")
            self._leases[self._engine] += 1
            return self._engine

    def _lease_restricted(self, scope: Scope, catalogs: Collection[LakeLocation]) -> Engine:
        """The instance of a scope; a new one if the old one is sealed and lacks a catalog."""
        with self._opening:
            with self._lock:
                old = self._restricted.get(scope)
                if old is not None and not old.broken and _has_catalogs(old, catalogs):
                    self._leases[old] += 1
                    return old
            attached = [] if old is None or old.broken else old.attached_locations
            new = self._open(scope, [*attached, *catalogs])
            with self._lock:
                if old is not None and self._restricted.get(scope) is old and not old.broken:
                    self._retire(old)
                self._restricted[scope] = new
                self._leases[new] += 1
                return new

    def _retire(self, engine: Engine) -> None:
        engine.retired = True
        self._retired.append(engine)

    def _take_unused(self) -> list[Engine]:
        """The instances to close: retired ones, and restricted ones that no session uses."""
        now = time.monotonic()
        with self._lock:
            unused = [engine for engine in self._retired if engine not in self._leases]
            self._retired = [engine for engine in self._retired if engine in self._leases]
            idle = {e: s for s, e in self._restricted.items() if e not in self._leases}
            self._unused_since = {e: self._unused_since.get(e, now) for e in idle}
            for engine, since in self._unused_since.items():
                if now - since >= _IDLE_SECONDS:
                    del self._restricted[idle[engine]]
                    unused.append(engine)
        return unused

    @property
    def engines(self) -> list[Engine]:
        """The instances that sessions use, and those that new sessions get."""
        with self._lock:
            return [*self._retired, *self._restricted.values(), self._engine]

    def close(self) -> None:
        super().close()
        for engine in self.engines:
            engine.close()
        if self.serial is not None:
            self.serial.close()

    def check(self) -> None:
        unused = self._take_unused()
        for engine in unused:
            engine.close()
        if unused:
            release_free_memory()
        if time.monotonic() < self._rests_until:
            return
        engine, cpu_time = self._engine, time.thread_time()
        try:
            self._replace_restricted()
            if self._is_replaceable(engine):
                self.replace()
        except (duckdb.Error, SwanLakeError) as failed:
            self._keep(engine, failed)
        self._rests_until = time.monotonic() + _REST_FACTOR * (time.thread_time() - cpu_time)

    def _replace_restricted(self) -> None:
        """Retires outgrown instances of restricted sessions; the next session opens another."""
        with self._lock:
            restricted = list(self._restricted.items())
        for scope, engine in restricted:
            if self._is_replaceable(engine):
                with self._lock:
                    if self._restricted.get(scope) is engine:
                        del self._restricted[scope]
                        self._retire(engine)

    def replace(self) -> None:
        """Opens a new instance, and retires the current one."""
        old, new = self._engine, Engine(self._spec)
        try:
            new.copy_settings(old)
        except BaseException:
            new.close()
            raise
        with self._lock:
            is_needed = self._engine is old and not old.broken and not self._stopped.is_set()
            if is_needed:
                self._engine = new
                old.retired = True
                self._retired.append(old)
        if not is_needed:
            new.close()
            return
        new.copy_settings(old)  # what was set meanwhile
        log.info("a new engine is ready; the old one is closed when no session needs it")


class InstanceHost(EngineHost):
    """One instance per session, from a pool that a thread refills."""

    def __init__(self, spec: EngineSpec, warm_instances: int) -> None:
        super().__init__(spec)
        self._warm_instances = warm_instances
        # Built at once, so that a broken configuration fails the start, not the first session.
        self._warm = deque([self._build()])
        self._wanted = threading.Event()
        self._filler = threading.Thread(target=self._fill, name="swanlake-warm", daemon=True)
        self._filler.start()
        self._wanted.set()
        self._checker.start()

    def acquire(
        self, scope: Scope = UNRESTRICTED, catalogs: Collection[LakeLocation] = ()
    ) -> EngineConnection:
        if scope.is_restricted:
            engine = self._open(scope, catalogs)
            lease = EngineConnection(engine, engine.connect())
        else:
            try:
                lease = self._warm.popleft()
            except IndexError:
                lease = self._build()
            self._wanted.set()
        with self._lock:
            self._leases[lease.engine] += 1
        return lease

    def check_answers(self) -> None:
        if self._warm:  # it answered when it was built
            return
        # The sessions took all, and the next ones are being built.
        for engine in self.engines[:1]:
            engine.check_answers()

    def release(self, lease: EngineConnection) -> None:
        super().release(lease)
        lease.engine.close()

    def close(self) -> None:
        super().close()
        self._wanted.set()
        self._filler.join(_JOIN_SECONDS)
        while self._warm:
            unused = self._warm.popleft()
            unused.connection.close()
            unused.engine.close()

    def check(self) -> None:
        for engine in self.engines:
            with suppress(duckdb.Error):  # its session was closed meanwhile
                engine.retired |= self._is_replaceable(engine)

    def _fill(self) -> None:
        while not self._stopped.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while not self._stopped.is_set() and len(self._warm) < self._warm_instances:
                try:
                    self._warm.append(self._build())
                except Exception:
                    log.warning("building a warm instance failed", exc_info=True)
                    break

    def _build(self) -> EngineConnection:
        """An instance with its first connection, which is the slow one."""
        engine = Engine(self._spec)
        return EngineConnection(engine, engine.connect())


def _has_catalogs(engine: Engine, catalogs: Collection[LakeLocation]) -> bool:
    """True if an instance has these catalogs, or can attach them."""
    return not engine.is_sealed or set(engine.attached_locations) >= set(catalogs)


def _abandon(connection: duckdb.DuckDBPyConnection) -> None:
    """Leaks a connection of a broken instance.

    Closing or collecting it would roll back its transaction. On an invalid instance DuckDB throws
    from that destructor, which ends the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def open_host(settings: Settings, lake: LakeLocation) -> EngineHost:
    """The host that the settings select; ``lake`` is the default catalog of its sessions."""
    remove_abandoned_directories(settings.temp_directory)
    spec = EngineSpec.from_settings(settings, lake)
    if settings.session_isolation == "instance":
        return InstanceHost(spec, settings.warm_instances)
    return SharedHost(spec)
