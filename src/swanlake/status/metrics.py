"""Metrics for Prometheus: each is declared once, and reads what the server counts anyway.

Names follow https://prometheus.io/docs/practices/naming/: base units, ``_total`` for counters.
``docs/metrics.md`` lists them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from swanlake._internal.histogram import HistogramCounts
from swanlake.access.scope import Scope
from swanlake.engine.instance import EngineMemory
from swanlake.queue.status import TableStatus
from swanlake.sessions.registry import SessionMetrics
from swanlake.status.document import LakeFacts
from swanlake.status.statements import StatementCounters
from swanlake.status.view import ServerState, ServerView

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
#: Label values of rows that are not shown by table.
OTHER = "(other)"
#: Tables with rows in the queue that get samples of their own.
_MAX_TABLES = 500
#: Reasons for which sessions close; others name callers.
_CLOSE_REASONS = frozenset(
    {"closed by client", "disconnected", "idle", "shutdown", "the caller's role or grants changed"}
)

Samples = Mapping[str, float] | HistogramCounts | float | None


@dataclass(frozen=True)
class Scrape:
    """What the metrics of one scrape are read from."""

    view: ServerView
    statements: StatementCounters
    #: Whose tables are named.
    scope: Scope
    #: None until the engines were asked once.
    engines: tuple[EngineMemory, ...] | None
    #: The same for the lake.
    lake: LakeFacts | None

    @cached_property
    def sessions(self) -> SessionMetrics:
        return self.view.registry.metrics()

    @cached_property
    def queue(self) -> list[TableStatus]:
        return self.view.queue.status()

    def by_table(self, read: Callable[[TableStatus], float]) -> dict[str, float]:
        """A value per table, largest first; tables that the caller may not read are summed up."""
        may_read = self.scope.may_read
        sums: Counter[str] = Counter()
        for number, status in enumerate(sorted(self.queue, key=lambda one: -one.rows)):
            is_shown = number < _MAX_TABLES and may_read(status.table.catalog)
            sums[status.table.full_name if is_shown else OTHER] += read(status)  # type: ignore[assignment]
        return dict(sums)


@dataclass(frozen=True)
class MetricRow:
    """One metric: a row of docs/metrics.md."""

    name: str
    kind: str
    help: str
    read: Callable[[Scrape], Samples]
    #: The label of its samples; empty if it has only one.
    label: str = ""

    def family(self, scrape: Scrape) -> Metric | None:
        """Its samples now; None if there are none."""
        samples = self.read(scrape)
        if samples is None:
            return None
        if isinstance(samples, HistogramCounts):
            return _histogram(self, samples)
        labels = [self.label] if self.label else []
        family: CounterMetricFamily | GaugeMetricFamily
        if self.kind == COUNTER:
            family = CounterMetricFamily(self.name, self.help, labels=labels)
        else:
            family = GaugeMetricFamily(self.name, self.help, labels=labels)
        if isinstance(samples, Mapping):
            for value, number in sorted(samples.items()):
                family.add_metric([value], number)
        else:
            family.add_metric([], samples)
        return family


def _histogram(row: MetricRow, counts: HistogramCounts) -> Metric:
    bounds = [*map(_bound, counts.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, counts.cumulative), strict=True))
    family = HistogramMetricFamily(row.name, row.help)
    family.add_metric([], buckets, counts.sum)
    return family


def _bound(seconds: float) -> str:
    """A bound as Prometheus' own clients write it."""
    return str(float(seconds))


class ScrapeCollector:
    """The metrics of one scrape, in the interface of ``prometheus_client``."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """All families with samples."""
        for row in METRICS:
            family = row.family(self._scrape)
            if family is not None:
                yield family
        yield from _PROCESS.collect()


_PROCESS = ProcessCollector(registry=None)


def process_rows() -> list[MetricRow]:
    """The metrics that Prometheus' own client adds, with their values now."""
    return [
        MetricRow(
            sample.name,
            COUNTER if family.type == "counter" else GAUGE,
            family.documentation,
            _always(sample.value),
        )
        for family in _PROCESS.collect()
        for sample in family.samples
    ]


def _always(value: float) -> Callable[[Scrape], Samples]:
    return lambda _: value


def _flag(value: object) -> float:
    return 1.0 if value else 0.0


def _closed(scrape: Scrape) -> dict[str, float]:
    sums: Counter[str] = Counter(dict.fromkeys(_CLOSE_REASONS, 0))
    for reason, count in scrape.sessions.closed.items():
        sums[reason if reason in _CLOSE_REASONS else OTHER] += count
    return {reason: float(count) for reason, count in sums.items()}


def _counts(counts: Mapping[str, int], *left_out: str) -> dict[str, float]:
    return {name: float(count) for name, count in counts.items() if name not in left_out}


def _newest_runs(scrape: Scrape) -> dict[str, float] | None:
    """When a job of each name last succeeded."""
    if scrape.lake is None:
        return None
    newest: dict[str, float] = {}
    for entry in scrape.lake.maintenance:
        if entry.finished_at is not None and entry.outcome in ("done", "idle"):
            at = entry.finished_at.timestamp()
            newest[entry.job] = max(at, newest.get(entry.job, 0.0))
    return newest


def _engine_bytes(scrape: Scrape, read: Callable[[EngineMemory], int]) -> float | None:
    return None if scrape.engines is None else float(sum(map(read, scrape.engines)))


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))


def _versions(scrape: Scrape) -> dict[str, float]:
    return {f"{scrape.view.version}": 1.0}


def _waiters(scrape: Scrape) -> float:
    return _sum(len(status.waiters) for status in scrape.view.lake.writers())


METRICS = (
    # ---- the server ----------------------------------------------------------------------------
    MetricRow(
        "swanlake_build_info", GAUGE, "1, with the version of the server.", _versions, "version"
    ),
    MetricRow(
        "swanlake_start_time_seconds",
        GAUGE,
        "When the server started, in seconds since 1970.",
        lambda s: s.view.started_at,
    ),
    MetricRow(
        "swanlake_accepting",
        GAUGE,
        "1 while the server accepts statements, 0 while it starts or drains.",
        lambda s: _flag(s.view.state() is ServerState.ACCEPTING),
    ),
    MetricRow(
        "swanlake_ready",
        GAUGE,
        "1 if /readyz answers 200.",
        lambda s: _flag(not s.view.not_ready_reasons),
    ),
    MetricRow(
        "swanlake_health_ok",
        GAUGE,
        "1 if the last check of this part of the server succeeded.",
        lambda s: {check.name: _flag(check.is_ok) for check in s.view.health.report().checks},
        "check",
    ),
    # ---- sessions and statements ---------------------------------------------------------------
    MetricRow("swanlake_sessions", GAUGE, "Open sessions.", lambda s: s.sessions.active),
    MetricRow(
        "swanlake_sessions_limit",
        GAUGE,
        "The setting max_sessions.",
        lambda s: s.view.settings.max_sessions,
    ),
    MetricRow(
        "swanlake_sessions_created_total", COUNTER, "Sessions opened.", lambda s: s.sessions.created
    ),
    MetricRow(
        "swanlake_sessions_closed_total", COUNTER, "Sessions closed, by reason.", _closed, "reason"
    ),
    MetricRow(
        "swanlake_statements_running",
        GAUGE,
        "Statements that execute, deliver rows, or wait.",
        lambda s: len(s.view.registry.running()),
    ),
    MetricRow(
        "swanlake_statements_total",
        COUNTER,
        "Statements that ended, by outcome: ok, or the identifier of the error.",
        lambda s: _counts(s.statements.outcomes.as_dict()),
        "outcome",
    ),
    MetricRow(
        "swanlake_statement_duration_seconds",
        HISTOGRAM,
        "From the arrival of a statement until the server was done with it.",
        lambda s: s.statements.seconds.read(),
    ),
    MetricRow(
        "swanlake_statement_rows_total",
        COUNTER,
        "Rows that statements returned or changed.",
        lambda s: s.statements.rows.as_dict()["rows"],
    ),
    MetricRow(
        "swanlake_results_waiting",
        GAUGE,
        "Results that no client has fetched yet.",
        lambda s: s.view.registry.results_waiting,
    ),
    MetricRow(
        "swanlake_lake_writes_total",
        COUNTER,
        "Writes to the lake, by how they ran: native, by the extension, or repeated.",
        lambda s: _counts(s.view.registry.services.writes.as_dict()),
        "path",
    ),
    MetricRow(
        "swanlake_lake_reads_total",
        COUNTER,
        "Queries answered from the metadata alone, from files too, or repeated by the engine.",
        lambda s: _counts(s.view.registry.services.reads.as_dict()),
        "path",
    ),
    # ---- the queue -----------------------------------------------------------------------------
    MetricRow(
        "swanlake_queue_rows",
        GAUGE,
        "Rows in the queue, by table.",
        lambda s: s.by_table(lambda status: status.rows),
        "table",
    ),
    MetricRow(
        "swanlake_queue_bytes",
        GAUGE,
        "Bytes on disk in the queue, by table.",
        lambda s: s.by_table(lambda status: status.bytes),
        "table",
    ),
    MetricRow(
        "swanlake_queue_limit_bytes",
        GAUGE,
        "The setting duckling_queue_max_bytes.",
        lambda s: s.view.queue.settings.max_bytes,
    ),
    MetricRow(
        "swanlake_queue_segments",
        GAUGE,
        "Segments in the queue.",
        lambda s: _sum(status.segments for status in s.queue),
    ),
    MetricRow(
        "swanlake_queue_oldest_age_seconds",
        GAUGE,
        "Age of the oldest row in the queue; 0 if it is empty.",
        lambda s: max((status.oldest_seconds for status in s.queue), default=0.0),
    ),
    MetricRow(
        "swanlake_queue_memory_bytes",
        GAUGE,
        "Rows of inserts in memory that are not on disk yet.",
        lambda s: s.view.queue.memory_bytes,
    ),
    MetricRow(
        "swanlake_queue_paused",
        GAUGE,
        "1 while no flush starts.",
        lambda s: _flag(s.view.queue.is_paused),
    ),
    MetricRow(
        "swanlake_queue_failing_tables",
        GAUGE,
        "Tables whose last flush failed.",
        lambda s: _sum(status.failures > 0 for status in s.queue),
    ),
    MetricRow(
        "swanlake_queue_rows_inserted_total",
        COUNTER,
        "Rows that were acknowledged.",
        lambda s: s.view.queue.counters.inserts.as_dict()["rows"],
    ),
    MetricRow(
        "swanlake_queue_inserts_refused_total",
        COUNTER,
        "Inserts that the queue could not store: it was full, or its disk failed.",
        lambda s: s.view.queue.counters.inserts.as_dict()["refused"],
    ),
    MetricRow(
        "swanlake_queue_ack_duration_seconds",
        HISTOGRAM,
        "From an insert into the queue until its rows are on disk.",
        lambda s: s.view.queue.counters.ack_seconds.read(),
    ),
    MetricRow(
        "swanlake_queue_flushes_total",
        COUNTER,
        "Flushes of a table, by result: done or failed.",
        lambda s: _counts(
            s.view.queue.counters.flushes.as_dict(), "rows", "bytes", "files", "dead_letters"
        ),
        "result",
    ),
    MetricRow(
        "swanlake_queue_flush_duration_seconds",
        HISTOGRAM,
        "From the start of a flush until its commit.",
        lambda s: s.view.queue.counters.flush_seconds.read(),
    ),
    MetricRow(
        "swanlake_queue_rows_flushed_total",
        COUNTER,
        "Rows that flushes brought to the lake.",
        lambda s: s.view.queue.counters.flushes.as_dict()["rows"],
    ),
    MetricRow(
        "swanlake_queue_dead_letters",
        GAUGE,
        "Dead letters of all servers on the queue's directory.",
        lambda s: None if s.lake is None else len(s.lake.dead_letters),
    ),
    # ---- commits -------------------------------------------------------------------------------
    MetricRow(
        "swanlake_commits_total",
        COUNTER,
        "Commits by outcome: committed, exclusive (a transaction that the extension ended), or the "
        "identifier of the error.",
        lambda s: _counts(s.view.lake.commit_counters.outcomes.as_dict()),
        "outcome",
    ),
    MetricRow(
        "swanlake_commit_lock_wait_seconds",
        HISTOGRAM,
        "From the arrival of a writer until it has the commit lock.",
        lambda s: s.view.lake.commit_counters.wait_seconds.read(),
    ),
    MetricRow(
        "swanlake_commit_lock_hold_seconds",
        HISTOGRAM,
        "How long a writer holds the commit lock.",
        lambda s: s.view.lake.commit_counters.hold_seconds.read(),
    ),
    MetricRow(
        "swanlake_commit_lock_waiters", GAUGE, "Writers that wait for a commit lock.", _waiters
    ),
    # ---- the lake, the pipeline, memory --------------------------------------------------------
    MetricRow(
        "swanlake_catalogs",
        GAUGE,
        "Catalogs of the lake.",
        lambda s: None if s.lake is None else len(s.lake.catalogs),
    ),
    MetricRow(
        "swanlake_maintenance_last_success_timestamp_seconds",
        GAUGE,
        "When a maintenance job last ended without an error, in seconds since 1970, by job.",
        _newest_runs,
        "job",
    ),
    MetricRow(
        "swanlake_pipeline_ready",
        GAUGE,
        "1 if flushes and maintenance can run: Spark is ready, or they run inline.",
        lambda s: _flag(s.view.runner.status().state == "ready"),
    ),
    MetricRow(
        "swanlake_engines",
        GAUGE,
        "DuckDB instances, retired ones included.",
        lambda s: None if s.engines is None else len(s.engines),
    ),
    MetricRow(
        "swanlake_engine_memory_bytes",
        GAUGE,
        "Memory that DuckDB counts, of all instances.",
        lambda s: _engine_bytes(s, lambda engine: engine.total_bytes),
    ),
    MetricRow(
        "swanlake_engine_cache_bytes",
        GAUGE,
        "The part of it for schemas and statistics that DuckLake has read.",
        lambda s: _engine_bytes(s, lambda engine: engine.cached_bytes),
    ),
    MetricRow(
        "swanlake_result_memory_bytes",
        GAUGE,
        "Rows of results in memory that were not fetched yet.",
        lambda s: s.view.registry.result_bytes,
    ),
    MetricRow(
        "swanlake_caller_memory_bytes",
        GAUGE,
        "What is kept in memory for callers: results, and rows that they send.",
        lambda s: _sum(s.view.registry.services.memory.held().values()),
    ),
    MetricRow(
        "swanlake_caller_memory_limit_bytes",
        GAUGE,
        "The limit of it, as caller_memory_bytes sets it.",
        lambda s: s.view.registry.services.memory.limit,
    ),
    MetricRow(
        "swanlake_snapshot_cache_bytes",
        GAUGE,
        "What is remembered of tables to read them without the extension.",
        lambda s: s.view.registry.services.snapshots.bytes,
    ),
    MetricRow(
        "swanlake_snapshot_cache_limit_bytes",
        GAUGE,
        "The setting snapshot_cache_bytes.",
        lambda s: s.view.settings.snapshot_cache_bytes,
    ),
    MetricRow(
        "swanlake_arrow_memory_bytes",
        GAUGE,
        "What Arrow has allocated.",
        lambda s: float(pa.total_allocated_bytes()),
    ),
)

#: What Prometheus' own client adds for a process.
PROCESS_METRICS: Mapping[str, str] = {
    "process_virtual_memory_bytes": "Virtual memory.",
    "process_resident_memory_bytes": "Physical memory.",
    "process_start_time_seconds": "When the process started, in seconds since 1970.",
    "process_cpu_seconds_total": "CPU time.",
    "process_open_fds": "Open files and sockets.",
    "process_max_fds": "The limit of them.",
}
