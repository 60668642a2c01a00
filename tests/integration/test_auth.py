"""Authentication by token, isolation between identities, and TLS."""

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
from tests.credentials import is_accepted, write_tokens
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.tls import self_signed
from tests.waiting import eventually

BEARER = "adbc.flight.sql.authorization_header"
SESSION = "adbc.flight.sql.rpc.call_header.x-swanlake-session-id"
ALICE, BOB = "the-token-of-alice", "the-token-of-bob"
SHORT = "fifteen letters"
REFUSAL = "UNAUTHENTICATED: This server requires valid credentials: "


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with token authentication that knows alice and bob."""
    home = tmp_path_factory.mktemp("token_server") / "home"
    write_tokens(home, alice=ALICE + "\n", bob=BOB, nobody="\n", short=SHORT)
    write_tokens(home, **{".alice.swp": "token-in-a-hidden-file", "garbage": "\udcff\udcfe"})
    with ServerProcess(home, "--auth", "token") as server:
        yield server


@pytest.fixture
def connect_token(token_server: ServerProcess) -> Iterator[Callable[..., Any]]:
    """Opens stock ADBC connections to the server with tokens."""
    with AdbcConnections(token_server.url) as connections:
        yield connections.open


def select(connection: Any, sql: str = "SELECT 42") -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def ping(*arguments: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["ping", *arguments], env=environment)
    return result.exit_code, result.output


# ---- tokens --------------------------------------------------------------------------------------


def test_user_name_with_token_as_password_is_accepted(connect_token: Callable[..., Any]) -> None:
    assert select(connect_token(username="alice", password=ALICE)) == [(42,)]


def test_bearer_token_is_accepted(connect_token: Callable[..., Any]) -> None:
    assert select(connect_token(**{BEARER: f"Bearer {BOB}"})) == [(42,)]


def test_client_and_ping_authenticate_with_a_token(
    token_server: ServerProcess, tmp_path: Path
) -> None:
    with FlightSQLClient(token_server.url, token=ALICE) as connection:
        assert connection.status()["state"] == "accepting"
    with FlightSQLClient(token_server.url, user="alice", password=ALICE) as connection:
        assert connection.query("SELECT 42").scalar() == 42
    assert ping("--url", token_server.url, SWANLAKE_TOKEN=ALICE)[0] == 0
    file = tmp_path / "token"
    file.write_text(BOB + "\n")
    assert ping("--url", token_server.url, "--token-file", str(file))[0] == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {BEARER: "Bearer wrong"},
        {BEARER: "Bearer token-in-a-hidden-file"},
        {BEARER: f"Bearer {SHORT}"},
        {BEARER: "Bearer"},
        {BEARER: "Digest x"},
        {BEARER: "Basic %%%"},
        {BEARER: "Basic YQpiOng="},
        {"username": "alice", "password": "wrong"},
        {"username": "alice", "password": BOB},
        {"username": "nobody", "password": ""},
        {"username": "stranger", "password": "wrong"},
    ],
)
def test_every_refusal_has_the_same_words(
    connect_token: Callable[..., Any], options: dict[str, str]
) -> None:
    with pytest.raises(adbc_driver_manager.Error) as refused:
        select(connect_token(**options))
    assert refused.value.status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED
    assert REFUSAL in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_client_and_ping_report_a_missing_or_wrong_token(token_server: ServerProcess) -> None:
    with pytest.raises(NotAuthenticated):
        FlightSQLClient(token_server.url, token="wrong")
    code, output = ping("--url", token_server.url)
    assert code == 1
    assert "rejecting: This server requires valid credentials" in output


def test_token_file_changes_take_effect_within_seconds(
    token_server: ServerProcess, connect_token: Callable[..., Any]
) -> None:
    first, second = "first-token-of-carol", "second-token-of-carol"
    write_tokens(token_server.home, carol=first)
    eventually(lambda: is_accepted(token_server.url, first))
    write_tokens(token_server.home, carol=second)
    eventually(lambda: is_accepted(token_server.url, second))
    eventually(lambda: not is_accepted(token_server.url, first))
    (token_server.home / "tokens" / "carol").unlink()
    eventually(lambda: not is_accepted(token_server.url, second))
    assert select(connect_token(**{BEARER: f"Bearer {ALICE}"})) == [(42,)]


def test_token_file_that_becomes_loose_is_not_used(token_server: ServerProcess) -> None:
    write_tokens(token_server.home, dave="the-token-of-dave")
    eventually(lambda: is_accepted(token_server.url, "the-token-of-dave"))
    file = token_server.home / "tokens" / "dave"
    file.chmod(0o640)
    eventually(lambda: not is_accepted(token_server.url, "the-token-of-dave"))
    assert f"the token file {file} is not used: other users can read it" in token_server.log_text
    file.unlink()


def test_start_with_a_loose_token_file_exits_2(tmp_path: Path) -> None:
    write_tokens(tmp_path, alice=ALICE)
    (tmp_path / "tokens" / "alice").chmod(0o644)
    result = CliRunner().invoke(command, ["serve", "--home", str(tmp_path), "--auth", "token"])
    assert result.exit_code == 2
    assert "Other users can read the token file" in result.stderr
    assert not (tmp_path / "catalogs").exists(), "nothing is initialised"


# ---- identities ----------------------------------------------------------------------------------


def test_session_id_is_scoped_to_the_identity(connect_token: Callable[..., Any]) -> None:
    alice = connect_token(**{BEARER: f"Bearer {ALICE}", SESSION: "shared-name"})
    bob = connect_token(**{BEARER: f"Bearer {BOB}", SESSION: "shared-name"})
    again = connect_token(**{SESSION: "shared-name"}, username="alice", password=ALICE)
    select(alice, "CREATE TEMP TABLE private AS SELECT 1 AS i")
    assert select(again, "FROM private") == [(1,)], "one identity shares its session"
    with pytest.raises(adbc_driver_manager.Error, match="CATALOG_ERROR"):
        select(bob, "FROM private")


def test_ticket_of_another_identity_is_refused(token_server: ServerProcess) -> None:
    alice = FlightSql(token_server.url, authorization=f"Bearer {ALICE}")
    bob = FlightSql(token_server.url, authorization=f"Bearer {BOB}")
    info = alice.execute("SELECT 42 AS i")
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        bob.fetch(info).read_all()
    with pytest.raises(flight.FlightUnauthenticatedError):
        FlightSql(token_server.url).fetch(info).read_all()
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
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_tls_connects_only_clients_that_trust_the_certificate(
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
