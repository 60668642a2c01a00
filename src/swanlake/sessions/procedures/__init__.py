"""The procedures of the server: ``CALL swanlake_…`` and ``CALL duckling_queue_…``.

``registry`` finds a procedure by name and runs it for a session.
"""

__all__ = ["registry"]
