"""Token files for servers in tests."""

from __future__ import annotations

from pathlib import Path


def write_tokens(home: Path, **tokens: str) -> None:
    """Writes token files by name, as private as the server requires."""
    directory = home / "tokens"
    directory.mkdir(parents=True, exist_ok=True)
    for name, token in tokens.items():
        file = directory / name
        file.touch(mode=0o600)
        file.write_bytes(token.encode(errors="surrogateescape"))
