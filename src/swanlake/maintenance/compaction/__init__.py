"""Compaction: ``plan`` decides, ``units`` write new files, ``run`` commits them.

Spark workers import ``units``, which needs only duckdb and pyarrow.
"""

__all__ = ["plan"]
