"""The callers that the lake's credentials and the token files describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from swanlake.access import login_tokens
from swanlake.access.grant_text import parse_grants
from swanlake.access.identity import Identity, Role
from swanlake.access.login_tokens import Login
from swanlake.lake.model.credentials import Credential, CredentialKind, StoredCredentials


@dataclass(frozen=True)
class Caller:
    """A caller with a stored credential."""

    identity: Identity
    verifier: str = field(repr=False)
    expires_at: float

    def is_valid(self, now: float) -> bool:
        return now < self.expires_at


@dataclass(frozen=True)
class StoredCallers:
    """All callers of a lake at one moment."""

    #: By the digest of the token.
    tokens: Mapping[str, Caller]
    #: By name.
    users: Mapping[str, Caller]
    signing_key: bytes = field(repr=False)

    @classmethod
    def from_credentials(cls, stored: StoredCredentials) -> StoredCallers:
        """Indexes the rows; raises InvalidRequest for a role or grant of a newer version."""
        by_kind: dict[CredentialKind, list[Caller]] = {kind: [] for kind in CredentialKind}
        for credential in stored.credentials:
            by_kind[credential.kind].append(_caller(credential))
        return cls(
            {caller.verifier: caller for caller in by_kind[CredentialKind.TOKEN]},
            {caller.identity.name: caller for caller in by_kind[CredentialKind.USER]},
            stored.signing_key,
        )

    def find_token(self, digest: str, now: float) -> Identity | None:
        """The caller of a token that has not expired."""
        caller = self.tokens.get(digest)
        return caller.identity if caller is not None and caller.is_valid(now) else None

    def find_user(self, name: str, now: float) -> Caller | None:
        """The user of that name, unless it has expired."""
        caller = self.users.get(name)
        return caller if caller is not None and caller.is_valid(now) else None

    def log_in(self, user: Caller, now: float, lifetime: float) -> Identity:
        """The identity of a user whose password was right, with a login token."""
        login = Login(user.identity.name, login_tokens.fingerprint(user.verifier))
        expires_at = min(now + lifetime, user.expires_at)
        return replace(
            user.identity, bearer=login_tokens.issue(login, expires_at, self.signing_key)
        )

    def find_login(self, token: str, now: float) -> Identity | None:
        """The user of a login token, while the user exists and has the same password."""
        login = login_tokens.verify(token, now, self.signing_key)
        user = None if login is None else self.find_user(login.user, now)
        if login is None or user is None:
            return None
        if login_tokens.fingerprint(user.verifier) != login.fingerprint:
            return None
        return user.identity


def _caller(credential: Credential) -> Caller:
    return Caller(
        Identity(credential.name, Role(credential.role), parse_grants(credential.grants)),
        credential.verifier,
        _seconds(credential.expires_at),
    )


def _seconds(moment: datetime | None) -> float:
    return float("inf") if moment is None else moment.timestamp()
