"""Rows on their way between clients and statements.

``stream`` delivers a result batch by batch, in the Arrow types of ``wire``; ``uploads`` receives
rows from a client. Both keep what does not fit into memory in a ``spill`` buffer.
"""

__all__ = ["stream"]
