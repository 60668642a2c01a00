"""Authentication of calls: by a token, a password, or the certificate of the client."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.flight as flight

from swanlake.access.callers import StoredCallers
from swanlake.access.certificates import read_subjects
from swanlake.access.grant_text import NO_CATALOG
from swanlake.access.identity import Identity, Role
from swanlake.access.login_limiter import LoginLimiter, limited_address
from swanlake.access.login_tokens import is_login_token
from swanlake.access.recently_verified import RecentlyVerified
from swanlake.access.refreshed import Refreshed
from swanlake.access.secret_text import NO_PASSWORD, is_password, token_digest
from swanlake.access.token_files import TokenFiles
from swanlake.config import Settings
from swanlake.errors import ConfigError, NotAuthenticated
from swanlake.jobs.segment_transfer.grants import TransferGrants
from swanlake.lake.model.credentials import StoredCredentials

if TYPE_CHECKING:
    from swanlake.access.jwt_tokens import JwtVerifier

log = logging.getLogger("swanlake.server")

ANONYMOUS = "anonymous"
_TRUSTED_USER = "user:"
_WORKER = "spark-worker"
#: The same words for every refusal: they must not confirm a part of the credentials.
_REFUSAL = (
    "This server requires valid credentials: a token, sent as 'authorization: Bearer …', or a user "
    "and a password."
)
#: How old the credentials may be that a call is checked against, how often an unknown token makes
#: the server look for new ones, and how long it does without the metadata database.
_MAX_AGE_SECONDS, _MIN_AGE_SECONDS, _OUTAGE_SECONDS = 2.0, 0.25, 600.0
#: Passwords and signatures are not checked again for this long.
_PASSWORD_SECONDS, _JWT_SECONDS = 60.0, 5.0
#: A check of a password takes memory; more of them wait.
_CONCURRENT_PASSWORDS = 2
_PASSWORD_WAIT_SECONDS = 10.0
_MAX_NAME_LENGTH = 256


@dataclass(frozen=True)
class Credentials:
    """What a call says about its caller."""

    authorization: str = field(default="", repr=False)
    #: The address of the client without its port. Flight does not tell it for a Handshake.
    address: str = ""
    #: The subject of the client's certificate, if the server verified one.
    subject: str = ""

    @property
    def scheme(self) -> str:
        return self.authorization.strip().partition(" ")[0].lower()

    @property
    def value(self) -> str:
        return self.authorization.strip().partition(" ")[2].strip()

    @property
    def bearer(self) -> str:
        """The bearer token; empty if there is none."""
        return self.value if self.scheme == "bearer" else ""

    @property
    def user_and_password(self) -> tuple[str, str] | None:
        """The content of Basic credentials; None if there are none, or malformed ones."""
        if self.scheme != "basic":
            return None
        value = self.value + "=" * (-len(self.value) % 4)  # Go's Flight clients omit the padding
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except ValueError:  # neither base64 nor UTF-8
            return None
        # Names are logged, and kept when they fail.
        is_name = user.isprintable() and len(user) <= _MAX_NAME_LENGTH
        return (user, password) if is_name else None


class Authenticator(ABC):
    """Identifies callers."""

    #: Called with the name, the address and the outcome of a login. A call that brings its token
    #: is not one.
    on_login: Callable[[str | None, str, bool], None] = staticmethod(
        lambda user, address, succeeded: None
    )

    def reload_credentials(self) -> None:  # noqa: B027 - only some read credentials
        """The credentials of the lake have changed."""

    @abstractmethod
    def identify(self, credentials: Credentials) -> Identity:
        """The caller's identity; raises NotAuthenticated if the credentials prove none."""


def identify_worker(authorization: str, grants: TransferGrants) -> Identity | None:
    """A Spark worker, by the token of its grant; None for other callers."""
    token = Credentials(authorization).bearer
    if token and grants.is_valid(token):
        return Identity(_WORKER, Role.READER, NO_CATALOG, grant_token=token)
    return None


class TrustAuthenticator(Authenticator):
    """Trusts the user name that callers send: for one machine, or behind a proxy that checks."""

    def identify(self, credentials: Credentials) -> Identity:
        if not credentials.authorization:
            return Identity(ANONYMOUS, Role.ADMIN)
        if token := credentials.bearer:
            name = "token-" + token_digest(token)[:12]
            if token.startswith(_TRUSTED_USER):
                name = token.removeprefix(_TRUSTED_USER)
            return Identity(name, Role.ADMIN, bearer=token)
        if credentials.user_and_password is None:
            raise NotAuthenticated(_REFUSAL)
        name = credentials.user_and_password[0] or ANONYMOUS
        return Identity(name, Role.ADMIN, bearer=_TRUSTED_USER + name)


class CredentialAuthenticator(Authenticator):
    """Requires credentials that a file, the lake, an identity provider or an authority vouches for.

    With Basic authentication, the password is that of a user, or the token of that name.
    """

    def __init__(
        self,
        files: TokenFiles,
        load_credentials: Callable[[], StoredCredentials],
        *,
        limiter: LoginLimiter,
        login_seconds: float | None = None,
        jwt: JwtVerifier | None = None,
        subjects: Refreshed[Mapping[str, Identity]] | None = None,
    ) -> None:
        """Without ``login_seconds``, passwords are not accepted."""
        self._files = Refreshed(
            "The token files", files.read, max_age=_MAX_AGE_SECONDS, min_age=_MIN_AGE_SECONDS
        )
        self._callers = Refreshed(
            "The lake's credentials",
            lambda: StoredCallers.from_credentials(load_credentials()),
            max_age=_MAX_AGE_SECONDS,
            min_age=_MIN_AGE_SECONDS,
            outage=_OUTAGE_SECONDS,
        )
        self._limiter = limiter
        self._login_seconds = login_seconds
        self._jwt = jwt
        self._subjects = subjects
        self._verified_jwts = RecentlyVerified[Identity](_JWT_SECONDS)
        #: The verifiers of passwords, by a digest that only this process can compute.
        self._verified_passwords = RecentlyVerified[str](_PASSWORD_SECONDS)
        self._digest_key = secrets.token_bytes(32)
        self._password_checks = threading.BoundedSemaphore(_CONCURRENT_PASSWORDS)

    def identify(self, credentials: Credentials) -> Identity:
        identity = None
        if token := credentials.bearer:
            identity = self._identify_bearer(token)
        elif credentials.user_and_password is not None:
            identity = self._identify_password(credentials)
        elif not credentials.authorization:
            identity = self._identify_subject(credentials.subject)
        if identity is None:
            self._log_failure(credentials)
            raise NotAuthenticated(_REFUSAL)
        return identity

    def reload_credentials(self) -> None:
        self._callers.invalidate()

    def _identify_bearer(self, token: str) -> Identity | None:
        digest = token_digest(token)
        identity = self._find_token(digest) or self._verified_jwts.find(digest)
        if identity is None and self._login_seconds is not None and is_login_token(token):
            identity = self._callers.get().find_login(token, time.time())
        if identity is None and self._jwt is not None and token.count(".") == 2:
            identity = self._jwt.identify(token)
            if identity is not None:
                self._verified_jwts.add(digest, identity)
        identity = identity or self._find_new_token(digest)
        return None if identity is None else replace(identity, bearer=token)

    def _find_token(self, digest: str) -> Identity | None:
        identity = self._files.get().get(digest)
        return identity or self._callers.get().find_token(digest, time.time())

    def _find_new_token(self, digest: str) -> Identity | None:
        """As ``_find_token``, for a token that may be newer than what the server has read."""
        identity = self._files.get_newer().get(digest)
        return identity or self._callers.get_newer().find_token(digest, time.time())

    def _identify_password(self, credentials: Credentials) -> Identity | None:
        user, password = credentials.user_and_password or ("", "")
        digest = token_digest(password)
        identity = self._find_token(digest) or self._find_new_token(digest)
        if identity is not None and _equal(identity.name, user):
            return replace(identity, bearer=password)
        if self._login_seconds is None or not password:
            return None
        callers = self._callers.get()
        caller = callers.find_user(user, time.time())
        verifier = NO_PASSWORD if caller is None else caller.verifier
        secret = f"{user}\0{password}".encode()
        digest = hmac.new(self._digest_key, secret, hashlib.sha256).hexdigest()
        if self._verified_passwords.find(digest) != verifier:
            # A blocked source does not learn whether its guess was right.
            if self._limiter.is_blocked(_source(credentials)):
                return None
            if not self._is_password(password, verifier):
                return None
            self._verified_passwords.add(digest, verifier)
        if caller is None:
            return None
        return callers.log_in(caller, time.time(), self._login_seconds)

    def _is_password(self, password: str, verifier: str) -> bool:
        if not self._password_checks.acquire(timeout=_PASSWORD_WAIT_SECONDS):
            log.warning("a login was refused: too many passwords are being checked")
            return False
        try:
            return is_password(password, verifier)
        finally:
            self._password_checks.release()

    def _identify_subject(self, subject: str) -> Identity | None:
        if self._subjects is None or not subject:
            return None
        return self._subjects.get().get(subject) or self._subjects.get_newer().get(subject)

    def _log_failure(self, credentials: Credentials) -> None:
        """Logs and counts a failed login; a call without credentials is not one."""
        if not credentials.authorization and not credentials.subject:
            return
        source = _source(credentials)
        if not self._limiter.record_failure(source):
            return
        user, _ = credentials.user_and_password or (None, "")
        self.on_login(user, credentials.address, False)
        what = "token" if credentials.authorization else f"certificate {credentials.subject!r}"
        if credentials.user_and_password is not None:
            what = f"user {credentials.user_and_password[0]!r}"
        log.warning("login failed from %s: %s", credentials.address or "an unknown address", what)
        if self._limiter.is_blocked(source):
            log.warning("too many failed logins from %s: not all are checked and logged", source)


def _source(credentials: Credentials) -> str:
    """Where failed logins come from, as far as it is known.

    Without an address, all clients that try the same user share its failures. Failures with tokens
    count separately: a program with an old token must not block the passwords of others.
    """
    if credentials.user_and_password is None:
        return f"{limited_address(credentials.address)} by token"
    return limited_address(credentials.address) or f"the user {credentials.user_and_password[0]!r}"


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def open_authenticator(
    settings: Settings, load_credentials: Callable[[], StoredCredentials]
) -> Authenticator:
    """The authenticator that the settings select; raises if their files cannot be used."""
    if settings.auth != "any" and (settings.jwt_keys or settings.tls_client_subjects):
        raise ConfigError('jwt_keys and tls_client_subjects need auth = "any".')
    if settings.tls_client_subjects and not settings.tls_client_ca:
        raise ConfigError("tls_client_subjects needs tls_client_ca, which verifies the subjects.")
    if settings.auth == "none":
        return TrustAuthenticator()
    files = TokenFiles(settings.home.absolute() / "tokens")
    files.check()
    takes_all = settings.auth == "any"
    return CredentialAuthenticator(
        files,
        load_credentials,
        limiter=LoginLimiter(),
        login_seconds=settings.login_seconds if takes_all else None,
        jwt=_open_jwt_verifier(settings),
        subjects=_open_subjects(settings.tls_client_subjects),
    )


def _open_jwt_verifier(settings: Settings) -> JwtVerifier | None:
    if not settings.jwt_keys:
        return None
    if not (settings.jwt_issuer and settings.jwt_audience):
        raise ConfigError(
            "jwt_keys needs jwt_issuer and jwt_audience: tokens for other services must not work."
        )
    from swanlake.access.jwt_tokens import JwtRules, JwtVerifier  # slow to load, seldom needed

    rules = JwtRules(
        settings.jwt_issuer,
        settings.jwt_audience,
        settings.jwt_name_claim,
        settings.jwt_role_claim,
        settings.jwt_grants_claim,
    )
    return JwtVerifier(settings.jwt_keys, rules)


def _open_subjects(path: Path | None) -> Refreshed[Mapping[str, Identity]] | None:
    if path is None:
        return None
    read_subjects(path)  # a file that cannot be used fails the start
    return Refreshed(
        f"The subjects in {path}",
        lambda: read_subjects(path),
        max_age=_MAX_AGE_SECONDS,
        min_age=_MIN_AGE_SECONDS,
        outage=_OUTAGE_SECONDS,
    )


class HandshakeHandler(flight.ServerAuthHandler):
    """Accepts the Handshake call: the middleware has already authenticated it."""

    def authenticate(self, outgoing: object, incoming: object) -> None: ...

    def is_valid(self, token: bytes) -> bytes:
        return b""
