"""The client's API for tasks: pool, sessions, statements, writer.

Every connection makes its calls in its own thread, so the event loop never blocks and no executor
is needed. A cancelled task leaves at once; its statement is stopped in the background, and the
connection is reused only after the statement has ended.

``make sync`` generates ``swanlake.client.sync`` from this package. Other packages import the names
of ``swanlake.client``.
"""

__all__: list[str] = []
