"""Where catalog metadata is stored: PostgreSQL or SQLite behind one interface.

``base`` is the interface to all catalogs and ``store`` that to one. ``local`` serves the metadata
in this process; for SQLite it runs in the child process of ``sqlite_worker``. ``location`` tells an
engine how to attach a catalog.
"""

__all__ = ["base", "location", "passfile"]
