"""Rows on their way between clients and statements.

``stream`` delivers a result batch by batch, in the Arrow types of ``wire`` and with the metadata of
``columns``; ``pending`` is a result that is still computed; ``uploads`` receives rows from a
client. What does not fit into memory is in a ``spill`` buffer.
"""

__all__ = ["columns", "pending", "stream"]
