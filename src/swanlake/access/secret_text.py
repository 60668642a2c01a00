"""Secrets of callers: how tokens and passwords are made, stored and compared."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

#: Shorter tokens could be guessed.
MIN_TOKEN_LENGTH = 16
MIN_PASSWORD_LENGTH = 8
#: Lets scanners of source code recognise a token that was committed by mistake.
TOKEN_PREFIX = "swl_"
_TOKEN_BYTES = 32
_SALT_BYTES = 16
#: 32 MB and about a quarter of a second for each check.
_SCRYPT = {"n": 2**15, "r": 8, "p": 3}


def new_token() -> str:
    """A random token."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def token_digest(token: str) -> str:
    """The digest that is stored and looked up.

    The time of a lookup by digest says nothing about a token that is nearly right.
    """
    return hashlib.sha256(token.encode()).hexdigest()


def password_verifier(password: str) -> str:
    """What is stored to check a password: ``scrypt$n$r$p$salt$hash``."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return _verifier(salt, _hash(password, salt, **_SCRYPT))


def is_password(password: str, verifier: str) -> bool:
    """True if the verifier was made from the password."""
    _, n, r, p, salt, expected = verifier.split("$")
    actual = _hash(password, base64.b64decode(salt), n=int(n), r=int(r), p=int(p))
    return hmac.compare_digest(actual, base64.b64decode(expected))


def _hash(password: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    # maxmem has to exceed the 128 * r * (n + p + 2) bytes that the function needs.
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * r * (n + p))


def _verifier(salt: bytes, hashed: bytes) -> str:
    encoded = (base64.b64encode(value).decode() for value in (salt, hashed))
    return "$".join(["scrypt", *map(str, _SCRYPT.values()), *encoded])


#: For users that do not exist: the check takes as long as for others, and no password is right.
NO_PASSWORD = _verifier(b"", b"")
