"""Traces and metrics over OTLP: one trace from the client's span to the commit."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.status.metrics import METRICS, PROCESS_METRICS
from tests.server_process import ServerProcess
from tests.waiting import eventually


class Collector:
    """A collector that keeps the spans and metrics that it gets."""

    def __init__(self) -> None:
        spans: list[Any] = []
        #: Requests with metrics, also those that were not accepted.
        exports: list[Any] = []
        resources: dict[str, dict[str, str]] = {}
        answering = threading.Event()
        answering.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/metrics":
                    [metrics] = ExportMetricsServiceRequest.FromString(body).resource_metrics
                    exports.append({each.name: each for each in metrics.scope_metrics[0].metrics})
                    resources["metrics"] = attributes(metrics.resource)
                else:
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        resources["spans"] = attributes(resource.resource)
                        for scope in resource.scope_spans:
                            spans.extend(scope.spans)
                answering.wait()
                self.send_response(collector.answer)
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self.spans = spans
        self.exports = exports
        self.resources = resources
        #: While it is not set, requests get no answer.
        self.answering = answering
        #: The status of the answers.
        self.answer = 200
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> list[Any]:
        return [span for span in list(self.spans) if span.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def attributes(owner: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in owner.attributes}


@pytest.mark.parametrize("by_setting", [True, False])
def test_one_trace_leads_from_the_client_to_the_commit(
    tmp_path: Path, collector: Collector, by_setting: bool
) -> None:
    name = "SWANLAKE_OTLP_ENDPOINT" if by_setting else "OTEL_EXPORTER_OTLP_ENDPOINT"
    environment = {name: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    tracer = TracerProvider().get_tracer("tests")
    with ServerProcess(tmp_path / "home", **environment) as server:
        with FlightSQLClient(server.url) as client:
            client.execute("CREATE TABLE t (i INTEGER)")
            with tracer.start_as_current_span("request") as span:
                client.execute("INSERT INTO t VALUES (1)")
                client.execute("INSERT INTO duckling_queue.t VALUES (2)")
                with pytest.raises(SwanLakeError):
                    client.execute("SELECT * FROM missing")
            client.execute("CALL duckling_queue_flush()")
        context = span.get_span_context()
        trace_id = context.trace_id.to_bytes(16, "big")
        eventually(lambda: collector.named("flush"))
        eventually(lambda: len(_of_trace(collector, trace_id)) >= 5)
    spans = {span.span_id: span for span in _of_trace(collector, trace_id)}
    statements = [span for span in spans.values() if span.name.startswith("statement")]
    assert {span.parent_span_id for span in statements} == {context.span_id.to_bytes(8, "big")}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
    by_name = {span.name: span for span in spans.values()}
    assert spans[by_name["commit"].parent_span_id].name == "statement INSERT"
    queued = spans[by_name["queue"].parent_span_id]
    assert queued.name == "statement INSERT"
    [failed] = [span for span in statements if span.status.code == 2]
    assert attributes(failed)["error.type"]
    [flush] = collector.named("flush")
    assert attributes(flush)["db.collection.name"] == "swanlake.main.t"
    assert [link.span_id for link in flush.links] == [queued.span_id]
    commits = [span for span in collector.named("commit") if span.parent_span_id == flush.span_id]
    assert len(commits) == 1
    assert commits[0].trace_id == flush.trace_id


def _of_trace(collector: Collector, trace_id: bytes) -> list[Any]:
    return [span for span in list(collector.spans) if span.trace_id == trace_id]


def test_trace_that_the_client_does_not_record_is_not_sent(
    tmp_path: Path, collector: Collector
) -> None:
    environment = {"SWANLAKE_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    unsampled = NonRecordingSpan(SpanContext(7, 8, False, TraceFlags(0)))
    with ServerProcess(tmp_path / "home", **environment) as server:
        with FlightSQLClient(server.url) as client:
            with use_span(unsampled):
                client.execute("SELECT 1 AS unsampled")
            client.execute("SELECT 1 AS sampled")
        eventually(lambda: collector.named("statement SELECT"))
        assert server.stop() == 0
    assert len(collector.named("statement SELECT")) == 1


def test_server_without_a_collector_works_on(tmp_path: Path) -> None:
    environment = {"SWANLAKE_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with ServerProcess(tmp_path / "home", **environment) as server:
        with FlightSQLClient(server.url) as client:
            client.execute("SELECT 1")
        assert server.stop() == 0


OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "100"}


def numbers(metric: Any) -> dict[str, float]:
    """The values of a sum or a gauge, by the value of their attribute."""
    points = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
    return {"".join(attributes(point).values()): point.as_double for point in points}


def use(server: ServerProcess) -> None:
    """Two rows in the queue, and a statement that fails."""
    with FlightSQLClient(server.url) as client:
        client.execute("CREATE TABLE t (i INTEGER)")
        client.execute("INSERT INTO duckling_queue.t VALUES (1), (2)")
        with pytest.raises(SwanLakeError):
            client.execute("SELECT * FROM missing")


def test_all_metrics_are_exported(tmp_path: Path, collector: Collector) -> None:
    environment = {"SWANLAKE_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "lake-7", **OFTEN}
    with ServerProcess(tmp_path / "home", **environment) as server:
        use(server)
        declared = {row.name: row.kind for row in METRICS}
        declared.pop("swanlake_maintenance_last_success_timestamp_seconds")  # no job has run
        eventually(lambda: collector.exports and {*declared} <= collector.exports[-1].keys())
        eventually(lambda: numbers(collector.exports[-1]["swanlake_ready"]) == {"": 1})
        eventually(lambda: collector.named("statement INSERT"))
    metrics = collector.exports[-1]
    assert metrics.keys() == declared.keys() | PROCESS_METRICS.keys()
    for name, kind in declared.items():
        field = metrics[name].WhichOneof("data")
        assert field == {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[kind]
    assert numbers(metrics["swanlake_queue_rows"]) == {"swanlake.main.t": 2}
    assert numbers(metrics["swanlake_catalogs"]) == {"": 1}
    assert numbers(metrics["swanlake_engine_memory_bytes"])[""] > 0
    assert numbers(metrics["swanlake_caller_memory_limit_bytes"])[""] > 0
    assert numbers(metrics["swanlake_health_ok"])["queue"] == 1
    assert collector.resources["metrics"] == collector.resources["spans"]
    assert collector.resources["metrics"]["service.name"] == "lake-7"


def test_last_counts_and_spans_are_sent_at_the_stop(tmp_path: Path, collector: Collector) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{collector.url}/v1/metrics",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
        "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",
    }
    with ServerProcess(tmp_path / "home", **environment) as server:
        use(server)
        assert server.stop() == 0
    [metrics] = collector.exports
    assert len(collector.named("statement INSERT")) == 1
    rows = metrics["swanlake_queue_rows_inserted_total"].sum
    assert rows.is_monotonic
    assert rows.aggregation_temporality == 2  # cumulative
    assert rows.data_points[0].as_double == 2
    assert 0 < rows.data_points[0].start_time_unix_nano < rows.data_points[0].time_unix_nano
    outcomes = numbers(metrics["swanlake_statements_total"])
    assert outcomes.pop("ok") >= 2
    assert sum(outcomes.values()) == 1
    duration = metrics["swanlake_statement_duration_seconds"]
    assert duration.unit == "s"
    [point] = duration.histogram.data_points
    assert duration.histogram.aggregation_temporality == 2
    assert point.count == sum(point.bucket_counts) >= 3
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1


def test_failing_collector_is_logged_once_and_tried_again(
    tmp_path: Path, collector: Collector
) -> None:
    collector.answer = 400
    environment = {"SWANLAKE_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_EXPORTER": "none", **OFTEN}
    with ServerProcess(tmp_path / "home", **environment) as server:
        with FlightSQLClient(server.url) as client:
            eventually(lambda: len(collector.exports) >= 3)
            client.execute("SELECT 1")
        collector.answer = 200
        eventually(lambda: "the collector takes metrics again" in server.log_text)
        assert server.stop() == 0
    assert server.log_text.count("metrics cannot be sent to the collector") == 1
    assert server.log_text.count("Failed to export") == 1
    assert not collector.spans


def test_hanging_collector_disturbs_neither_statements_nor_the_stop(
    tmp_path: Path, collector: Collector
) -> None:
    collector.answering.clear()
    never = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
    environment = {"SWANLAKE_OTLP_ENDPOINT": collector.url, **never, **OFTEN}
    with ServerProcess(tmp_path / "home", **environment) as server:
        eventually(lambda: collector.exports)
        with FlightSQLClient(server.url) as client:
            assert client.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]
        assert server.stop() == 0
        assert "stopped" in server.log_text
    assert len(collector.exports) == 1
