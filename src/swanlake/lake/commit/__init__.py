"""The commit protocol: locks, conflict checks, and the metadata rows that a commit writes.

``protocol`` runs a commit; ``commit_queue`` orders the writers of one process in front of it. The
``plan_*`` modules turn operations into rows without I/O.
"""

__all__ = ["commit_queue", "protocol"]
