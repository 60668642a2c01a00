"""The server process: built from settings, run until a signal, drained, closed."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swanlake._internal.addresses import is_loopback
from swanlake._internal.memory import caller_bytes
from swanlake._internal.memory_budget import MemoryBudget
from swanlake._internal.waiting import POLL_SECONDS, polling, wait
from swanlake._version import __version__
from swanlake.access.files import FileAccess, FileRules, parse_directories
from swanlake.access.identity import Identity
from swanlake.access.scope import Scope
from swanlake.config import Configuration, Settings
from swanlake.engine.host import EngineHost, EngineSeal, open_host
from swanlake.errors import ConfigError, QueryCancelled, StartupError
from swanlake.jobs.selection import open_runner, open_transfer_grants
from swanlake.lake.files import storage
from swanlake.lake.files.storage_options import check_location
from swanlake.lake.lake import DEFAULT_CATALOG, Lake
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.lake.metastore.passfile import remove_passfiles
from swanlake.lake.read.snapshot_cache import SnapshotCache
from swanlake.maintenance.scheduler import Scheduler
from swanlake.maintenance.service import Maintenance
from swanlake.maintenance.settings import MaintenanceSettings
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.server.auth import Authenticator, Credentials, open_authenticator
from swanlake.server.heartbeat import Heartbeat
from swanlake.server.listener import Listener
from swanlake.server.server_tls import ServerTls, http_context, read_tls, reload_context
from swanlake.server.service import SwanLakeService
from swanlake.server.start_checks import (
    address_in_use,
    check_address,
    check_advertised_url,
    check_exposure,
    check_status_url,
    listen_for_status,
    lock_home,
    make_private,
)
from swanlake.server.systemd import ServiceManager
from swanlake.sessions.activity import AuditLog, StatementLogger
from swanlake.sessions.peers import connected_peers, find_connection
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.services import NativeParts, SessionServices
from swanlake.status.checks import server_checks
from swanlake.status.document import describe_server
from swanlake.status.health import HealthMonitor
from swanlake.status.otlp.collector import Signal
from swanlake.status.statements import StatementCounters
from swanlake.status.view import ServerState, ServerView

if TYPE_CHECKING:
    from swanlake.status.http import StatusServer
    from swanlake.status.otlp.metrics import MetricSender
    from swanlake.status.otlp.spans import SpanSender

log = logging.getLogger("swanlake.server")

_WILDCARDS = ("0.0.0.0", "::")
#: Within the grace period: time for clients to fetch the results of finished statements.
_FETCH_SECONDS = 5.0
#: A second signal within this time is a duplicate of the first.
_DUPLICATE_SIGNAL_SECONDS = 0.5
#: After the grace period: time to interrupt statements, and for Flight to close connections.
_INTERRUPT_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
#: Imported by Spark workers at startup, so that their first unit starts at once.
_UNIT_MODULES = ("swanlake.queue.flush.units", "swanlake.maintenance.compaction.units")
#: New objects that trigger a garbage collection; a statement creates thousands.
_COLLECT_AFTER = 20_000


class Server:
    """A running server. It accepts calls as soon as it is constructed."""

    def __init__(
        self,
        settings: Settings,
        sources: Mapping[str, str] | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        """``sources`` are those of the settings, to show them."""
        tls = read_tls(settings)
        check_advertised_url(settings.advertised_url)
        check_location(settings.duckling_queue_dlq_target, "duckling_queue_dlq_target")
        check_exposure(settings, settings.host, has_tls=tls is not None)
        if settings.status != "off":
            check_exposure(settings, settings.status_host, has_tls=tls is not None)
            check_status_url(settings.status_url)
        authenticator = open_authenticator(settings, lambda: self._lake.credentials())
        queue_settings = QueueSettings.from_settings(settings)
        maintenance_settings = MaintenanceSettings.from_settings(settings)
        files = _file_rules(settings)
        self._settings = settings
        self._state = ServerState.STARTING
        self.url = ""
        self._status: StatusServer | None = None
        scheme = "grpc+tls" if tls else "grpc"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        grants = open_transfer_grants(settings)
        if grants is not None and settings.tls_client_ca is not None:
            raise ConfigError(
                "Spark workers on other machines fetch segments from this server and have no "
                "client certificate: tls_client_ca cannot be combined with a remote Spark."
            )
        check_address(settings)
        make_private(settings.home)
        self._home_lock = lock_home(settings.home)

        def build_service(port: int, tls: ServerTls | None) -> SwanLakeService:
            return SwanLakeService(
                f"{scheme}://{host}:{port}",
                settings,
                self.registry,
                authenticator,
                lambda identity: describe_server(self.view, identity),
                tls,
                grants,
            )

        with ExitStack() as undo:
            undo.callback(self._home_lock.close)
            self._lake = Lake.from_settings(settings)
            undo.callback(self._lake.close)
            self._host = _open_host(settings, self._lake)
            undo.callback(self._host.close)
            self._host.seal = lambda scope: _engine_seal(scope, files, self._lake)
            self._runner = open_runner(settings, self._host, _UNIT_MODULES)
            undo.callback(self._runner.close)
            self._queue = DucklingQueue(
                queue_settings, self._lake, self._runner, transfer_grants=grants
            )
            undo.callback(self._queue.stop, _CLOSE_SECONDS)
            self._maintenance = Maintenance(self._lake, self._runner, maintenance_settings)
            self._scheduler = Scheduler(self._maintenance, settings.maintenance_interval_seconds)
            audit = AuditLog(
                settings.home.absolute() / "logs" / "audit.jsonl",
                settings.audit,
                settings.audit_max_bytes,
            )
            undo.callback(audit.close)
            authenticator.on_login = audit.record_login
            self._spans = _open_span_sender(settings.otlp_endpoint)
            if self._spans is not None:
                undo.callback(self._spans.close)
                self._queue.export_flushes(self._spans.send_flush)
            self.registry = SessionRegistry(
                settings,
                SessionServices(
                    host=self._host,
                    lake=self._lake,
                    queue=self._queue,
                    maintenance=self._maintenance,
                    result_buffer_bytes=settings.result_buffer_bytes,
                    max_statement_bytes=settings.max_statement_bytes,
                    writer_lock_seconds=settings.writer_lock_seconds,
                    spill_directory=settings.temp_directory,
                    snapshots=SnapshotCache(settings.snapshot_cache_bytes),
                    native=NativeParts.from_setting(settings.native_statements),
                    files=files,
                    send_trace=None if self._spans is None else self._spans.send_statement,
                    memory=MemoryBudget(
                        caller_bytes(settings.caller_memory_bytes, settings.duckdb_memory_limit)
                    ),
                    audit=audit,
                    on_credentials_changed=authenticator.reload_credentials,
                    configuration=Configuration(settings, sources or {}),
                    uses_object_store=storage.is_url(settings.data_location),
                ),
                lambda: connected_peers(self.port),
                lambda peer: find_connection(self.port, peer),
            )
            undo.callback(self.registry.stop)
            self._listen_to_statements(settings)
            self._host.move_idle_sessions = self.registry.leave_retired_engines
            checks = server_checks(self._host, self._lake, self._queue, settings.data_location)
            self.view = ServerView(
                settings,
                self.registry,
                self._scheduler,
                self._runner,
                HealthMonitor(checks),
                find_url=lambda: self.url,
                started_at=time.time(),
                state=lambda: self._state,
            )
            undo.callback(self.view.health.stop)
            self._metrics = self._open_metric_sender(settings.otlp_endpoint)
            if self._metrics is not None:
                undo.callback(self._metrics.close)
            try:
                self._listener = Listener(
                    build_service, settings.port, lambda: read_tls(settings), tls
                )
            except Exception as refused:
                raise address_in_use(settings) from refused
            undo.pop_all()
        self.url = f"{scheme}://{host}:{self.port}"

        def announce_address(tls: ServerTls | None) -> None:
            if grants is not None:
                grants.set_address(self._advertised_url(scheme), tls.certificate if tls else None)

        announce_address(tls)
        context = http_context(settings)

        def use_certificate(tls: ServerTls) -> None:
            announce_address(tls)
            if context is not None:
                reload_context(context, settings)

        self._listener.watch(use_certificate)
        if settings.maintenance == "on":
            self._scheduler.start()
        if settings.insecure and not is_loopback(settings.host):
            log.warning("insecure: calls on %s may be unauthenticated or readable", self.url)
        self._state = ServerState.ACCEPTING
        self._manager = manager or ServiceManager({})
        if self._manager.is_present:
            self.view.health.listeners.append(self._manager.follow)
        is_health_shown = settings.status != "off" or self._metrics is not None
        if is_health_shown or self._manager.is_present:
            self.view.health.start()
        if listener := listen_for_status(settings):
            self._status = self._open_status(listener, context, authenticator)

    def _open_status(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        authenticator: Authenticator,
    ) -> StatusServer:
        from swanlake.status.http import Site, StatusServer  # slow to load, and not always needed

        settings = self._settings
        host = settings.status_host
        scheme, port = "https" if tls else "http", listener.getsockname()[1]
        site = Site(
            url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}",
            public_url=settings.status_url.rstrip("/"),
            has_authentication=settings.auth != "none",
        )

        def identify(authorization: str, address: str) -> Identity:
            return authenticator.identify(Credentials(authorization, address))

        status = StatusServer(self.view, self._statements, site, identify, listener, tls)
        status.start()
        return status

    @cached_property
    def _statements(self) -> StatementCounters:
        """Counts the statements that end from now on; only metrics need it."""
        statements = StatementCounters()
        self.registry.services.activity.add_listener(statements.count)
        return statements

    def _open_metric_sender(self, endpoint: str) -> MetricSender | None:
        """Sends metrics if a collector is configured."""
        if not Signal.METRICS.is_sent(endpoint):
            return None
        with _opentelemetry():
            from swanlake.status.otlp.metrics import MetricSender

            return MetricSender(endpoint, self.view, self._statements)

    @property
    def status_url(self) -> str | None:
        """The URL of the status server; None if it is off."""
        return None if self._status is None else self._status.url

    @property
    def port(self) -> int:
        return self._listener.port

    def reload(self) -> None:
        """Reads the TLS files again, in the background."""
        log.info("SIGHUP received: TLS files are read again, if there are any")
        self._listener.check_now()

    def _advertised_url(self, scheme: str) -> str:
        """The URL for other machines; a wildcard address becomes the host name."""
        if self._settings.advertised_url:
            return self._settings.advertised_url
        if self._settings.host in _WILDCARDS:
            return f"{scheme}://{socket.gethostname()}:{self.port}"
        return self.url

    def stop(self, grace: float) -> None:
        """Drains and closes; bounded in time even if a client never reads its result.

        During the grace period running statements end and clients fetch their results. Statements
        that still run afterwards are interrupted.
        """
        deadline = time.monotonic() + grace
        self._state = ServerState.DRAINING
        self._manager.announce_stop()
        self._listener.drain()
        self._scheduler.request_stop()
        self._wait_until_idle(deadline)
        fetch_by = min(deadline, time.monotonic() + _FETCH_SECONDS)
        self._wait_until(lambda: not self.registry.results_waiting, fetch_by)
        if self._status is not None:  # it uses all the other parts
            self._status.stop(_CLOSE_SECONDS)
        self.view.health.stop()
        # shutdown() waits for every open stream without a deadline, so it runs in a thread.
        closing = threading.Thread(
            target=self._listener.shutdown, name="swanlake-close", daemon=True
        )
        closing.start()
        closing.join(max(deadline - time.monotonic(), 0))
        self._interrupt()
        self.registry.stop()
        closing.join(_CLOSE_SECONDS)
        self._close_lake(max(deadline - time.monotonic(), _CLOSE_SECONDS))

    def _listen_to_statements(self, settings: Settings) -> None:
        """Has statements that end written to the log and the audit log."""
        services = self.registry.services
        logger = StatementLogger(settings.slow_query_seconds, settings.log_statements)
        services.activity.add_listener(logger)
        if settings.audit != "off":
            services.activity.add_listener(services.audit.record_statement)

    def _close_lake(self, grace: float) -> None:
        """Closes the queue and the maintenance first: they use all the other parts."""
        deadline = time.monotonic() + grace
        self.registry.services.activity.close()
        self.registry.services.audit.close()
        self._queue.stop(grace)
        self._scheduler.stop(max(deadline - time.monotonic(), 0))
        self._maintenance.close()
        if self._metrics is not None:
            self._metrics.close()  # what was counted last is sent, too
        self._runner.close()
        self._host.close()
        self._lake.close()
        if self._spans is not None:
            self._spans.close()
        self._home_lock.close()

    def _interrupt(self) -> None:
        running = self.registry.running()
        if not running:
            return
        log.warning("grace period over: interrupting %d statement(s)", len(running))
        for run in running:
            run.cancel(QueryCancelled("The server is shutting down."))
        self._wait_until_idle(time.monotonic() + _INTERRUPT_SECONDS)

    def _wait_until_idle(self, deadline: float) -> None:
        self._wait_until(lambda: not self.registry.running(), deadline)

    def _wait_until(self, is_reached: Callable[[], bool], deadline: float) -> None:
        def is_stable() -> bool:
            # A statement that has just ended may not yet have handed over its result.
            if not is_reached():
                return False
            time.sleep(POLL_SECONDS)
            return is_reached()

        wait(polling(is_stable), deadline=deadline)


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Signals:
    """The first SIGTERM or SIGINT starts the drain; the second ends the process at once."""

    def __init__(self) -> None:
        self._received = threading.Event()
        self._on_hangup: Callable[[], None] = lambda: None
        # Python runs signal handlers in the main thread, which may be blocked at that moment. The
        # interpreter writes a byte to the wakeup descriptor at once, so a thread reads that.
        self._signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="swanlake-signals", daemon=True).start()

    def on_hangup(self, act: Callable[[], None]) -> None:
        """Sets what SIGHUP does, in place of ending the process; it must not block."""
        self._on_hangup = act
        signal.signal(signal.SIGHUP, lambda number, frame: None)

    def wait(self) -> None:
        """Blocks until the first signal to stop arrives."""
        self._received.wait()

    def _listen(self) -> None:
        log.info("%s received: draining", self._next().name)
        self._received.set()
        first = time.monotonic()
        # A terminal or `timeout` signals the process group and may deliver the signal twice.
        while self._next() and time.monotonic() < first + _DUPLICATE_SIGNAL_SECONDS:
            pass
        log.warning("second signal: stopping now")
        os._exit(1)

    def _next(self) -> signal.Signals:
        """The next SIGTERM or SIGINT; other handled signals are skipped."""
        while (number := os.read(self._signals, 1)[0]) not in _STOP_SIGNALS:
            if number == signal.SIGHUP:
                self._on_hangup()
        return signal.Signals(number)


def serve(
    configuration: Configuration,
    ready_file: Path | None,
    announce: Any,
    heartbeat: Heartbeat | None,
) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it within the grace periods."""
    settings = configuration.settings
    signals = _Signals()
    manager = ServiceManager()
    if manager.has_watchdog:
        faulthandler.enable()  # systemd sends SIGABRT to a server that hangs
    server = Server(settings, configuration.sources, manager)
    signals.on_hangup(server.reload)
    # Objects that exist now live as long as the process: exempt them from collection.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    try:
        if ready_file is not None:
            _write_ready_file(ready_file, server)
        log.info("SwanLake %s accepts on %s (pid %d)", __version__, server.url, os.getpid())
        if heartbeat is not None:
            heartbeat.announce_ready()
        announce(server)
        signals.wait()
    finally:
        if ready_file is not None:
            with suppress(OSError):
                ready_file.unlink()
        longest = settings.shutdown_grace_seconds + _INTERRUPT_SECONDS + 7 * _CLOSE_SECONDS
        watchdog = threading.Timer(longest, os._exit, (0,))  # even if a thread hangs
        watchdog.daemon = True
        watchdog.start()
        server.stop(settings.shutdown_grace_seconds)
        remove_passfiles()  # the process ends without its exit handlers
        log.info("stopped")


def _write_ready_file(path: Path, server: Server) -> None:
    """Writes the file atomically: a reader never sees a part of it."""
    partial = path.with_name(path.name + ".partial")
    content = {"flight": server.url, "status": server.status_url, "pid": os.getpid()}
    try:
        partial.write_text(json.dumps(content) + "\n")
        partial.replace(path)
    except OSError as unwritable:
        raise StartupError(f"The ready file {path} cannot be written: {unwritable}.") from None


def _open_span_sender(endpoint: str) -> SpanSender | None:
    """Sends traces if a collector is configured."""
    if not Signal.TRACES.is_sent(endpoint):
        return None
    with _opentelemetry():
        from swanlake.status.otlp.spans import SpanSender

        return SpanSender(endpoint)


@contextmanager
def _opentelemetry() -> Iterator[None]:
    """The block uses it; raises ConfigError if it or a variable of it is unusable."""
    try:
        yield
    except ImportError:
        raise ConfigError(
            "Traces and metrics over OTLP need OpenTelemetry: run pip install "
            "'.[server,opentelemetry]' in a checkout, or unset otlp_endpoint and "
            "OTEL_EXPORTER_OTLP_ENDPOINT."
        ) from None
    except ValueError as wrong:
        raise ConfigError(f"OpenTelemetry cannot be used: {wrong}") from None


def _file_rules(settings: Settings) -> FileRules:
    """The files that statements may name."""
    home = settings.home.absolute()
    queue = (settings.duckling_queue_root or home / "queue").absolute()
    data = settings.data_location
    return FileRules(
        FileAccess(settings.file_access),
        parse_directories(settings.file_directories),
        data=(data if "://" in data else os.path.abspath(data),),
        server=tuple(map(str, (home / "catalogs", home / "tokens", home / "logs", queue))),
    )


def _engine_seal(scope: Scope, files: FileRules, lake: Lake) -> EngineSeal:
    """What the engine of readers or writers can reach: open files, and the data of catalogs.

    A catalog may have its data outside of the lake's data path, where no rule about files protects
    it. So the engine reaches it only if its callers may read the catalog or a fork of it.
    """
    if files.access is FileAccess.ALL:
        return EngineSeal()
    by_id = {info.id: info for info in lake.catalogs()}
    readable = [info for info in by_id.values() if scope.may_read(info.name)]
    data = list(files.data)
    for info in readable:
        ancestor: CatalogInfo | None = info
        while ancestor is not None:
            data.append(ancestor.data_path)
            ancestor = None if ancestor.parent is None else by_id.get(ancestor.parent)
    directories = dict.fromkeys((*data, *files.directories))
    return EngineSeal(tuple(directories), tuple(map(lake.location, readable)))


def _open_host(settings: Settings, lake: Lake) -> EngineHost:
    try:
        if storage.is_url(settings.data_location):  # a directory is created when it is first used
            storage.check_reachable(settings.data_location)
        catalog = lake.ensure_catalog(DEFAULT_CATALOG)
        for finding in catalog.check():
            log.warning("catalog %s: %s", catalog.name, finding)
        return open_host(settings, lake.location(catalog.info))
    except OSError as unusable:
        raise StartupError(f"The engine cannot start: {unusable}.") from None
