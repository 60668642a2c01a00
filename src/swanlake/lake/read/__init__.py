"""Queries on a catalog: tables, live files, snapshots, inlined rows, and caches of them.

``survey`` and ``browse`` count and describe, for maintenance and for people.
"""

__all__ = [
    "browse",
    "inlined_scan",
    "listing",
    "live_files",
    "pruning",
    "snapshot_cache",
    "survey",
    "table_cache",
]
