"""The status server: HTTP in the server process, for browsers, probes and monitoring.

``http`` runs uvicorn in a thread of its own; ``app`` builds the application from the routes of its
modules. ``view`` is what they read of the server, ``document`` describes it. ``guard`` checks every
request, ``logins`` finds its caller. Handlers do not block: they answer from snapshots, or use
``blocking``. ``health`` works without the HTTP server, too.
"""

__all__ = ["checks", "document", "health", "http", "otlp", "statements", "view"]
