"""Log lines, spans and metrics of a pool, with a fake OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from swanlake.client.api.options import PoolConfig
from swanlake.client.pool import telemetry
from swanlake.client.pool.core import PoolCore
from swanlake.client.pool.telemetry import Telemetry

NAME = "db.client.connection.pool.name"


class Notes:
    """Recorded spans and measurements, and the observable callbacks."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, str]]] = []
        self.measured: list[tuple[str, float, dict[str, str]]] = []
        self.observed: dict[str, Callable[[Any], Any]] = {}

    @contextmanager
    def start_as_current_span(self, name: str, attributes: dict[str, str]) -> Iterator[None]:
        self.spans.append((name, attributes))
        yield

    def create_histogram(self, name: str, unit: str) -> Any:
        return SimpleNamespace(record=lambda *what: self.measured.append((name, *what)))

    def create_counter(self, name: str) -> Any:
        return SimpleNamespace(add=lambda *what: self.measured.append((name, *what)))

    def create_observable_up_down_counter(self, name: str, callbacks: list[Any]) -> None:
        [self.observed[name]] = callbacks


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    notes = Notes()
    trace: Any = ModuleType("opentelemetry.trace")
    trace.get_tracer = lambda name: notes
    trace.get_tracer_provider = object
    trace.ProxyTracerProvider = type("ProxyTracerProvider", (), {})
    metrics: Any = ModuleType("opentelemetry.metrics")
    metrics.get_meter = lambda name: notes
    metrics.Observation = lambda value, attributes: (value, attributes)
    for name, module in {
        "opentelemetry": ModuleType("opentelemetry"),
        "opentelemetry.trace": trace,
        "opentelemetry.metrics": metrics,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    telemetry._instruments.cache_clear()
    yield notes
    telemetry._instruments.cache_clear()


def new_telemetry() -> Telemetry:
    core: PoolCore[str] = PoolCore(PoolConfig(min_idle=0), lambda: 0.5)
    return Telemetry("mine", core.stats)


def test_spans_and_metrics(notes: Notes) -> None:
    pool = new_telemetry()
    with pool.span("swanlake.acquire"):
        pool.acquired(0.25)
    pool.timed_out()
    assert notes.spans == [("swanlake.acquire", {"db.system.name": "swanlake", NAME: "mine"})]
    assert notes.measured == [
        ("db.client.connection.wait_time", 0.25, {NAME: "mine"}),
        ("db.client.connection.timeouts", 1, {NAME: "mine"}),
    ]
    observed = list(notes.observed["db.client.connection.count"](None))
    assert observed == [
        (0, {NAME: "mine", "db.client.connection.state": "idle"}),
        (0, {NAME: "mine", "db.client.connection.state": "used"}),
    ]
    assert list(notes.observed["db.client.connection.pending_requests"](None)) == [
        (0, {NAME: "mine"})
    ]


def test_no_span_without_tracer_provider(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    trace: Any = sys.modules["opentelemetry.trace"]
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with new_telemetry().span("swanlake.acquire"):
        pass
    assert notes.spans == []


def test_pool_works_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    telemetry._instruments.cache_clear()
    pool = new_telemetry()
    with pool.span("swanlake.acquire"):
        pool.acquired(0.25)
    pool.timed_out()
    telemetry._instruments.cache_clear()


def test_log_line_names_pool_and_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "swanlake.pool")
    pool = new_telemetry()
    pool.event("resized to %d..%d connections", 1, 2)
    pool.connection_event("4711", "closed")
    assert caplog.messages == [
        "pool mine: resized to 1..2 connections",
        "pool mine: connection 4711 closed",
    ]
