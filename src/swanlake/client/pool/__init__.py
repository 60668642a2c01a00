"""Connection pools: ``core`` decides without I/O, ``runtime`` acts, ``base`` is the public part.

The pools themselves are in ``swanlake.client.aio`` and ``swanlake.client.sync``. Other packages
import the names of ``swanlake.client``.
"""

__all__: list[str] = []
