"""JSON Web Tokens of an identity provider."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt

from swanlake._internal.addresses import is_loopback
from swanlake.access.grant_text import parse_explicit_grants
from swanlake.access.identity import Identity, Role
from swanlake.access.refreshed import Refreshed
from swanlake.errors import ConfigError, InvalidRequest

#: Signatures with a key pair only. A shared secret, or no signature at all, could be forged by
#: everyone who knows the public key.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
#: Sets the names apart from those that the operator gives.
NAME_PREFIX = "jwt:"
_MAX_NAME_LENGTH = 256
#: How far the clocks of the provider and of this server may differ.
_LEEWAY_SECONDS = 10
_FETCH_SECONDS = 10.0
_MAX_KEYS_BYTES = 1 << 20
#: Keys from a URL are kept for this long, and fetched again for a key id that they lack.
_URL_AGE_SECONDS, _URL_PAUSE_SECONDS, _URL_OUTAGE_SECONDS = 300.0, 10.0, 3600.0
_FILE_AGE_SECONDS, _FILE_PAUSE_SECONDS = 5.0, 1.0


@dataclass(frozen=True)
class JwtRules:
    """Which tokens are accepted, and which of their claims say who the caller is."""

    issuer: str
    audience: str
    name_claim: str
    role_claim: str
    grants_claim: str


#: Verification keys by key id; a single key without an id is under None.
Keys = Mapping[str | None, Any]


class JwtVerifier:
    """Identifies callers by the tokens of one identity provider."""

    def __init__(self, source: str, rules: JwtRules) -> None:
        """The source of keys is a PEM file, a JWKS file, or the URL of a JWKS."""
        self._rules = rules
        self._keys = _refreshed_keys(source)
        if "://" not in source:
            _read_file(Path(source))  # a file that cannot be used fails the start

    def identify(self, token: str) -> Identity | None:
        """The caller; None if the token is not valid, or lacks a claim."""
        try:
            key = self._find_key(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                issuer=self._rules.issuer,
                audience=self._rules.audience,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", self._rules.name_claim]},
            )
            return _identity(claims, self._rules)
        # A key of another type than the algorithm's raises a TypeError, for one.
        except (jwt.PyJWTError, InvalidRequest, TypeError, ValueError):
            return None

    def _find_key(self, key_id: str | None) -> Any:
        for keys in (self._keys.get, self._keys.get_newer):
            key = select_key(keys(), key_id)
            if key is not None:
                return key
        return None


def select_key(keys: Keys, key_id: str | None) -> Any:
    """The key of a token; without an id, the only key there is. None if there is none."""
    if None in keys:
        return keys[None]
    if key_id is None and len(keys) == 1:
        return next(iter(keys.values()))
    return keys.get(key_id)


def parse_keys(text: str) -> Keys:
    """The keys of a PEM public key or a JWKS; raises ValueError."""
    if text.lstrip().startswith("{"):
        key_set = jwt.PyJWKSet.from_json(text)
        # Keys for encryption must not verify signatures, nor must shared secrets.
        signing = [key for key in key_set.keys if key.public_key_use in ("sig", None)]
        usable = {key.key_id: key.key for key in signing if key.key_type != "oct"}
        if not usable:
            raise ValueError("it has no public key for signatures")
        return usable
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return {None: load_pem_public_key(text.encode())}


def _refreshed_keys(source: str) -> Refreshed[Keys]:
    if "://" not in source:
        path = Path(source)
        return Refreshed(
            "The JWT keys",
            lambda: _read_file(path),
            max_age=_FILE_AGE_SECONDS,
            min_age=_FILE_PAUSE_SECONDS,
            outage=_URL_OUTAGE_SECONDS,
        )
    _check_url(source)
    return Refreshed(
        "The JWT keys",
        lambda: parse_keys(_fetch(source)),
        max_age=_URL_AGE_SECONDS,
        min_age=_URL_PAUSE_SECONDS,
        outage=_URL_OUTAGE_SECONDS,
    )


def _read_file(path: Path) -> Keys:
    try:
        return parse_keys(path.read_text(encoding="utf-8"))
    except OSError as unreadable:
        raise ConfigError(f"jwt_keys: {path} cannot be read: {unreadable.strerror}.") from None
    except (ValueError, jwt.PyJWTError) as unusable:
        raise ConfigError(
            f"jwt_keys: {path} is neither a PEM public key nor a JWKS with public keys: {unusable}."
        ) from None


def _check_url(url: str) -> None:
    """Keys over an unencrypted connection could be replaced on their way."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return
    raise ConfigError(f"jwt_keys: {url!r} is neither a file nor an https:// URL.")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys come from the configured address, or not at all."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _fetch(url: str) -> str:
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(url, timeout=_FETCH_SECONDS) as response:
            body: bytes = response.read(_MAX_KEYS_BYTES + 1)
    except urllib.error.HTTPError as refused:
        refused.close()  # it holds the connection
        raise ValueError(f"{url} answered with status {refused.code}") from None
    if len(body) > _MAX_KEYS_BYTES:
        raise ValueError(f"the answer of {url} is too large")
    return body.decode()


def _identity(claims: Mapping[str, Any], rules: JwtRules) -> Identity:
    name = claims[rules.name_claim]
    if not isinstance(name, str) or not name.isprintable() or len(name) > _MAX_NAME_LENGTH:
        raise InvalidRequest(f"The claim {rules.name_claim} is not a name.")
    grants = parse_explicit_grants(claims.get(rules.grants_claim))
    return Identity(NAME_PREFIX + name, _role(claims.get(rules.role_claim)), grants)


def _role(claim: Any) -> Role:
    """The highest role of a claim, which is a role or a list with roles of other programs too."""
    names = claim if isinstance(claim, list) else [claim]
    roles = [role for role in Role if role.value in names]
    if not roles:
        raise InvalidRequest("The token has no role.")
    return roles[-1]
