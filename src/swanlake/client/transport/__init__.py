"""Flight SQL over pyarrow.flight: addresses, calls, connections, deadlines, errors.

Other packages import the names of ``swanlake.client``.
"""

__all__: list[str] = []
