"""Spans and metrics of a pool in a program with OpenTelemetry."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.server_process import ServerProcess

PROGRAM = """
import json, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
tracing = TracerProvider()
tracing.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracing)
metrics.set_meter_provider(MeterProvider([reader]))

import swanlake

with swanlake.Pool(sys.argv[1], name="observed", min_idle=1, max_size=2) as pool:
    pool.query("SELECT 1")
    try:
        pool.query("SELECT error('secret value')")
    except swanlake.QueryError:
        pass
    found = {
        metric.name: [dict(point.attributes) for point in metric.data.data_points]
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
finished = spans.get_finished_spans()
print(json.dumps({
    "spans": [[one.name, dict(one.attributes), one.status.status_code.name] for one in finished],
    "nested": all(span.parent for span in finished if span.name == "swanlake.acquire"),
    "metrics": found,
}))
"""


def test_spans_and_metrics(server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    names = [name for name, _, _ in seen["spans"]]
    assert names == ["swanlake.acquire", "swanlake.query", "swanlake.query"]  # one had to wait
    assert seen["nested"]
    assert [status for name, _, status in seen["spans"] if name == "swanlake.query"] == [
        "UNSET",
        "ERROR",
    ]
    pool_name = "db.client.connection.pool.name"
    assert all(attributes[pool_name] == "observed" for _, attributes, _ in seen["spans"])
    states = {
        point["db.client.connection.state"]
        for point in seen["metrics"]["db.client.connection.count"]
    }
    assert states == {"idle", "used"}
    assert seen["metrics"]["db.client.connection.wait_time"]
