"""Mechanisms that several packages share: waiting, back-off, workers, caches, files."""

__all__ = [
    "backoff",
    "disk",
    "free_list",
    "lru_cache",
    "subprocess_rpc",
    "waiting",
    "worker_threads",
]
