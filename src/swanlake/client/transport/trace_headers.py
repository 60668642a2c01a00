"""The caller's trace, for the server to continue."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from swanlake.protocol import Headers

_NO_HEADERS: Mapping[str, str] = {}


def trace_headers() -> Mapping[str, str]:
    """The header with the current span; none if the program does not use OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _NO_HEADERS
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return _NO_HEADERS
    ids = f"{context.trace_id:032x}-{context.span_id:016x}"
    return {Headers.TRACEPARENT: f"00-{ids}-{context.trace_flags:02x}"}
