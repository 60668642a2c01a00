"""Traces over OTLP, from the client's span to the commit."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.server_process import ServerProcess
from tests.waiting import eventually


class Collector:
    """A collector that keeps the spans that it gets."""

    def __init__(self) -> None:
        spans: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self.spans = spans
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
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


def attributes(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


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
