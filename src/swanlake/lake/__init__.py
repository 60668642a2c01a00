"""The lake: DuckLake catalogs, and the one way to commit to them.

``lake`` opens a lake and lists its catalogs; ``catalog`` reads and writes one. Below them,
``metastore`` stores the metadata in PostgreSQL or SQLite, ``commit`` is the commit protocol,
``read`` queries a catalog, ``files`` writes Parquet and inlined rows, ``lifecycle`` handles forks,
expiry and file clean-up, and ``model`` holds the plain values that all of them share.
"""

__all__ = ["catalog", "commit", "files", "lake", "lifecycle", "metastore", "model", "read"]
