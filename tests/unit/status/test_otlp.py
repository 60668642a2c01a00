"""What is sent to a collector, and when nothing is."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from swanlake.status.metrics import METRICS
from swanlake.status.otlp.collector import Signal
from swanlake.status.otlp.delivery import DeliveryLog
from swanlake.status.otlp.metrics import read_interval, unit_of

SETTING = "http://collector:4318/"
ENDPOINT, METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"


@pytest.mark.parametrize(
    ("setting", "environment", "sent"),
    [
        ("", {}, set()),
        (SETTING, {}, {Signal.TRACES, Signal.METRICS}),
        ("", {ENDPOINT: SETTING}, {Signal.TRACES, Signal.METRICS}),
        ("", {METRICS_ENDPOINT: SETTING}, {Signal.METRICS}),
        (SETTING, {"OTEL_METRICS_EXPORTER": "none"}, {Signal.TRACES}),
        (SETTING, {"OTEL_TRACES_EXPORTER": "None "}, {Signal.METRICS}),
        (SETTING, {"OTEL_METRICS_EXPORTER": "otlp"}, {Signal.TRACES, Signal.METRICS}),
    ],
)
def test_signals_are_sent_to_the_configured_collector(
    monkeypatch: pytest.MonkeyPatch, setting: str, environment: dict[str, str], sent: set[Signal]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert {signal for signal in Signal if signal.is_sent(setting)} == sent


def test_path_of_a_signal_is_added_to_the_setting() -> None:
    assert Signal.METRICS.url(SETTING) == "http://collector:4318/v1/metrics"
    assert Signal.METRICS.url("") is None


def test_server_without_a_collector_does_not_load_opentelemetry() -> None:
    program = "import sys, swanlake.server.app; print('opentelemetry' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout.split() == [b"False"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 60), ("250", 0.25), ("soon", 60), ("0", 60), ("-1", 60), ("nan", 60)]
)
def test_interval_is_that_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)
    assert read_interval() == seconds


def test_units_follow_from_the_names() -> None:
    assert unit_of("process_cpu_seconds_total") == "s"
    assert unit_of("swanlake_queue_memory_bytes") == "By"
    assert unit_of("swanlake_queue_rows_inserted_total") == ""
    assert {unit_of(row.name) for row in METRICS if row.kind == "histogram"} == {"s"}


def test_failures_are_logged_once_with_the_first_reason_and_without_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivery = DeliveryLog(Signal.METRICS)
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with caplog.at_level(logging.INFO, "swanlake.status"):
        for is_delivered in (True, False, False, True, True):
            if not is_delivered:
                exporter.warning("refused by http://collector/v1/metrics?key=secret at once")
                exporter.error("too many retries")
            delivery.note(is_delivered)
    [failed, recovered] = [record.getMessage() for record in caplog.records]
    assert "refused by" in failed
    assert "secret" not in failed
    assert "too many" not in failed
    assert recovered == "the collector takes metrics again"
