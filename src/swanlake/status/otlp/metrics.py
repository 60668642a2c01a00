"""Sends the metrics of ``/metrics`` to an OpenTelemetry collector, at an interval."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

from swanlake._internal.histogram import HistogramCounts
from swanlake.access.refreshed import Refreshed
from swanlake.access.scope import UNRESTRICTED
from swanlake.engine.instance import EngineMemory
from swanlake.errors import SwanLakeError
from swanlake.status.document import LakeFacts
from swanlake.status.metrics import COUNTER, METRICS, MetricRow, Scrape, process_rows
from swanlake.status.otlp.collector import Signal
from swanlake.status.otlp.delivery import DeliveryLog
from swanlake.status.otlp.origin import SCOPE, read_resource
from swanlake.status.statements import StatementCounters
from swanlake.status.view import ServerView

T = TypeVar("T")

log = logging.getLogger("swanlake.status")

_INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MILLISECONDS = 60_000.0
_FLUSH_SECONDS = 2.0
#: How old the facts about the lake and the engines may be, and how soon a failed load is repeated.
_MAX_AGE_SECONDS, _RETRY_SECONDS = 2.0, 1.0
#: Units of UCUM, by the last word of a metric's name.
_UNITS = {"seconds": "s", "bytes": "By"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE


class MetricSender:
    """Reads and sends all metrics from a thread of its own, whatever the collector does."""

    def __init__(self, endpoint: str, view: ServerView, statements: StatementCounters) -> None:
        """Without an endpoint, the variables of OpenTelemetry name it."""
        self._view = view
        self._statements = statements
        self._resource = read_resource()
        self._exporter = OTLPMetricExporter(endpoint=Signal.METRICS.url(endpoint))
        self._delivery = DeliveryLog(Signal.METRICS)
        self._interval = read_interval()
        # A busy engine or a lost database delays these only: the other metrics are sent.
        self._lake_facts = _facts("The lake, for metrics,", lambda: LakeFacts.read(view))
        self._engine_facts = _facts("The engines' memory", lambda: tuple(view.host.memory()))
        self._lake: LakeFacts | None = None
        self._engines: tuple[EngineMemory, ...] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swanlake-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends the metrics for the last time, within two seconds."""
        self._stopping.set()
        self._thread.join(_FLUSH_SECONDS)
        self._exporter.shutdown()  # ends its retries

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            with suppress(SwanLakeError):  # the old facts are sent
                self._lake = self._lake_facts.get()
            with suppress(SwanLakeError):
                self._engines = self._engine_facts.get()
            self._send()
        self._send()  # without asking the lake and the engines, which are about to close

    def _send(self) -> None:
        try:
            scrape = Scrape(self._view, self._statements, UNRESTRICTED, self._engines, self._lake)
            metrics = read_metrics(scrape, time.time_ns())
            scope = ScopeMetrics(SCOPE, metrics, "")
            data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
            is_delivered = self._exporter.export(data) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - logged once, and tried again
            self._delivery.note(False, error)
        else:
            self._delivery.note(is_delivered)


def _facts(what: str, load: Callable[[], T]) -> Refreshed[T]:
    """What is asked for in the background; while that hangs or fails, the last answer counts."""
    return Refreshed(what, load, max_age=_MAX_AGE_SECONDS, min_age=_RETRY_SECONDS, outage=math.inf)


def read_interval() -> float:
    """The seconds between two exports."""
    text = os.environ.get(_INTERVAL_VARIABLE, "").strip()
    if not text:
        return _INTERVAL_MILLISECONDS / 1000
    with suppress(ValueError):
        milliseconds = float(text)
        if 0 < milliseconds < math.inf:
            return milliseconds / 1000
    log.warning("%s is no number of milliseconds: it is ignored", _INTERVAL_VARIABLE)
    return _INTERVAL_MILLISECONDS / 1000


def read_metrics(scrape: Scrape, now: int) -> list[Metric]:
    """All metrics with samples; ``now`` is in nanoseconds since 1970."""
    process = process_rows()
    start = int(_process_start(scrape, process) * 1e9)
    metrics = (to_metric(row, scrape, start, now) for row in (*METRICS, *process))
    return [metric for metric in metrics if metric is not None]


def _process_start(scrape: Scrape, process: Sequence[MetricRow]) -> float:
    """When all counters were zero: some count before the server is complete."""
    for row in process:
        started_at = row.read(scrape)
        if row.name == "process_start_time_seconds" and isinstance(started_at, float):
            return min(started_at, scrape.view.started_at)
    return scrape.view.started_at  # without /proc


def to_metric(row: MetricRow, scrape: Scrape, start: int, now: int) -> Metric | None:
    """A metric as OTLP has it, under its name in ``/metrics``; None if it has no samples."""
    samples = row.read(scrape)
    data: Histogram | Sum | Gauge
    if samples is None or samples == {}:
        return None
    if isinstance(samples, HistogramCounts):
        data = Histogram([_distribution(samples, start, now)], _CUMULATIVE)
    else:
        by_label = samples if isinstance(samples, Mapping) else {"": samples}
        is_sum = row.kind == COUNTER
        points = [
            NumberDataPoint(
                {row.label: value} if row.label else {},
                start if is_sum else 0,
                now,
                float(number),
            )
            for value, number in by_label.items()
        ]
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)
    return Metric(row.name, row.help, unit_of(row.name), data)


def unit_of(name: str) -> str:
    """The unit that a name ends with; empty if it has none."""
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


def _distribution(counts: HistogramCounts, start: int, now: int) -> HistogramDataPoint:
    unknown: Any = None  # optional in OTLP: the least and the greatest value are not kept
    return HistogramDataPoint(
        {}, start, now, counts.count, counts.sum, counts.counts, counts.bounds, unknown, unknown
    )
