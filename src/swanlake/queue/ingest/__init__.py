"""Ingest: group commit of concurrent inserts, and deduplication of batches sent again."""

__all__: list[str] = []
