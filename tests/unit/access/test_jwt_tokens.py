"""JWTs: only tokens that the provider signed, for this server, are accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from swanlake.access import jwt_tokens
from swanlake.access.grant_text import NO_CATALOG
from swanlake.access.identity import Grant, Identity, Privilege, Role
from swanlake.access.jwt_tokens import JwtRules, JwtVerifier
from swanlake.errors import ConfigError, ServerUnavailable

RULES = JwtRules("https://idp", "swanlake", "sub", "swanlake_role", "swanlake_grants")
RSA = rsa.generate_private_key(65537, 2048)
EC, OTHER_EC = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> bytes:
    public: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public


def jwks(**keys: Any) -> str:
    algorithm = jwt.get_algorithm_by_name("ES256")
    entries = [
        json.loads(algorithm.to_jwk(key.public_key())) | {"kid": name, "alg": "ES256"}
        for name, key in keys.items()
    ]
    return json.dumps({"keys": entries})


def claims(**changes: Any) -> dict[str, Any]:
    valid = {
        "iss": "https://idp",
        "aud": "swanlake",
        "sub": "alice",
        "exp": time.time() + 3600,
        "swanlake_role": "writer",
    }
    return {name: value for name, value in (valid | changes).items() if value is not None}


def rsa_token(**changes: Any) -> str:
    return jwt.encode(claims(**changes), RSA, "RS256")


@pytest.fixture
def verifier(tmp_path: Path) -> JwtVerifier:
    file = tmp_path / "idp.pem"
    file.write_bytes(pem(RSA))
    return JwtVerifier(str(file), RULES)


def test_valid_token_identifies_the_caller(verifier: JwtVerifier) -> None:
    assert verifier.identify(rsa_token()) == Identity("jwt:alice", Role.WRITER)


@pytest.mark.parametrize(
    ("changes", "role", "grants"),
    [
        ({"swanlake_role": ["offline", "reader", "admin"]}, Role.ADMIN, ()),
        ({"swanlake_grants": ["sales_*=read"]}, Role.WRITER, (Grant("sales_*", Privilege.READ),)),
        ({"swanlake_grants": []}, Role.WRITER, NO_CATALOG),
        ({"aud": ["other", "swanlake"]}, Role.WRITER, ()),
    ],
)
def test_claims_give_role_and_grants(
    verifier: JwtVerifier, changes: dict[str, Any], role: Role, grants: tuple[Grant, ...]
) -> None:
    assert verifier.identify(rsa_token(**changes)) == Identity("jwt:alice", role, grants)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1},
        {"exp": None},
        {"nbf": 4_000_000_000},
        {"iss": "https://other"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"sub": None},
        {"sub": "a\nb"},
        {"sub": "a" * 300},
        {"swanlake_role": None},
        {"swanlake_role": "root"},
        {"swanlake_role": {"admin": 1}},
        {"swanlake_grants": "sales=read"},
        {"swanlake_grants": ["sales"]},
    ],
)
def test_token_with_wrong_claims_is_refused(verifier: JwtVerifier, changes: dict[str, Any]) -> None:
    assert verifier.identify(rsa_token(**changes)) is None


def unsigned(algorithm: str, secret: bytes | None = None) -> str:
    """A token as PyJWT refuses to make it."""
    parts = [json.dumps({"alg": algorithm, "typ": "JWT"}), json.dumps(claims())]
    text = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    signature = b"" if secret is None else hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize(
    "token",
    [
        unsigned("none"),
        unsigned("None"),
        unsigned("HS256", pem(RSA)),
        unsigned("RS256"),
        jwt.encode(claims(), EC, "ES256"),
        jwt.encode(claims(), rsa.generate_private_key(65537, 2048), "RS256"),
        "a.b.c",
        "..",
    ],
    ids=["none", "None", "HS256 with the public key", "unsigned", "EC", "other", "garbage", "dots"],
)
def test_forged_token_is_refused(verifier: JwtVerifier, token: str) -> None:
    assert verifier.identify(token) is None


def test_shared_secret_in_a_key_set_is_not_used(tmp_path: Path) -> None:
    secret = base64.urlsafe_b64encode(b"x" * 32).decode().rstrip("=")
    entries = json.loads(jwks(one=EC))["keys"] + [{"kty": "oct", "kid": "shared", "k": secret}]
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": entries}))
    token = jwt.encode(claims(), b"x" * 32, "HS256", headers={"kid": "shared"})
    assert JwtVerifier(str(file), RULES).identify(token) is None


def test_replaced_key_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt_tokens, "_FILE_PAUSE_SECONDS", 0.0)
    file = tmp_path / "jwks.json"
    file.write_text(jwks(one=EC))
    verifier = JwtVerifier(str(file), RULES)
    old = jwt.encode(claims(), EC, "ES256", headers={"kid": "one"})
    new = jwt.encode(claims(), OTHER_EC, "ES256", headers={"kid": "two"})
    assert verifier.identify(old) is not None
    assert verifier.identify(new) is None
    file.write_text(jwks(two=OTHER_EC))
    assert verifier.identify(new) is not None
    assert verifier.identify(old) is None


@pytest.mark.parametrize(
    "content", ["", "{}", '{"keys": []}', "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----"]
)
def test_unusable_key_file_fails_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    with pytest.raises(ConfigError, match="cannot be read"):
        JwtVerifier(str(file), RULES)
    file.write_text(content)
    with pytest.raises(ConfigError, match="neither a PEM public key nor a JWKS"):
        JwtVerifier(str(file), RULES)


@pytest.mark.parametrize("url", ["http://idp.example.com/keys", "file:///etc/keys", "ftp://x/y"])
def test_keys_from_an_unsafe_url_fail_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="neither a file nor an https:// URL"):
        JwtVerifier(url, RULES)


class Provider(BaseHTTPRequestHandler):
    """An identity provider: serves keys, or redirects."""

    body = ""
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("Location", "/keys")
        self.end_headers()
        self.wfile.write(self.body.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def provider_url() -> Iterator[str]:
    Provider.body, Provider.requests = jwks(one=EC), 0
    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_keys_are_fetched_again_for_an_unknown_key_id(
    provider_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_tokens, "_URL_PAUSE_SECONDS", 0.0)
    verifier = JwtVerifier(f"{provider_url}/keys", RULES)
    old = jwt.encode(claims(), EC, "ES256", headers={"kid": "one"})
    assert verifier.identify(old) is not None
    assert verifier.identify(old) is not None
    assert Provider.requests == 1
    Provider.body = jwks(one=EC, two=OTHER_EC)
    new = jwt.encode(claims(), OTHER_EC, "ES256", headers={"kid": "two"})
    assert verifier.identify(new) is not None
    assert verifier.identify(old) is not None
    assert Provider.requests == 2


def test_unknown_key_ids_do_not_cause_a_fetch_each(provider_url: str) -> None:
    verifier = JwtVerifier(f"{provider_url}/keys", RULES)
    for number in range(10):
        token = jwt.encode(claims(), OTHER_EC, "ES256", headers={"kid": str(number)})
        assert verifier.identify(token) is None
    assert Provider.requests == 1


def test_redirect_of_the_provider_is_not_followed(provider_url: str) -> None:
    verifier = JwtVerifier(f"{provider_url}/moved", RULES)
    with pytest.raises(ServerUnavailable, match="The JWT keys cannot be read"):
        verifier.identify(jwt.encode(claims(), EC, "ES256", headers={"kid": "one"}))
