"""The audit log and the statement log of a real server, and grants that take effect at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from swanlake.cli.commands import swanlake as command
from tests.cli_results import assert_succeeded
from tests.conftest import AdbcConnections
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.waiting import eventually

SECRET = "my-little-secret"


def create_token(home: Path, name: str, *options: str) -> str:
    arguments = ["token", "create", name, *options, "--home", str(home)]
    result = CliRunner().invoke(command, arguments)
    assert_succeeded(result)
    return result.output.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited") / "home"


@pytest.fixture(scope="module")
def tokens(home: Path) -> dict[str, str]:
    return {
        "root": create_token(home, "root", "--role", "admin"),
        "ann": create_token(home, "ann", "--role", "writer"),
    }


@pytest.fixture(scope="module")
def server(home: Path, tokens: dict[str, str]) -> Iterator[ServerProcess]:
    options = ("--auth", "any", "--pipeline", "inline", "--log-statements", "redacted")
    with ServerProcess(home, *options) as server:
        yield server


@pytest.fixture
def connect(server: ServerProcess, tokens: dict[str, str]) -> Iterator[Callable[..., FlightSql]]:
    opened: list[FlightSql] = []

    def connect(name: str, **headers: str) -> FlightSql:
        opened.append(FlightSql(server.url, authorization=f"Bearer {tokens[name]}", **headers))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def rows(connection: FlightSql, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.query(sql).to_pylist()
    return found


# ---- the audit log -------------------------------------------------------------------------------


def test_change_is_in_the_audit_log(
    connect: Callable[..., FlightSql], home: Path, server: ServerProcess
) -> None:
    ann, root = connect("ann", x_swanlake_session_id="audited"), connect("root")
    ann.query("CREATE TABLE audited (s VARCHAR)")
    ann.query(f"INSERT INTO audited VALUES ('{SECRET}')", x_swanlake_query_id="audited-1")
    ann.query("SELECT * FROM audited")
    [entry] = rows(root, "FROM swanlake_audit() WHERE query_id = 'audited-1'")
    assert (entry["user"], entry["role"], entry["session_id"]) == ("ann", "writer", "audited")
    assert (entry["kind"], entry["outcome"], entry["rows"]) == ("INSERT", "ok", 1)
    assert entry["text"] == "INSERT INTO audited VALUES (?)"
    assert entry["address"].startswith("127.0.0.1:")
    assert entry["seconds"] > 0
    texts = [entry["text"] for entry in rows(root, "FROM swanlake_audit()")]
    assert "SELECT * FROM audited" not in texts
    [opened] = rows(root, "FROM swanlake_audit() WHERE kind = 'opened' AND session_id = 'audited'")
    assert (opened["event"], opened["user"]) == ("session", "ann")
    assert opened["address"].startswith("127.0.0.1:")
    assert SECRET not in (home / "logs" / "audit.jsonl").read_text()
    assert SECRET not in server.log_text


def test_actions_are_recorded_with_their_arguments(connect: Callable[..., FlightSql]) -> None:
    root = connect("root")
    root.query("CALL duckling_queue_pause()")
    root.query("CALL duckling_queue_resume()")
    with pytest.raises(pa.ArrowKeyError):
        root.query("KILL QUERY 'no-such-query'")
    entries = rows(root, "FROM swanlake_audit() WHERE action IS NOT NULL")
    actions = {(entry["action"], entry["outcome"], entry["user"]) for entry in entries}
    assert actions >= {
        ("duckling_queue_pause()", "ok", "root"),
        ("duckling_queue_resume()", "ok", "root"),
        ("swanlake_kill_query(id => 'no-such-query')", "QUERY_NOT_FOUND", "root"),
    }


def test_denied_statement_is_recorded(connect: Callable[..., FlightSql]) -> None:
    ann = connect("ann")
    for sql in ("FROM swanlake_audit()", "CALL swanlake_audit()", "FROM read_text('/etc/passwd')"):
        with pytest.raises(flight.FlightUnauthorizedError):
            ann.query(sql)
    denied = rows(connect("root"), "FROM swanlake_audit() WHERE outcome = 'ACCESS_DENIED'")
    assert "FROM read_text(?)" in {entry["text"] for entry in denied}


def test_logins_are_recorded(
    server: ServerProcess, home: Path, connect: Callable[..., FlightSql], tokens: dict[str, str]
) -> None:
    with AdbcConnections(server.url) as connections:
        connections.open(username="ann", password=tokens["ann"]).close()
        with pytest.raises(Exception, match="credentials"):
            connections.open(username="mallory", password="wrong").cursor().execute("SELECT 1")
    logins = rows(connect("root"), "FROM swanlake_audit() WHERE event = 'login'")
    assert {(login["user"], login["outcome"]) for login in logins} >= {
        ("ann", "ok"),
        ("mallory", "NOT_AUTHENTICATED"),
    }
    text = (home / "logs" / "audit.jsonl").read_text()
    assert not any(token in text for token in tokens.values())


def test_audit_log_is_closed_to_statements(
    connect: Callable[..., FlightSql], home: Path, server: ServerProcess
) -> None:
    file = home / "logs" / "audit.jsonl"
    for caller in ("ann", "root"):
        with pytest.raises(flight.FlightUnauthorizedError):
            connect(caller).query(f"COPY (SELECT 1) TO '{file}'")


def test_last_entries_are_written_at_the_end(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServerProcess(home, "--pipeline", "inline", "--audit", "all") as server:
        connection = FlightSql(server.url, x_swanlake_session_id="last")
        connection.query("SELECT 42 AS last_statement")
        server.stop()
        connection.close()
    lines = (home / "logs" / "audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert "SELECT ? AS last_statement" in {entry.get("text") for entry in entries}
    closed = [entry for entry in entries if entry.get("kind") == "closed"]
    assert [(entry["session_id"], entry["outcome"]) for entry in closed] == [("last", "shutdown")]


# ---- the log -------------------------------------------------------------------------------------


def test_failed_statement_is_logged_once(
    server: ServerProcess, connect: Callable[..., FlightSql]
) -> None:
    with pytest.raises(pa.ArrowException):
        connect("ann").query(f"SELECT '{SECRET}' FROM no_such", x_swanlake_query_id="failed-1")
    eventually(lambda: "query id failed-1" in server.log_text)
    [line] = [line for line in server.log_text.splitlines() if "failed-1" in line]
    assert re.search(
        r"statement failed: CATALOG_ERROR, user ann, \d\.\d+ s, query id failed-1: "
        r"SELECT \? FROM no_such$",
        line,
    )


def test_sessions_are_not_logged(server: ServerProcess, connect: Callable[..., FlightSql]) -> None:
    connect("ann", x_swanlake_session_id="quiet").query("SELECT 1")
    assert "quiet" not in server.log_text


def test_slow_statement_is_logged(tmp_path: Path) -> None:
    options = ("--pipeline", "inline", "--slow-query-seconds", "0.000001")
    with ServerProcess(tmp_path / "home", *options) as server:
        connection = FlightSql(server.url)
        connection.query("SELECT 'slow text'", x_swanlake_query_id="slow-1")
        connection.close()
        eventually(lambda: "statement was slow, user anonymous" in server.log_text)
    assert "query id slow-1" in server.log_text
    assert "slow text" not in server.log_text


# ---- grants --------------------------------------------------------------------------------------


def test_grants_are_effective_with_the_next_call(
    home: Path,
    server: ServerProcess,
    tokens: dict[str, str],
    connect: Callable[..., FlightSql],
) -> None:
    root = connect("root")
    root.query("CALL swanlake_create_catalog('vault')")
    root.query("CREATE TABLE vault.main.t AS SELECT 1 AS i")
    tokens["bob"] = create_token(home, "bob", "--grant", "swanlake=read")
    bob = connect("bob", x_swanlake_session_id="bobs")

    def may(sql: str) -> bool:
        try:
            bob.query(sql)
        except pa.ArrowException:
            return False
        return True

    read, write = "FROM vault.main.t", "INSERT INTO vault.main.t VALUES (2)"
    eventually(lambda: may("SELECT 1"))  # the server reads new credentials within seconds
    assert not may(read)
    [row] = rows(root, "CALL swanlake_grant('bob', 'va*', 'read')")
    assert row["grants"] == ["swanlake=read", "va*=read"]
    assert (may(read), may(write)) == (True, False)
    with pytest.raises(pa.ArrowInvalid, match="grant the role writer first"):
        root.query("CALL swanlake_grant('bob', 'vault', 'write')")
    root.query("CALL swanlake_grant('bob', 'vault', 'write', role => 'writer')")
    assert (may(read), may(write)) == (True, True)
    root.query("CALL swanlake_revoke('bob', 'va*')")
    assert (may(read), may(write), may("SELECT 1")) == (False, False, True)
    [listed] = rows(root, "FROM swanlake_tokens() WHERE name = 'bob'")
    assert (listed["role"], listed["grants"]) == ("writer", ["swanlake=read", "va*=none"])
    assert rows(root, "FROM swanlake_users()") == []
    with pytest.raises(pa.ArrowKeyError, match="CALLER_NOT_FOUND"):
        root.query("CALL swanlake_grant('eve', role => 'admin')")


@pytest.mark.parametrize(
    "sql",
    [
        "CALL swanlake_grant('ann', role => 'admin')",
        "CALL swanlake_grant('ann', '*', 'write')",
        "CALL swanlake_revoke('root', '*')",
        "CALL swanlake_users()",
        "FROM swanlake_tokens()",
    ],
)
def test_grants_are_for_admins(connect: Callable[..., FlightSql], sql: str) -> None:
    with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
        connect("ann").query(sql)
