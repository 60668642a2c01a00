"""Options, requests and results, which pools, sessions and writers share.

Other packages import the names of ``swanlake.client``.
"""

__all__: list[str] = []
