"""Finds the clients that are still connected; the kernel knows, Flight does not say."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED = "01"
_INODE_COLUMN = 9
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


def connected_peers(port: int) -> dict[str, str] | None:
    """The peers connected to a local port: ``ip:port`` and the inode of the connection's socket.

    The inode tells a connection from a later one of the same address. None if the kernel has no
    such tables.
    """
    peers: dict[str, str] = {}
    readable = False
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        readable = True
        for line in lines:
            fields = line.split()
            local, remote, state = fields[1:4]
            if state == _ESTABLISHED and int(local.rsplit(":", 1)[1], 16) == port:
                peers[_address(remote)] = fields[_INODE_COLUMN]
    return peers if readable else None


def _address(text: str) -> str:
    """``0100007F:C350`` is ``127.0.0.1:50000``: words in host order, the port in hexadecimal."""
    host, port = text.split(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if raw[:12] == _IPV4_IN_IPV6:
        raw = raw[12:]
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
