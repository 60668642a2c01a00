"""Mechanisms that several packages share: waiting, back-off, workers, caches, files, memory."""

__all__ = [
    "addresses",
    "backoff",
    "disk",
    "free_list",
    "lru_cache",
    "memory",
    "subprocess_rpc",
    "waiting",
    "worker_threads",
]
