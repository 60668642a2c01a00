"""Authentication: what is checked, what is counted, what is logged."""

from __future__ import annotations

import base64
import inspect
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.access import secret_text
from swanlake.access.identity import Role
from swanlake.access.login_limiter import LoginLimiter
from swanlake.access.secret_text import password_verifier, token_digest
from swanlake.access.token_files import TokenFiles
from swanlake.config import Settings
from swanlake.errors import (
    CatalogUnreachable,
    ConfigError,
    NotAuthenticated,
    ServerUnavailable,
)
from swanlake.lake.model.credentials import Credential, CredentialKind, StoredCredentials
from swanlake.server import auth, service
from swanlake.server.auth import CredentialAuthenticator, Credentials, open_authenticator
from tests.credentials import write_tokens

ADDRESS = "192.0.2.1"
FILE_TOKEN, LAKE_TOKEN, PASSWORD = "the-token-of-a-file", "the-token-of-the-lake", "correct horse"
with pytest.MonkeyPatch.context() as patch:
    patch.setitem(secret_text._SCRYPT, "n", 2)  # cheap to check
    VERIFIER = password_verifier(PASSWORD)
STORED = StoredCredentials(
    [
        Credential(CredentialKind.TOKEN, "bob", token_digest(LAKE_TOKEN), "reader"),
        Credential(CredentialKind.USER, "carol", VERIFIER, "writer"),
    ],
    b"key",
)


class Lake:
    """Counts how often the credentials are read, and can be unreachable."""

    reads = 0
    is_reachable = True

    def credentials(self) -> StoredCredentials:
        self.reads += 1
        if not self.is_reachable:
            raise CatalogUnreachable("The lake's metadata cannot be reached.")
        return STORED


@pytest.fixture
def lake() -> Lake:
    return Lake()


@pytest.fixture
def authenticator(tmp_path: Path, lake: Lake) -> CredentialAuthenticator:
    return make_authenticator(tmp_path, lake)


def make_authenticator(tmp_path: Path, lake: Lake) -> CredentialAuthenticator:
    write_tokens(tmp_path, alice=FILE_TOKEN)
    return CredentialAuthenticator(
        TokenFiles(tmp_path / "tokens"),
        lake.credentials,
        limiter=LoginLimiter(lambda: 0.0, burst=3),
        login_seconds=60.0,
    )


def bearer(token: str, address: str = ADDRESS) -> Credentials:
    return Credentials(f"Bearer {token}", address)


def basic(user: str, password: str, address: str = ADDRESS) -> Credentials:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Credentials(f"Basic {encoded}", address)


def test_every_credential_identifies_its_caller(authenticator: CredentialAuthenticator) -> None:
    expected = {
        bearer(FILE_TOKEN): ("alice", Role.ADMIN),
        bearer(LAKE_TOKEN): ("bob", Role.READER),
        basic("bob", LAKE_TOKEN): ("bob", Role.READER),
        basic("carol", PASSWORD): ("carol", Role.WRITER),
    }
    for credentials, caller in expected.items():
        identity = authenticator.identify(credentials)
        assert (identity.name, identity.role) == caller
        again = authenticator.identify(bearer(identity.bearer))
        assert (again.name, again.role) == caller, "the token of a handshake"


def test_password_is_not_a_bearer_token(authenticator: CredentialAuthenticator) -> None:
    with pytest.raises(NotAuthenticated):
        authenticator.identify(bearer(PASSWORD))
    with pytest.raises(NotAuthenticated):
        authenticator.identify(bearer(token_digest(LAKE_TOKEN)))


TOKENS_ONLY = CredentialAuthenticator(
    TokenFiles(Path("/proc/self/task")),  # directories only
    lambda: STORED,
    limiter=LoginLimiter(lambda: 0.0),
)


@given(st.one_of(st.text(), st.binary().map(base64.b64encode).map(lambda text: text.decode())))
def test_no_header_is_valid_by_accident(value: str) -> None:
    for scheme in ("Bearer ", "Basic ", "basic  ", "", "Digest "):
        with pytest.raises(NotAuthenticated):
            TOKENS_ONLY.identify(Credentials(scheme + value, ADDRESS))


def test_passwords_are_refused_when_only_tokens_are_accepted(tmp_path: Path, lake: Lake) -> None:
    only_tokens = open_authenticator(Settings(home=tmp_path, auth="token"), lake.credentials)
    assert only_tokens.identify(basic("bob", LAKE_TOKEN)).name == "bob"
    with pytest.raises(NotAuthenticated):
        only_tokens.identify(basic("carol", PASSWORD))
    both = open_authenticator(Settings(home=tmp_path, auth="any"), lake.credentials)
    login = both.identify(basic("carol", PASSWORD)).bearer
    assert both.identify(bearer(login)).name == "carol"
    with pytest.raises(NotAuthenticated):
        only_tokens.identify(bearer(login))


def test_unknown_tokens_do_not_read_the_credentials_each(
    authenticator: CredentialAuthenticator, lake: Lake
) -> None:
    began = time.monotonic()
    for _ in range(200):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(bearer("a-wrong-token"))
    assert lake.reads <= 1 + (time.monotonic() - began) / auth._MIN_AGE_SECONDS


def test_known_tokens_work_while_the_lake_cannot_be_reached(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_MAX_AGE_SECONDS", 0.0)
    authenticator = make_authenticator(tmp_path, lake)
    assert authenticator.identify(bearer(LAKE_TOKEN)).name == "bob"
    lake.is_reachable = False
    reads = lake.reads
    assert authenticator.identify(bearer(LAKE_TOKEN)).name == "bob"
    assert lake.reads > reads
    with pytest.raises(NotAuthenticated):
        authenticator.identify(bearer("an-unknown-token"))


def test_token_is_not_called_wrong_when_the_lake_was_never_reached(
    authenticator: CredentialAuthenticator, lake: Lake
) -> None:
    lake.is_reachable = False
    with pytest.raises(ServerUnavailable, match="The lake's credentials cannot be read"):
        authenticator.identify(bearer(LAKE_TOKEN))
    assert authenticator.identify(bearer(FILE_TOKEN)).name == "alice", "files need no lake"


def test_blocked_address_cannot_guess_but_known_tokens_work(
    authenticator: CredentialAuthenticator, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            with pytest.raises(NotAuthenticated):
                authenticator.identify(basic("carol", f"guess number {number}"))
    assert caplog.messages == [
        *["login failed from 192.0.2.1: user 'carol'"] * 3,
        "too many failed logins from 192.0.2.1: not all are checked and logged",
    ]
    with pytest.raises(NotAuthenticated):
        authenticator.identify(basic("carol", PASSWORD))
    assert authenticator.identify(bearer(LAKE_TOKEN)).name == "bob"
    assert authenticator.identify(basic("carol", PASSWORD, "192.0.2.2")).name == "carol"
    # Verified a moment ago: the caller proves no more than it did then.
    assert authenticator.identify(basic("carol", PASSWORD)).name == "carol"


def test_failures_with_tokens_do_not_block_passwords(
    authenticator: CredentialAuthenticator, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(bearer("an-old-token"))
    assert caplog.messages == [
        *["login failed from 192.0.2.1: token"] * 3,
        "too many failed logins from 192.0.2.1 by token: not all are checked and logged",
    ]
    assert authenticator.identify(basic("carol", PASSWORD)).name == "carol"


def test_failures_without_an_address_count_for_the_user(
    authenticator: CredentialAuthenticator,
) -> None:
    for _ in range(3):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(basic("carol", "a wrong guess", address=""))
    with pytest.raises(NotAuthenticated):
        authenticator.identify(basic("carol", PASSWORD, address=""))
    assert authenticator.identify(basic("bob", LAKE_TOKEN, address="")).name == "bob"


def test_calls_without_credentials_do_not_block_their_address(
    authenticator: CredentialAuthenticator, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(Credentials("", ADDRESS))
    assert caplog.messages == []
    assert authenticator.identify(basic("carol", PASSWORD)).name == "carol"


def test_secrets_and_line_ends_are_not_logged(
    authenticator: CredentialAuthenticator, caplog: pytest.LogCaptureFixture
) -> None:
    for credentials in (basic("x\nFORGED", "hunter22"), bearer("hunter22"), basic("é", "hunter22")):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(credentials)
    assert len(caplog.messages) == 3
    assert "hunter22" not in caplog.text
    assert "FORGED" not in caplog.text
    assert "hunter22" not in repr(basic("x", "hunter22"))


def test_unknown_user_costs_as_much_as_a_wrong_password(
    authenticator: CredentialAuthenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []

    def record(password: str, verifier: str) -> bool:
        checks.append(verifier)
        return secret_text.is_password(password, verifier)

    monkeypatch.setattr(auth, "is_password", record)
    for user in ("carol", "stranger"):
        with pytest.raises(NotAuthenticated):
            authenticator.identify(basic(user, "a wrong guess"))
    assert checks == [VERIFIER, secret_text.NO_PASSWORD]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"auth": "token", "jwt_keys": "keys"}, 'need auth = "any"'),
        ({"tls_client_subjects": Path("subjects")}, 'need auth = "any"'),
        ({"auth": "any", "tls_client_subjects": Path("subjects")}, "needs tls_client_ca"),
        ({"auth": "any", "jwt_keys": "keys"}, "needs jwt_issuer and jwt_audience"),
        (
            {"auth": "any", "jwt_keys": "none", "jwt_issuer": "i", "jwt_audience": "a"},
            "cannot be read",
        ),
    ],
)
def test_contradicting_settings_fail_the_start(
    tmp_path: Path, lake: Lake, settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_authenticator(Settings(home=tmp_path, **settings), lake.credentials)


def handlers() -> list[str]:
    """The methods of a Flight service that answer calls: their first argument is the context."""
    methods: dict[str, Callable[..., Any]] = dict(
        inspect.getmembers(flight.FlightServerBase, callable)
    )
    return [name for name in methods if name.startswith(("get_", "do_", "list_"))]


def test_every_handler_authenticates_its_caller() -> None:
    names = handlers()
    assert len(names) == 8
    for name in names:
        handler = getattr(service.SwanLakeService, name)
        assert handler.__code__ is service.flight_call(lambda: None).__code__, name
