"""Flush: segments become Parquet files of the lake, or dead letters that can be replayed.

Spark workers import ``units``, which needs only duckdb, pyarrow and crc32c.
"""

__all__ = ["dead_letters", "flusher", "journal", "units"]
