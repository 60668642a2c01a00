"""Readiness of a server, and its state as JSON."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from swanlake.cli.commands import swanlake
from swanlake.client import FlightSQLClient
from tests.cli_results import assert_succeeded
from tests.credentials import write_tokens
from tests.postgres_server import PostgresServer
from tests.server_process import ServerProcess
from tests.waiting import eventually

ON = {"SWANLAKE_STATUS": "on", "SWANLAKE_STATUS_PORT": "0"}
ADMIN = "the-token-of-an-admin-0001"


def ready(server: ServerProcess) -> dict[str, Any]:
    response = httpx.get(f"{server.status_url}/readyz?format=json")
    body: dict[str, Any] = response.json()
    assert response.status_code == (200 if body["ready"] else 503)
    return body


def failed(server: ServerProcess) -> list[str]:
    return [check["name"] for check in ready(server)["checks"] if not check["ok"]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "home", **ON) as server:
        eventually(lambda: ready(server)["ready"])
        yield server


def test_ready_server_shows_its_checks(server: ServerProcess) -> None:
    body = ready(server)
    assert body["state"] == "accepting"
    assert body["reasons"] == []
    assert [check["name"] for check in body["checks"]] == ["engine", "catalog", "storage", "queue"]
    assert httpx.get(f"{server.status_url}/readyz").text == "ok\n"
    assert httpx.get(f"{server.status_url}/healthz").status_code == 200
    verbose = httpx.get(f"{server.status_url}/readyz?verbose").text
    assert verbose.splitlines()[0] == "state: accepting"
    assert verbose.splitlines()[-1] == "ready"
    assert "[+] queue" in verbose


def test_missing_queue_directory_is_noticed_and_its_return(server: ServerProcess) -> None:
    [directory] = [path for path in (server.home / "queue").iterdir() if path.is_dir()]
    moved = directory.with_name("moved")
    directory.rename(moved)
    eventually(lambda: failed(server) == ["queue"])
    page = httpx.get(f"{server.status_url}/readyz")
    assert page.status_code == 503
    assert page.text == "The queue cannot store rows.\n"
    assert str(server.home) not in page.text
    [queue] = [
        check
        for check in httpx.get(f"{server.status_url}/status.json").json()["health"]["checks"]
        if check["name"] == "queue"
    ]
    assert "QUEUE_UNAVAILABLE" in queue["detail"]
    moved.rename(directory)
    eventually(lambda: ready(server)["ready"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_storage_is_noticed(server: ServerProcess) -> None:
    data = server.home / "data"
    data.mkdir(exist_ok=True)
    data.chmod(0o500)
    eventually(lambda: failed(server) == ["storage"])
    data.chmod(0o700)
    eventually(lambda: ready(server)["ready"])


def test_storage_that_is_a_file_is_noticed(server: ServerProcess) -> None:
    data = server.home / "data"
    if data.exists():
        shutil.rmtree(data)
    data.symlink_to("nowhere")
    eventually(lambda: failed(server) == ["storage"])
    data.unlink()
    eventually(lambda: ready(server)["ready"])


def test_lost_database_is_noticed_and_its_password_is_not_told(tmp_path: Path) -> None:
    with PostgresServer() as postgres:
        url = make_conninfo(postgres.url, password="password-of-the-lake")
        with ServerProcess(tmp_path / "home", SWANLAKE_METABASE_URL=url, **ON) as server:
            eventually(lambda: ready(server)["ready"])
            postgres.stop()
            eventually(lambda: failed(server) == ["catalog"])
            assert httpx.get(f"{server.status_url}/livez").status_code == 200
            for path in ("/readyz?verbose", "/readyz?format=json", "/status.json"):
                assert "password-of-the-lake" not in httpx.get(server.status_url + path).text
            assert "password-of-the-lake" not in server.log_text
            postgres.start()
            eventually(lambda: ready(server)["ready"])


def test_status_json_has_all_for_an_admin(server: ServerProcess) -> None:
    with FlightSQLClient(server.url) as client:
        client.execute("CREATE TABLE t (i INTEGER)")
        client.execute("INSERT INTO duckling_queue.t VALUES (1), (2)")
        action = client.status()
    facts = httpx.get(f"{server.status_url}/status.json").json()
    assert action.keys() <= facts.keys()
    assert facts["version"] == action["version"]
    assert facts["state"] == "accepting"
    assert facts["caller"] == {"name": "anonymous", "role": "admin"}
    [queued] = facts["queue"]["tables"]
    assert queued["table"] == "swanlake.main.t"
    assert queued["rows"] == 2
    assert len(facts["statements"]["slow"]) >= 2
    assert facts["pipeline"]["state"] == "ready"
    eventually(lambda: _catalogs(server) == ["swanlake"])
    with FlightSQLClient(server.url) as client:
        client.execute("CALL swanlake_create_catalog('later')")
    eventually(lambda: _catalogs(server) == ["later", "swanlake"])
    assert facts["lake"]["dead_letters"] == {"count": 0, "rows": 0, "newest": []}


def _catalogs(server: ServerProcess) -> list[str]:
    facts = httpx.get(f"{server.status_url}/status.json").json()
    return [catalog["name"] for catalog in facts["lake"]["catalogs"]]


def test_status_json_shows_others_only_what_is_theirs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_tokens(home, admin=ADMIN)
    with ServerProcess(home, "--auth", "any", **ON) as server:
        with FlightSQLClient(server.url, token=ADMIN) as client:
            client.execute("CREATE TABLE t (i INTEGER)")
            client.execute("INSERT INTO duckling_queue.t VALUES (1)")
            client.execute("CALL swanlake_fork_catalog('swanlake', 'sales')")
        command = ["token", "create", "reader", "--role", "reader", "--grant", "sales=read"]
        created = CliRunner().invoke(swanlake, [*command, "--home", str(home)])
        token = assert_succeeded(created).strip()
        address = f"{server.status_url}/status.json"
        facts = httpx.get(address, headers={"authorization": f"Bearer {token}"}).json()
        assert facts.keys() == {
            *("version", "state", "health", "caller", "statements", "open_sessions"),
            *("queue", "lake"),
        }
        assert facts["queue"]["tables"] == []
        assert facts["statements"] == {"running": [], "errors": [], "slow": []}
        assert facts["open_sessions"] == []
        [catalog] = facts["lake"]["catalogs"]
        assert (catalog["name"], catalog["parent"]) == ("sales", None)
        with FlightSQLClient(server.url, token=token) as client:
            [row] = client.execute("FROM swanlake_catalogs()").to_pylist()
        assert (row["catalog_name"], row["parent_name"]) == ("sales", None)
        assert all("detail" not in check for check in facts["health"]["checks"])
        assert httpx.get(address).status_code == 401


def test_history_is_kept_over_a_restart(tmp_path: Path) -> None:
    def points(server: ServerProcess) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{server.status_url}/api/history").json()["points"]
        return found

    server = ServerProcess(tmp_path / "home", **ON).start()
    with FlightSQLClient(server.url) as client:
        client.execute("SELECT 1")
        eventually(lambda: [each for each in points(server) if each["statements_per_second"]])
    assert server.stop() == 0
    with ServerProcess(tmp_path / "home", **ON) as server:
        assert [each for each in points(server) if each["statements_per_second"]]
