"""Writers: ``values`` and ``rows`` convert, ``batching`` decides without I/O, ``sender`` sends.

The writers themselves are in ``swanlake.client.aio`` and ``swanlake.client.sync``. Other packages
import the names of ``swanlake.client``.
"""

__all__: list[str] = []
