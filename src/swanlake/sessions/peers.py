"""Finds the clients that are still connected; the kernel knows, Flight does not say."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
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


def find_connection(port: int, peer: str) -> str | None:
    """The inode of the socket by which a peer is connected to a local port; None if it is not.

    Looks at the sockets of this process first. There are few of them, but the kernel takes
    milliseconds to list the connections of the machine.
    """
    for descriptor in _descriptors():
        with suppress(OSError):  # others open and close descriptors meanwhile
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with _duplicate(descriptor) as connection:
                if _is_connection(connection, port, peer):
                    return str(os.fstat(connection.fileno()).st_ino)
    return (connected_peers(port) or {}).get(peer)


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return []


def _duplicate(descriptor: int) -> socket.socket:
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # it is no socket any more
        os.close(copy)
        raise


def _is_connection(connection: socket.socket, port: int, peer: str) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    host, remote_port = connection.getpeername()[:2]
    host = host.removeprefix("::ffff:")
    name = f"[{host}]:{remote_port}" if ":" in host else f"{host}:{remote_port}"
    return name == peer and connection.getsockname()[1] == port


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
