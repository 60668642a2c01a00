"""Tokens, users, JWTs and client certificates against real servers, and what they leave behind."""

from __future__ import annotations

import base64
import json
import signal
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import adbc_driver_manager
import jwt
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from swanlake.errors import NotAuthenticated
from tests.cli_results import assert_failed, assert_succeeded, json_rows
from tests.conftest import AdbcConnections
from tests.credentials import is_accepted, write_tokens
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.tls import client_certificate, self_signed
from tests.waiting import eventually

PROVIDER_KEY = ec.generate_private_key(ec.SECP256R1())
PASSWORD = "correct horse"


def is_refused(url: str, token: str) -> bool:
    return not is_accepted(url, token)


def run(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
    return CliRunner().invoke(command, arguments, input=stdin, env=environment)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that accepts every kind of credential but certificates."""
    directory = tmp_path_factory.mktemp("guarded")
    home = directory / "home"
    home.mkdir(mode=0o755)
    keys = directory / "idp.pem"
    public = PROVIDER_KEY.public_key()
    keys.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    provider = ("--jwt-keys", str(keys), "--jwt-issuer", "idp", "--jwt-audience", "swanlake")
    with ServerProcess(home, "--auth", "any", "--login-seconds", "3600", *provider) as server:
        yield server


@pytest.fixture
def token(guarded: ServerProcess) -> Callable[..., Result]:
    """``token("create", "alice")`` on the lake of the server."""
    return lambda action, *arguments: run("token", action, *arguments, "--home", str(guarded.home))


@pytest.fixture
def user(guarded: ServerProcess) -> Callable[..., Result]:
    def run_user(action: str, *arguments: str, stdin: str | None = None) -> Result:
        return run("user", action, *arguments, "--home", str(guarded.home), stdin=stdin)

    return run_user


# ---- before other tests have failed logins from this address -----------------------------------


def test_jwt_of_the_provider_is_accepted(guarded: ServerProcess) -> None:
    claims = {"iss": "idp", "aud": "swanlake", "sub": "jo", "swanlake_role": "reader"}
    valid = jwt.encode(claims | {"exp": time.time() + 600}, PROVIDER_KEY, "ES256")
    assert is_accepted(guarded.url, valid)
    expired = jwt.encode(claims | {"exp": time.time() - 600}, PROVIDER_KEY, "ES256")
    assert not is_accepted(guarded.url, expired)


def test_failed_logins_are_logged_with_the_address_and_without_the_secret(
    guarded: ServerProcess,
) -> None:
    assert not is_accepted(guarded.url, "a-guessed-token")
    assert "login failed from 127.0.0.1: token" in guarded.log_text
    with pytest.raises(NotAuthenticated):
        FlightSQLClient(guarded.url, user="mallory", password="a-guessed-password")
    assert "login failed from an unknown address: user 'mallory'" in guarded.log_text
    assert "guessed" not in guarded.log_text


# ---- tokens --------------------------------------------------------------------------------------


def test_token_works_until_it_is_revoked(
    guarded: ServerProcess, token: Callable[..., Result]
) -> None:
    secret = assert_succeeded(token("create", "ann", "--role", "writer")).strip()
    eventually(lambda: is_accepted(guarded.url, secret))
    assert_failed(token("create", "ann"), 1, "A token with the name ann exists already.")
    assert assert_succeeded(token("revoke", "ann")) == "The token ann is revoked.\n"
    eventually(lambda: not is_accepted(guarded.url, secret))
    assert_failed(token("revoke", "ann"), 1, "There is no token ann.")


def test_token_works_until_it_expires(guarded: ServerProcess, token: Callable[..., Result]) -> None:
    short = assert_succeeded(token("create", "short", "--expires-in", "1s")).strip()
    long = assert_succeeded(token("create", "long", "--expires-in", "1h")).strip()
    eventually(lambda: is_accepted(guarded.url, long))
    eventually(lambda: not is_accepted(guarded.url, short))
    assert is_accepted(guarded.url, long)


def test_tokens_are_listed_without_their_secrets(
    guarded: ServerProcess, token: Callable[..., Result]
) -> None:
    grants = ("--grant", "sales_*=read", "--grant", "own=write")
    created = token("create", "listed", "--role", "writer", *grants, "--expires-in", "90d")
    secret = assert_succeeded(created).strip()
    listed = token("list", "--format", "json")
    assert secret not in listed.output
    (row,) = [row for row in json_rows(listed) if row["name"] == "listed"]
    assert (row["role"], row["grants"]) == ("writer", "sales_*=read, own=write")
    assert row["created_at"] < row["expires_at"]
    for file in guarded.home.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a b",), "cannot be the name of a caller"),
        (("x", "--grant", "sales"), "'sales' is not a grant"),
    ],
)
def test_wrong_arguments_create_no_token(
    token: Callable[..., Result], arguments: tuple[str, ...], problem: str
) -> None:
    assert_failed(token("create", *arguments), 1, problem)
    names = [row["name"] for row in json_rows(token("list", "--format", "json"))]
    assert arguments[0] not in names


def test_servers_of_a_lake_share_tokens_and_logins(
    start_server: Callable[..., ServerProcess], postgres_database: str, tmp_path: Path
) -> None:
    lake = {
        "SWANLAKE_METABASE_URL": postgres_database,
        "SWANLAKE_DATA_PATH": str(tmp_path / "data"),
    }
    servers = [start_server("--auth", "any", **lake) for _ in range(2)]
    secret = assert_succeeded(run("token", "create", "shared", **lake)).strip()
    assert_succeeded(run("user", "create", "ulla", stdin=PASSWORD, **lake))
    for server in servers:
        eventually(partial(is_accepted, server.url, secret))
    login = log_in(servers[0].url, "ulla", PASSWORD)
    assert is_accepted(servers[1].url, login), "the servers share the key of logins"
    assert_succeeded(run("token", "revoke", "shared", **lake))
    assert_succeeded(run("user", "remove", "ulla", **lake))
    for server in servers:
        eventually(partial(is_refused, server.url, secret))
        eventually(partial(is_refused, server.url, login))


# ---- users ---------------------------------------------------------------------------------------


def log_in(url: str, user: str, password: str) -> str:
    """The bearer token that a handshake gives."""
    with flight.FlightClient(url) as client:
        _, header = client.authenticate_basic_token(user, password)
    token: str = header.decode().removeprefix("Bearer ")
    return token


def test_user_logs_in_with_a_password(guarded: ServerProcess, user: Callable[..., Result]) -> None:
    created = assert_succeeded(user("create", "ulf", stdin=PASSWORD + "\n"))
    assert created == "The user ulf can log in.\n"
    eventually(lambda: can_log_in(guarded.url, "ulf", PASSWORD))
    with AdbcConnections(guarded.url) as connections:
        with connections.open(username="ulf", password=PASSWORD).cursor() as cursor:
            cursor.execute("SELECT 42")
            assert cursor.fetchall() == [(42,)]
    login = log_in(guarded.url, "ulf", PASSWORD)
    assert PASSWORD not in login
    assert is_accepted(guarded.url, login)
    payload, signature = login.split(".")[1:]
    content = json.loads(base64.urlsafe_b64decode(payload))
    assert 0 < content["expires_at"] - time.time() <= 3600
    forged = json.dumps(content | {"expires_at": time.time() + 1e6}).encode()
    encoded = base64.urlsafe_b64encode(forged).decode()
    assert not is_accepted(guarded.url, f"swlogin.{encoded}.{signature}")
    assert [row["name"] for row in json_rows(user("list", "--format", "json"))] == ["ulf"]
    assert_succeeded(user("remove", "ulf"))
    eventually(lambda: not is_accepted(guarded.url, login))
    assert not can_log_in(guarded.url, "ulf", PASSWORD)


def can_log_in(url: str, user: str, password: str) -> bool:
    try:
        return bool(log_in(url, user, password))
    except flight.FlightUnauthenticatedError:
        return False


def test_login_expires(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = start_server("--auth", "any", "--login-seconds", "1")
    created = run("user", "create", "una", "--home", str(server.home), stdin=PASSWORD)
    assert_succeeded(created)
    eventually(lambda: can_log_in(server.url, "una", PASSWORD))
    login = log_in(server.url, "una", PASSWORD)
    eventually(lambda: not is_accepted(server.url, login))


def test_short_password_and_taken_name_are_refused(
    token: Callable[..., Result], user: Callable[..., Result]
) -> None:
    assert_failed(user("create", "ute", stdin="short"), 1, "shorter than 8 characters")
    assert_succeeded(token("create", "taken"))
    taken = user("create", "taken", stdin=PASSWORD)
    assert_failed(taken, 1, "A token with the name taken exists already.")


# ---- what remains --------------------------------------------------------------------------------


def test_home_is_private(guarded: ServerProcess) -> None:
    """It existed, and was open to others, before the server started."""
    paths = [guarded.home, *guarded.home.rglob("*")]
    assert len(paths) > 5
    open_to_others = [
        path
        for path in paths
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []


def exchange(client: Any, options: Any = None) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b""), options)
    with writer:
        writer.done_writing()
        reader.read_all()


#: Calls that need no statement.
CALLS: dict[str, Callable[[Any], object]] = {
    "list_flights": lambda client: list(client.list_flights()),
    "do_exchange": exchange,
    "list_actions": lambda client: list(client.list_actions()),
}


@pytest.mark.parametrize("call", ["list_flights", "do_exchange"])
def test_calls_that_do_not_exist_are_unimplemented(server: ServerProcess, call: str) -> None:
    logged = len(server.log_text)
    with flight.FlightClient(server.url) as client:
        with pytest.raises(NotImplementedError, match="NOT_SUPPORTED: SwanLake does not") as error:
            CALLS[call](client)
    assert "Traceback" not in str(error.value)
    assert "Traceback" not in server.log_text[logged:]


@pytest.mark.parametrize("call", CALLS)
def test_calls_without_a_statement_need_credentials_too(guarded: ServerProcess, call: str) -> None:
    with flight.FlightClient(guarded.url) as client:
        with pytest.raises(flight.FlightUnauthenticatedError):
            CALLS[call](client)


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a certificate for the server, which is also the authority of clients."""
    directory = tmp_path_factory.mktemp("tls")
    self_signed(directory)
    return directory


def test_certificate_identifies_the_client(
    start_server: Callable[..., ServerProcess], tls_directory: Path, tmp_path: Path
) -> None:
    authority = tls_directory / "own.pem"
    write_tokens(tmp_path / "home0", alice="the-token-of-alice")
    subjects = tmp_path / "subjects.toml"
    subjects.write_text('["loader.example.com"]\nname = "loader"\nrole = "writer"\n')
    server = start_server(
        *("--auth", "any", "--tls-cert", str(authority)),
        *("--tls-key", str(tls_directory / "own.key"), "--tls-client-ca", str(authority)),
        *("--tls-client-subjects", str(subjects)),
    )

    def select_42(name: str, authorization: str = "", signed_by: Path = tls_directory) -> Any:
        certificate, key = client_certificate(signed_by, name)
        mutual: dict[str, Any] = {
            "adbc.flight.sql.client_option.tls_root_certs": authority.read_text(),
            "adbc.flight.sql.client_option.mtls_cert_chain": certificate.read_text(),
            "adbc.flight.sql.client_option.mtls_private_key": key.read_text(),
        }
        if authorization:
            mutual["adbc.flight.sql.authorization_header"] = authorization
        with AdbcConnections(server.url) as connections:
            with connections.open(**mutual).cursor() as cursor:
                cursor.execute("SELECT 42")
                return cursor.fetchall()

    assert select_42("loader.example.com") == [(42,)]
    with pytest.raises(adbc_driver_manager.Error, match="UNAUTHENTICATED"):
        select_42("stranger.example.com")
    assert "login failed from 127.0.0.1: certificate 'stranger.example.com'" in server.log_text
    assert select_42("stranger.example.com", "Bearer the-token-of-alice") == [(42,)]
    self_signed(tmp_path)
    with pytest.raises(adbc_driver_manager.Error, match="Unavailable"):
        select_42("loader.example.com", signed_by=tmp_path)


def test_changed_certificate_is_used_without_a_restart(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    server = start_server("--tls-cert", str(certificate), "--tls-key", str(key))
    eventually(lambda: "The TLS certificate expires on" in server.log_text)
    old = certificate.read_text()
    replacement = tmp_path / "new"
    replacement.mkdir()
    new, new_key = self_signed(replacement)
    either = old + new.read_text()
    client = FlightSql(server.url, trusted=either, x_swanlake_session_id="survivor")
    client.query("CREATE TEMP TABLE kept AS SELECT 7 AS i")
    result = client.fetch(client.execute("SELECT range AS i FROM range(3000000)"))
    assert result.read_chunk().data.num_rows, "a stream that is open during the change"
    new_key.replace(key)
    new.replace(certificate)
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the new TLS certificate is in use" in server.log_text)
    only_new = FlightSql(server.url, trusted=certificate.read_text())
    assert only_new.query("SELECT 42 AS i").to_pydict() == {"i": [42]}
    assert result.read_all()["i"][-1].as_py() == 2_999_999
    assert client.query("FROM kept").to_pydict() == {"i": [7]}
    only_old = FlightSql(server.url, trusted=old)
    with pytest.raises(flight.FlightUnavailableError):
        only_old.query("SELECT 42")
    certificate.write_text("not a certificate")

    def is_reported() -> bool:
        server.process.send_signal(signal.SIGHUP)
        return "the new TLS files are not used" in server.log_text

    eventually(is_reported)
    assert only_new.query("SELECT 42 AS i").to_pydict() == {"i": [42]}
    for one in (client, only_new, only_old):
        one.close()
    assert server.stop() == 0
