"""Login tokens: what a user gets for a password, signed with a key that all servers share."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass

_PREFIX = "swlogin."


@dataclass(frozen=True)
class Login:
    """The content of a valid login token."""

    user: str
    #: Of the password's verifier: another password ends the logins with the old one.
    fingerprint: str


def fingerprint(verifier: str) -> str:
    """Identifies a password's verifier without revealing it."""
    return hashlib.sha256(verifier.encode()).hexdigest()


def is_login_token(token: str) -> bool:
    """True if the text has the form of a login token."""
    return token.startswith(_PREFIX)


def issue(login: Login, expires_at: float, key: bytes) -> str:
    """A token for the login; the time is in seconds since 1970."""
    content = {"user": login.user, "fingerprint": login.fingerprint, "expires_at": expires_at}
    payload = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
    return f"{_PREFIX}{payload}.{_signature(payload, key)}"


def verify(token: str, now: float, key: bytes) -> Login | None:
    """The login; None if the token is expired, or was not issued with the key."""
    payload, _, signature = token.removeprefix(_PREFIX).partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(payload, key).encode()):
        return None
    try:
        content = json.loads(base64.urlsafe_b64decode(payload))
    except (binascii.Error, ValueError):  # signed with the key, but by another version
        return None
    if now >= content["expires_at"]:
        return None
    return Login(content["user"], content["fingerprint"])


def _signature(payload: str, key: bytes) -> str:
    return hmac.new(key, payload.encode(), hashlib.sha256).hexdigest()
