"""Mechanisms that several packages share: waiting, back-off, workers, caches, files, memory."""

__all__ = [
    "addresses",
    "arrow_memory",
    "arrow_sizes",
    "backoff",
    "counts",
    "disk",
    "fair_shares",
    "flat_table",
    "free_list",
    "histogram",
    "lru_cache",
    "memory",
    "memory_budget",
    "subprocess_rpc",
    "tracing",
    "waiting",
    "worker_threads",
]
