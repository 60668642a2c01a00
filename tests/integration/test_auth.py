"""Who may call, who a caller is, and what one identity sees of another; TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from swanlake.errors import NotAuthenticated, ServerUnavailable
from tests.conftest import AdbcConnections
from tests.flight import FlightSql
from tests.server_process import ServerProcess

BEARER = "adbc.flight.sql.authorization_header"
SESSION = "adbc.flight.sql.rpc.call_header.x-swanlake-session-id"
ALICE, BOB = "token-of-alice", "token-of-bob"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that asks for tokens and knows alice and bob."""
    home = tmp_path_factory.mktemp("guarded") / "home"
    (home / "tokens").mkdir(parents=True)
    (home / "tokens" / "alice").write_text(ALICE + "\n")
    (home / "tokens" / "bob").write_text(BOB)
    (home / "tokens" / "nobody").write_text("\n")
    (home / "tokens" / "garbage").write_bytes(b"\xff\xfe")
    (home / "tokens" / ".alice.swp").write_text("token-in-a-hidden-file")
    with ServerProcess(home, "--auth", "token") as server:
        yield server


@pytest.fixture
def enter(guarded: ServerProcess) -> Iterator[Callable[..., Any]]:
    """Opens stock ADBC connections to the guarded server."""
    with AdbcConnections(guarded.url) as connections:
        yield connections.open


def select(connection: Any, sql: str = "SELECT 42") -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def ping(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["ping", *arguments], env=environment)
    return result.exit_code, result.output


# ---- tokens --------------------------------------------------------------------------------------


def test_user_and_token_as_password_let_in(enter: Callable[..., Any]) -> None:
    assert select(enter(username="alice", password=ALICE)) == [(42,)]


def test_token_as_bearer_header_lets_in(enter: Callable[..., Any]) -> None:
    assert select(enter(**{BEARER: f"Bearer {BOB}"})) == [(42,)]


def test_driver_and_ping_take_a_token(guarded: ServerProcess, tmp_path: Path) -> None:
    with FlightSQLClient(guarded.url, token=ALICE) as connection:
        assert connection.status()["state"] == "accepting"
    with FlightSQLClient(guarded.url, user="alice", password=ALICE) as connection:
        assert connection.query("SELECT 42").scalar() == 42
    assert ping("--url", guarded.url, SWANLAKE_TOKEN=ALICE)[0] == 0
    file = tmp_path / "token"
    file.write_text(BOB + "\n")
    assert ping("--url", guarded.url, "--token-file", str(file))[0] == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "This server asks for a token"),
        ({BEARER: "Bearer wrong"}, "The token is not known to this server."),
        ({BEARER: "Bearer token-in-a-hidden-file"}, "The token is not known to this server."),
        ({BEARER: "Bearer"}, "The token is not known to this server."),
        ({BEARER: "Digest x"}, "The authorization scheme 'Digest' is not offered"),
        ({BEARER: "Basic %%%"}, "The Basic credentials are not valid base64 text."),
        ({BEARER: "Basic YQpiOng="}, "The user name holds characters that cannot be printed."),
    ],
)
def test_wrong_credentials_are_refused(
    enter: Callable[..., Any], options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(adbc_driver_manager.Error) as refused:
        select(enter(**options))
    assert refused.value.status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED
    assert f"UNAUTHENTICATED: {sentence}" in str(refused.value)
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize(
    ("user", "password", "sentence"),
    [
        ("alice", "wrong", "The token is not known to this server."),
        ("alice", BOB, "The user and the token do not belong together."),
        ("nobody", "", "The token is not known to this server."),
    ],
)
def test_wrong_user_or_password_is_refused(
    enter: Callable[..., Any], user: str, password: str, sentence: str
) -> None:
    with pytest.raises(adbc_driver_manager.Error) as refused:
        select(enter(username=user, password=password))
    assert f"UNAUTHENTICATED: {sentence}" in str(refused.value)


def test_refusal_as_the_driver_and_ping_tell_it(guarded: ServerProcess) -> None:
    with pytest.raises(NotAuthenticated):
        FlightSQLClient(guarded.url, token="wrong")
    code, output = ping("--url", guarded.url)
    assert code == 1
    assert "rejecting: This server asks for a token" in output


def test_token_files_may_come_change_and_go(
    guarded: ServerProcess, enter: Callable[..., Any]
) -> None:
    file = guarded.home / "tokens" / "carol"
    file.write_text("first-token-of-carol")
    carol = enter(**{BEARER: "Bearer first-token-of-carol"})
    assert select(carol) == [(42,)]
    file.write_text("other-token-of-carol, longer")
    with pytest.raises(adbc_driver_manager.Error, match="UNAUTHENTICATED"):
        select(carol)
    assert select(enter(**{BEARER: "Bearer other-token-of-carol, longer"})) == [(42,)]
    file.unlink()
    with pytest.raises(adbc_driver_manager.Error, match="UNAUTHENTICATED"):
        select(enter(**{BEARER: "Bearer other-token-of-carol, longer"}))
    assert select(enter(**{BEARER: f"Bearer {ALICE}"})) == [(42,)]


# ---- identities ----------------------------------------------------------------------------------


def test_same_session_id_of_two_identities_is_two_sessions(enter: Callable[..., Any]) -> None:
    alice = enter(**{BEARER: f"Bearer {ALICE}", SESSION: "shared-name"})
    bob = enter(**{BEARER: f"Bearer {BOB}", SESSION: "shared-name"})
    again = enter(**{SESSION: "shared-name"}, username="alice", password=ALICE)
    select(alice, "CREATE TEMP TABLE private AS SELECT 1 AS i")
    assert select(again, "FROM private") == [(1,)], "one identity shares its session"
    with pytest.raises(adbc_driver_manager.Error, match="CATALOG_ERROR"):
        select(bob, "FROM private")


def test_ticket_of_another_identity_opens_nothing(guarded: ServerProcess) -> None:
    alice = FlightSql(guarded.url, authorization=f"Bearer {ALICE}")
    bob = FlightSql(guarded.url, authorization=f"Bearer {BOB}")
    info = alice.execute("SELECT 42 AS i")
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        bob.fetch(info).read_all()
    with pytest.raises(flight.FlightUnauthenticatedError):
        FlightSql(guarded.url).fetch(info).read_all()
    assert alice.fetch(info).read_all().to_pydict() == {"i": [42]}
    alice.close()
    bob.close()


def test_without_authentication_the_user_name_is_the_identity(connect: Callable[..., Any]) -> None:
    alice = connect(username="alice", password="", **{SESSION: "trusted"})
    again = connect(username="alice", password="ignored", **{SESSION: "trusted"})
    bob = connect(username="bob", password="", **{SESSION: "trusted"})
    anonymous = connect(**{SESSION: "trusted"})
    select(alice, "CREATE TEMP TABLE private AS SELECT 1 AS i")
    assert select(again, "FROM private") == [(1,)]
    for stranger in (bob, anonymous):
        with pytest.raises(adbc_driver_manager.Error, match="CATALOG_ERROR"):
            select(stranger, "FROM private")


# ---- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for this machine, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key), "-out",
         str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_tls_for_those_who_trust_the_certificate(
    start_server: Callable[..., ServerProcess], certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    server = start_server("--tls-cert", str(cert), "--tls-key", str(key))
    assert server.url == f"grpc+tls://127.0.0.1:{server.port}"
    with AdbcConnections(server.url) as connections:
        roots: Any = {"adbc.flight.sql.client_option.tls_root_certs": cert.read_text()}
        assert select(connections.open(**roots)) == [(42,)]
    assert ping("--url", server.url, "--tls-ca", str(cert)) == (0, f"{server.url} - accepting\n")
    with FlightSQLClient(server.url, tls_ca=cert) as trusting:
        assert trusting.query("SELECT 42").scalar() == 42
    for url in (server.url, server.url.replace("+tls", "")):
        with pytest.raises(ServerUnavailable):
            FlightSQLClient(url, connect_timeout=5)
    assert server.stop() == 0


@pytest.mark.parametrize("wrong", ["swapped", "encrypted"])
def test_unusable_tls_files_exit_2(
    tmp_path: Path, certificate: tuple[Path, Path], wrong: str
) -> None:
    cert, key = certificate
    if wrong == "swapped":
        cert, key = key, cert
    else:
        locked = tmp_path / "locked.pem"
        subprocess.run(
            ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:x",
             "-out", str(locked)],
            check=True, capture_output=True,
        )  # fmt: skip
        key = locked
    result = CliRunner().invoke(
        command, ["serve", "--home", str(tmp_path), "--tls-cert", str(cert), "--tls-key", str(key)]
    )
    assert result.exit_code == 2
    assert "tls_cert and tls_key must be a PEM certificate" in result.stderr
