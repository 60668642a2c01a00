"""Credentials of callers, as a lake stores them for all its servers.

They hold no secret that a caller sends: tokens are stored as digests and passwords as verifiers.
What they mean is decided in ``swanlake.access``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum


class CredentialKind(StrEnum):
    """How a caller proves its identity."""

    TOKEN = "token"
    USER = "user"


@dataclass(frozen=True)
class Credential:
    """A stored credential; its name is that of the caller."""

    kind: CredentialKind
    name: str
    #: What the secret is checked against.
    verifier: str = field(repr=False)
    role: str
    #: As ``pattern=privilege``.
    grants: tuple[str, ...] = ()
    expires_at: datetime | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class StoredCredentials:
    """All credentials of a lake, and the key that signs login tokens."""

    credentials: Sequence[Credential]
    signing_key: bytes = field(repr=False)
