"""Traces and metrics for an OpenTelemetry collector, over OTLP and HTTP.

``collector`` knows whether there is one. ``spans`` and ``metrics`` need the optional package, so
only a server with a collector imports them.
"""

__all__ = ["collector", "metrics", "spans"]
