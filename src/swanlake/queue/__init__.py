"""The Duckling Queue: small writes become durable at once and reach the lake in large files.

Rows flow through the sub-packages in this order: ``ingest`` accepts them, ``storage`` keeps them in
segment files, ``flush`` commits them to the lake. ``coordinator`` decides when to seal and flush,
``director`` carries that out, and ``service`` is the entry point.
"""

__all__ = ["batch_ids", "flush", "names", "service", "settings", "status", "storage"]
