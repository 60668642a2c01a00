"""Whether a collector is configured, and where; imports nothing of OpenTelemetry."""

from __future__ import annotations

import os
from enum import StrEnum


class Signal(StrEnum):
    """What a collector can get."""

    TRACES = "traces"
    METRICS = "metrics"

    def is_sent(self, endpoint: str) -> bool:
        """True if the setting ``otlp_endpoint`` or OpenTelemetry's variables name a collector."""
        if os.environ.get(f"OTEL_{self.name}_EXPORTER", "").strip().lower() == "none":
            return False
        variables = f"OTEL_EXPORTER_OTLP_{self.name}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
        return bool(endpoint) or any(os.environ.get(name) for name in variables)

    def url(self, endpoint: str) -> str | None:
        """Where it is sent; None without the setting: then the variables name it."""
        return f"{endpoint.rstrip('/')}/v1/{self}" if endpoint else None
