"""Statements on lake tables that run without DuckLake's extension.

``NativeExecutor`` is the entrance. It runs INSERT, COPY FROM and CREATE TABLE, and it runs queries,
UPDATE and DELETE of tables that have only inlined rows. It evaluates expressions with DuckDB,
writes files before any lock is taken, and commits through ``swanlake.lake``. A statement that it
does not understand completely goes to the extension, with nothing done. ``NativeParts`` of the
services says which statements are native at all.
"""

__all__: list[str] = []
