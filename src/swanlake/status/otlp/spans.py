"""Sends traces to an OpenTelemetry collector."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from swanlake._internal.tracing import SpanRef, Trace
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.flush.flusher import FlushReport
from swanlake.sessions.run import Run
from swanlake.status.otlp.collector import Signal
from swanlake.status.otlp.delivery import DeliveryLog
from swanlake.status.otlp.origin import SCOPE, read_resource

_FLUSH_SECONDS = 2.0


class _SpanExporter(OTLPSpanExporter):
    """Logs failures once, in place of each."""

    def __init__(self, endpoint: str | None) -> None:
        super().__init__(endpoint=endpoint)
        self._delivery = DeliveryLog(Signal.TRACES)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self._delivery.note(result is SpanExportResult.SUCCESS)
        return result


class SpanSender:
    """Turns ended statements and flushes into spans, and sends them from a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """Without an endpoint, the variables of OpenTelemetry name it."""
        self._resource = read_resource()
        exporter = _SpanExporter(endpoint=Signal.TRACES.url(endpoint))
        self._processor = BatchSpanProcessor(exporter)

    def send_statement(self, run: Run) -> None:
        """Sends the spans of a statement that has ended."""
        if run.trace is None or not run.sql:
            return
        kind = "" if run.statement is None else run.statement.type.name
        attributes = {
            "db.system.name": "swanlake",
            "db.operation.name": kind,
            "db.response.returned_rows": run.rows,
            "swanlake.query_id": run.query_id,
            "swanlake.session_id": run.session.id,
            "enduser.id": run.session.identity,
        }
        error = None if run.error is None else getattr(run.error, "identifier", "INTERNAL_ERROR")
        self._send(run.trace, f"statement {kind}".strip(), SpanKind.SERVER, attributes, error)

    def send_flush(self, trace: Trace, table: TableRef, report: FlushReport | None) -> None:
        """Sends the spans of a flush that has ended; without a report it failed."""
        attributes: dict[str, Any] = {"db.collection.name": table.full_name}
        if report is not None:
            attributes |= {"swanlake.rows": report.rows, "swanlake.files": report.files}
        error = "FLUSH_FAILED" if report is None else None
        self._send(trace, "flush", SpanKind.CONSUMER, attributes, error)

    def close(self) -> None:
        """Sends what is left, within two seconds."""
        # In a thread: while a collector hangs, it takes longer than it was told.
        closing = threading.Thread(
            target=self._processor.shutdown, name="swanlake-spans-close", daemon=True
        )
        closing.start()
        closing.join(_FLUSH_SECONDS)

    def _send(
        self,
        trace: Trace,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        error: str | None,
    ) -> None:
        failed = Status(StatusCode.ERROR)
        for step in trace.steps:
            span = ReadableSpan(
                step.name,
                _context(SpanRef(trace.ref.trace_id, secrets.randbits(63) + 1)),
                _context(trace.ref),
                self._resource,
                status=failed if step.failed else Status(),
                start_time=step.started,
                end_time=step.ended,
                instrumentation_scope=SCOPE,
            )
            self._processor.on_end(span)
        span = ReadableSpan(
            name,
            _context(trace.ref),
            None if trace.parent is None else _context(trace.parent, is_remote=True),
            self._resource,
            attributes if error is None else {**attributes, "error.type": error},
            links=[Link(_context(ref)) for ref in trace.links],
            kind=kind,
            status=Status() if error is None else Status(StatusCode.ERROR, error),
            start_time=trace.started,
            end_time=time.time_ns(),
            instrumentation_scope=SCOPE,
        )
        self._processor.on_end(span)


def _context(ref: SpanRef, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(ref.trace_id, ref.span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))
