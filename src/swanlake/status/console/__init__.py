"""The console: pages for people.

``static`` holds the pages: HTML, CSS and modules, which need no build. ``documents`` makes the data
of each page, ``feed`` keeps and streams it. ``changes`` is what buttons do. ``sql`` runs
statements, ``downloads`` streams their results.
"""

from swanlake.status.console.routes import routes

__all__ = ["routes"]
