"""Tokens, passwords and login tokens: only the right ones are accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.access import login_tokens
from swanlake.access.callers import StoredCallers
from swanlake.access.identity import Grant, Identity, Privilege, Role
from swanlake.access.login_tokens import Login
from swanlake.access.recently_verified import RecentlyVerified
from swanlake.access.secret_text import (
    MIN_TOKEN_LENGTH,
    NO_PASSWORD,
    is_password,
    new_token,
    password_verifier,
    token_digest,
)
from swanlake.lake.model.credentials import Credential, CredentialKind, StoredCredentials

KEY = b"the key of all servers"
LOGIN = Login("alice", "0123")


# ---- passwords and tokens ------------------------------------------------------------------------


def test_password_is_verified() -> None:
    verifier = password_verifier("correct horse")
    assert "correct" not in verifier
    assert is_password("correct horse", verifier)
    assert not is_password("correct hors", verifier)
    assert password_verifier("correct horse") != verifier, "every verifier has a salt"


def test_no_password_is_right_for_an_unknown_user() -> None:
    assert not is_password("", NO_PASSWORD)
    parameters = password_verifier("x").split("$")[:4]
    assert NO_PASSWORD.split("$")[:4] == parameters, "it takes as long as for a known user"


def test_tokens_are_long_and_random() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= MIN_TOKEN_LENGTH


# ---- login tokens --------------------------------------------------------------------------------


def test_login_token_is_valid_until_it_expires() -> None:
    token = login_tokens.issue(LOGIN, 100.0, KEY)
    assert login_tokens.is_login_token(token)
    assert login_tokens.verify(token, 99.9, KEY) == LOGIN
    assert login_tokens.verify(token, 100.0, KEY) is None


def test_login_token_of_another_key_is_refused() -> None:
    token = login_tokens.issue(LOGIN, 100.0, b"a key of an attacker")
    assert login_tokens.verify(token, 0.0, KEY) is None


def test_changed_login_token_is_refused() -> None:
    prefix, payload, signature = login_tokens.issue(LOGIN, 100.0, KEY).split(".")
    content = json.loads(base64.urlsafe_b64decode(payload))
    for change in ({"user": "root"}, {"expires_at": 1e12}):
        forged = base64.urlsafe_b64encode(json.dumps(content | change).encode()).decode()
        assert login_tokens.verify(f"{prefix}.{forged}.{signature}", 0.0, KEY) is None
    assert login_tokens.verify(f"{prefix}.{payload}.", 0.0, KEY) is None
    assert login_tokens.verify(f"{prefix}.{payload}", 0.0, KEY) is None


@pytest.mark.parametrize("payload", ["!", "", base64.urlsafe_b64encode(b"\xff{").decode()])
def test_signed_content_of_another_form_is_refused(payload: str) -> None:
    signature = hmac.new(KEY, payload.encode(), hashlib.sha256).hexdigest()
    assert login_tokens.verify(f"swlogin.{payload}.{signature}", 0.0, KEY) is None


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_no_text_is_a_login_token_by_accident(text: str) -> None:
    assert login_tokens.verify(text, 0.0, KEY) is None
    assert login_tokens.verify("swlogin." + text, 0.0, KEY) is None


# ---- callers -------------------------------------------------------------------------------------


def stored(*credentials: Credential) -> StoredCallers:
    return StoredCallers.from_credentials(StoredCredentials(credentials, KEY))


def credential(kind: CredentialKind, verifier: str, expires_at: float | None = None) -> Credential:
    moment = None if expires_at is None else datetime.fromtimestamp(expires_at, UTC)
    return Credential(kind, "alice", verifier, "writer", ("sales_*=read",), moment)


def test_token_identifies_its_caller_until_it_expires() -> None:
    callers = stored(credential(CredentialKind.TOKEN, token_digest("secret"), 100.0))
    expected = Identity("alice", Role.WRITER, (Grant("sales_*", Privilege.READ),))
    assert callers.find_token(token_digest("secret"), 99.0) == expected
    assert callers.find_token(token_digest("secret"), 100.0) is None
    assert callers.find_token(token_digest("Secret"), 99.0) is None


def test_login_ends_with_the_user_or_its_password() -> None:
    callers = stored(credential(CredentialKind.USER, "the verifier"))
    user = callers.find_user("alice", 0.0)
    assert user is not None
    token = callers.log_in(user, 0.0, lifetime=60.0).bearer
    found = callers.find_login(token, 59.0)
    assert found is not None
    assert (found.name, found.role) == ("alice", Role.WRITER)
    assert callers.find_login(token, 60.0) is None
    assert stored().find_login(token, 1.0) is None
    assert stored(credential(CredentialKind.USER, "another")).find_login(token, 1.0) is None


def test_login_does_not_outlive_the_user() -> None:
    callers = stored(credential(CredentialKind.USER, "the verifier", 10.0))
    user = callers.find_user("alice", 0.0)
    assert user is not None
    token = callers.log_in(user, 0.0, lifetime=60.0).bearer
    assert login_tokens.verify(token, 10.0, KEY) is None
    assert callers.find_user("alice", 10.0) is None


def test_secrets_are_not_in_representations() -> None:
    callers = stored(credential(CredentialKind.USER, "the verifier"))
    assert "verifier'" not in repr(callers).replace("verifier=", "")
    assert KEY.decode() not in repr(callers)


# ---- what was verified lately --------------------------------------------------------------------


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def test_verified_credentials_are_forgotten_after_a_time(clock: list[float]) -> None:
    verified = RecentlyVerified[str](5.0, clock=lambda: clock[0])
    verified.add("a", "alice")
    clock[0] = 4.9
    assert verified.find("a") == "alice"
    clock[0] = 5.0
    assert verified.find("a") is None


def test_verified_credentials_are_bounded(clock: list[float]) -> None:
    verified = RecentlyVerified[str](5.0, max_entries=2, clock=lambda: clock[0])
    for key in "abc":
        verified.add(key, key)
    assert [verified.find(key) for key in "abc"] == [None, "b", "c"]
