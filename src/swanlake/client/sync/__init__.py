"""The client's API for threads: pool, sessions, statements, writer.

Generated from ``swanlake.client.aio`` by ``make sync``, all but ``waiting``. Other packages import
the names of ``swanlake.client``.
"""

__all__: list[str] = []
