"""Queries on a catalog: tables, live files, snapshots, inlined rows, and a cache of tables."""

__all__ = ["inlined_scan", "listing", "live_files", "survey", "table_cache"]
