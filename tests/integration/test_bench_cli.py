"""``swanlake bench fanout`` against real servers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient, connect
from tests.cli_results import assert_failed, assert_succeeded
from tests.server_process import ServerProcess
from tests.waiting import eventually

SMALL = ("--tasks", "4", "--statements", "12")
#: Each task creates two tables and runs a cycle with two reads.
COMMITS = 4 * 10


def fanout(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["bench", "fanout", *arguments], prog_name="swanlake")


@pytest.fixture
def server_on_each_metabase(
    metabase: str | Path, start_server: Callable[..., ServerProcess]
) -> ServerProcess:
    """A server on the embedded metabase, then one on PostgreSQL."""
    if isinstance(metabase, Path):
        return start_server()
    return start_server(SWANLAKE_METABASE_URL=metabase)


def schemas(url: str, catalog: str = "workbook") -> list[str]:
    """The schemas that runs created in a catalog."""
    query = (
        "SELECT schema_name FROM information_schema.schemata "
        f"WHERE catalog_name = '{catalog}' AND schema_name LIKE 'fanout_%'"
    )
    with connect(url) as client:
        client.execute(f"USE {catalog}")
        return [name for (name,) in client.query(query).rows()]


def test_run_reports_and_removes_its_tables(server_on_each_metabase: ServerProcess) -> None:
    url = server_on_each_metabase.url
    report = json.loads(assert_succeeded(fanout("--url", url, *SMALL, "--format", "json")))
    assert (report["tasks"], report["statements"], report["servers"]) == (4, 12, [url])
    assert report["commits"] == report["latency_ms"]["statements"] == COMMITS
    assert (report["failures"], report["wrong_counts"]) == ([], [])
    assert report["kinds"]["read back"]["statements"] == 4 * 2
    assert schemas(url) == []

    shown = assert_succeeded(fanout("--url", url, *SMALL, "--keep"))
    assert re.search(r"│ all that commit +│ +40 │", shown)
    assert f"4 tasks, {COMMITS} commits in" in shown
    assert "failures 0, retries " in shown
    [left] = schemas(url)
    assert f'The tables are in "workbook"."{left}".' in shown
    with connect(url) as client:
        assert client.query(f"SELECT count(*) FROM workbook.{left}.shared").scalar() == 4 * 2


def test_tasks_are_spread_over_the_servers(
    postgres_database: str, tmp_path: Path, start_server: Callable[..., ServerProcess]
) -> None:
    servers = [
        start_server(
            SWANLAKE_METABASE_URL=postgres_database, SWANLAKE_DATA_PATH=str(tmp_path / "data")
        )
        for _ in range(2)
    ]
    urls = [option for server in servers for option in ("--url", server.url)]
    report = json.loads(
        assert_succeeded(fanout(*urls, *SMALL, "--catalog", "shelf", "--format", "json"))
    )
    assert report["servers"] == [server.url for server in servers]
    assert report["schema"].startswith('"shelf"."fanout_')
    for server in servers:
        with connect(server.url) as client:
            assert client.status()["sessions"]["created"] >= 2


def test_wrong_count_is_reported(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = FlightSQLClient.execute

    def loses_updates(self: FlightSQLClient, sql: str) -> object:
        return execute(self, "SELECT 1" if sql.startswith("UPDATE") else sql)

    monkeypatch.setattr(FlightSQLClient, "execute", loses_updates)
    result = fanout("--url", server.url, "--tasks", "2", "--statements", "12", "--format", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["failures"] == []
    # For each task: both reads, and at the end its own table and its rows in the shared one.
    assert len(report["wrong_counts"]) == 2 * (2 + 2)
    assert result.stderr.startswith("swanlake: 8 counts came out wrong. The first: task 0, read")
    assert result.stderr.count("\n") == 1


def test_failing_statement_is_reported(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = FlightSQLClient.execute

    def misspells(self: FlightSQLClient, sql: str) -> object:
        return execute(self, sql.replace("DELETE FROM", "DELETE FORM"))

    monkeypatch.setattr(FlightSQLClient, "execute", misspells)
    result = fanout("--url", server.url, "--tasks", "1", "--statements", "12")
    assert result.exit_code == 1
    assert "failures 1, retries 0, conflicts 0, wrong counts 0" in result.stdout
    assert result.stderr.startswith(
        "swanlake: 1 statement failed. The first: task 0, delete: PARSER_ERROR: "
    )
    assert result.stderr.count("\n") == 1


def test_invalid_catalog_name_is_refused(server: ServerProcess) -> None:
    assert_failed(fanout("--url", server.url, "--catalog", "two words"), 1, "'two words' cannot be")


def test_no_connection_exits_2() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        assert_failed(fanout("--url", url, *SMALL), 2, f"No server answers at {url}: ")


@pytest.mark.parametrize("option", ["--tasks", "--statements"])
def test_zero_tasks_or_statements_are_refused(option: str) -> None:
    assert fanout(option, "0").exit_code == 2


def test_killed_server_is_reported(start_server: Callable[..., ServerProcess]) -> None:
    own_server = start_server()

    def kill_during_the_run() -> None:
        with connect(own_server.url) as client:
            eventually(lambda: client.status()["sessions"]["active"] >= 2)
        own_server.kill()

    killer = threading.Thread(target=kill_during_the_run)
    killer.start()
    result = fanout(
        "--url", own_server.url, "--tasks", "2", "--statements", "100000", "--format", "json"
    )
    killer.join()
    assert result.exit_code == 1
    assert re.match(r"swanlake: \d statements failed. The first: task \d, .*: ", result.stderr)
    assert result.stderr.count("\n") == 1
    assert len(json.loads(result.stdout)["failures"]) == 2 + 2  # the counts and the clean-up


def test_terminal_shows_a_progress_bar(server: ServerProcess) -> None:
    terminal, side = pty.openpty()
    arguments = [sys.executable, "-m", "swanlake", "bench", "fanout", "--url", server.url]
    finished = subprocess.run(
        [*arguments, "--tasks", "1", "--statements", "12", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=side,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        timeout=60,
        check=True,
    )
    os.close(side)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "fanout" in seen
    assert "12/12" in seen
    assert json.loads(finished.stdout)["commits"] == 10


def test_interrupted_run_removes_its_tables(server: ServerProcess) -> None:
    tables = "SELECT count(*) FROM duckdb_tables() WHERE database_name = 'interrupted'"
    with connect(server.url) as client:
        client.execute("CALL swanlake_create_catalog('interrupted')")
        arguments = [sys.executable, "-m", "swanlake", "bench", "fanout", "--url", server.url]
        run = subprocess.Popen(
            [*arguments, "--catalog", "interrupted", "--tasks", "2", "--statements", "100000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            eventually(lambda: client.query(tables).scalar() >= 3)
            run.send_signal(signal.SIGINT)
            output, errors = run.communicate(timeout=60)
        finally:
            run.kill()
    assert (run.returncode, output, errors.decode().strip()) == (1, b"", "Aborted!")
    assert schemas(server.url, "interrupted") == []
