"""Token files, and whether a server accepts a token."""

from __future__ import annotations

from pathlib import Path

from swanlake.client import FlightSQLClient
from swanlake.errors import NotAuthenticated


def write_tokens(home: Path, **tokens: str) -> None:
    """Writes token files by name, as private as the server requires."""
    directory = home / "tokens"
    directory.mkdir(parents=True, exist_ok=True)
    for name, token in tokens.items():
        file = directory / name
        file.touch(mode=0o600)
        file.write_bytes(token.encode(errors="surrogateescape"))


def is_accepted(url: str, token: str) -> bool:
    """True if a server accepts the bearer token."""
    try:
        with FlightSQLClient(url, token=token) as client:
            return bool(client.status()["state"] == "accepting")
    except NotAuthenticated:
        return False
