"""Identifiers of sessions, statements and results."""

from __future__ import annotations

import secrets
from dataclasses import dataclass


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session: the same id of another identity is another session."""

    identity: str
    id: str
    #: True for an id taken from the peer's address; a header cannot name such a session.
    from_peer: bool = False

    def __str__(self) -> str:
        return f"{self.id} of {self.identity}"


def new_handle() -> bytes:
    """Sixteen random bytes, which cannot be guessed."""
    return secrets.token_bytes(16)


def peer_address(peer: str) -> str:
    """``ipv4:127.0.0.1:50000`` as gRPC writes it is ``127.0.0.1:50000``."""
    scheme, _, address = peer.partition(":")
    return address.replace("%5B", "[").replace("%5D", "]") if scheme in ("ipv4", "ipv6") else peer
