"""Says once that a collector does not take what is sent, and once that it does again.

OpenTelemetry's exporters log several lines for each attempt that fails.
"""

from __future__ import annotations

import logging
import re

from swanlake.status.otlp.collector import Signal

log = logging.getLogger("swanlake.status")

_EXPORTERS = {
    Signal.TRACES: "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    Signal.METRICS: "opentelemetry.exporter.otlp.proto.http.metric_exporter",
}
#: The part of a URL that may have a key in it.
_QUERY = re.compile(r"\?\S+")


class DeliveryLog(logging.Handler):
    """Takes what the exporter of a signal logs, and logs the changes only."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self._signal = signal
        self._is_failing = False
        #: The first message of the current attempt.
        self._reason = ""
        exporter = logging.getLogger(_EXPORTERS[signal])
        exporter.handlers[:] = [self]
        exporter.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the first message: the later ones say only that retries failed as well."""
        self._reason = self._reason or _QUERY.sub("?…", record.getMessage())

    def note(self, is_delivered: bool, reason: object = "") -> None:
        """An attempt has ended."""
        reason, self._reason = reason or self._reason or "no reason given", ""
        if is_delivered and self._is_failing:
            log.info("the collector takes %s again", self._signal)
        elif not is_delivered and not self._is_failing:
            log.warning(
                "%s cannot be sent to the collector; the server tries again and logs no "
                "further failures: %s",
                self._signal,
                reason,
            )
        self._is_failing = not is_delivered
