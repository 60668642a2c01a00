"""Mechanisms that several packages share: waiting, back-off, worker processes, caches, files."""

__all__ = ["backoff", "disk", "free_list", "lru_cache", "subprocess_rpc", "waiting"]
