"""Sessions: one DuckDB connection each, with its statements, transaction, results and limits.

``registry`` finds and closes the sessions of a server. ``session`` is one of them: it lets one
statement run at a time. ``run`` is a statement while it runs, with its deadline and cancellation.
``execution`` decides how a statement runs and runs it; ``native``, ``queue`` and ``procedures`` are
the ways that do not leave everything to DuckDB. ``results`` delivers rows to clients.
"""

__all__ = [
    "activity",
    "execution",
    "ids",
    "native",
    "peers",
    "procedures",
    "registry",
    "results",
    "run",
    "services",
    "session",
]
