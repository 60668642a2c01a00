"""Queries on a catalog: tables, live files, snapshots, inlined rows, and caches of them."""

__all__ = [
    "inlined_scan",
    "listing",
    "live_files",
    "pruning",
    "snapshot_cache",
    "survey",
    "table_cache",
]
