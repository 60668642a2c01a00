"""Segment transfer: remote workers fetch segments from the server with a grant."""

__all__ = ["fetch", "grants"]
