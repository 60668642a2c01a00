"""``swanlake status``, ``top``, ``ps``, ``sessions``, ``kill``, ``doctor`` and ``demo``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.cli_results import assert_failed, json_rows
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess
from tests.terminal import Terminal
from tests.waiting import eventually


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(command, arguments, env=environment, prog_name="swanlake")


@pytest.fixture
def cli(server: ServerProcess) -> Callable[..., Result]:
    """``cli("ps")`` on the shared server."""
    return lambda *arguments: run(*arguments, "--url", server.url)


class Busy:
    """A client with a statement that runs until it is killed."""

    def __init__(self, url: str) -> None:
        self.client = FlightSQLClient(url)
        self.error: SwanLakeError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.client.execute(ENDLESS_QUERY)
        except SwanLakeError as error:
            self.error = error

    def wait(self) -> SwanLakeError:
        self._thread.join(240)
        assert self.error is not None
        return self.error


@pytest.fixture
def busy(server: ServerProcess) -> Iterator[Busy]:
    busy = Busy(server.url)
    yield busy
    busy.client.cancel()
    busy.client.close()


def own_statement(cli: Callable[..., Result]) -> dict[str, Any]:
    """The endless statement, once it runs."""

    def find() -> dict[str, Any] | None:
        rows = json_rows(cli("ps", "--format", "json"))
        return next((row for row in rows if row["sql"] == ENDLESS_QUERY), None)

    found: dict[str, Any] = eventually(find)
    return found


def test_status_tells_that_the_server_is_well(cli: Callable[..., Result]) -> None:
    shown = cli("status")
    assert shown.exit_code == 0, shown.output
    assert ": accepting" in shown.stdout
    assert "\npipeline   inline ready\n" in shown.stdout
    facts = json.loads(cli("status", "--format", "json").stdout)
    assert facts["state"] == "accepting"
    assert isinstance(facts["queue"], list)


@pytest.mark.parametrize("name", ["status", "ps", "sessions", "top", "kill"])
def test_unreachable_server_exits_2(name: str) -> None:
    ids = ["some-id"] if name == "kill" else []
    assert_failed(run(name, *ids, "--url", "grpc://127.0.0.1:1"), 2, "No server answers")


def test_ps_shows_a_statement_and_kill_ends_it(cli: Callable[..., Result], busy: Busy) -> None:
    statement = own_statement(cli)
    killed = cli("kill", statement["query_id"])
    assert killed.exit_code == 0, killed.output
    assert statement["query_id"] in killed.stdout
    assert busy.wait().identifier == "QUERY_CANCELLED"


def test_sessions_shows_a_session_and_kill_closes_it(
    cli: Callable[..., Result], busy: Busy
) -> None:
    own_statement(cli)
    rows = json_rows(cli("sessions", "--format", "json"))
    assert busy.client.session_id in [row["session_id"] for row in rows]
    assert cli("kill", "--session", busy.client.session_id).exit_code == 0
    busy.wait()
    rows = json_rows(cli("sessions", "--format", "json"))
    assert busy.client.session_id not in [row["session_id"] for row in rows]


def test_kill_of_an_unknown_statement_exits_1(cli: Callable[..., Result]) -> None:
    assert_failed(cli("kill", "no-such-id"), 1, "no-such-id")


def test_top_prints_one_view_without_a_terminal(cli: Callable[..., Result], busy: Busy) -> None:
    own_statement(cli)
    shown = cli("top", "--interval", "0.2")
    assert shown.exit_code == 0, shown.output
    assert "statements " in shown.stdout
    assert ENDLESS_QUERY[:40] in shown.stdout
    sample = json.loads(cli("top", "--interval", "0.2", "--format", "json").stdout)
    assert sample["rates"]["statements"] >= 0


def test_top_is_live_in_a_terminal_until_q(
    server: ServerProcess, cli: Callable[..., Result], tmp_path: Path
) -> None:
    arguments = ("top", "--url", server.url, "--interval", "0.3")
    terminal = Terminal(*arguments, home=tmp_path, size=(24, 80))
    try:
        terminal.expect("accepting")
        busy = Busy(server.url)
        terminal.expect(ENDLESS_QUERY[:15])
        busy.client.cancel()
        busy.wait()
        busy.client.close()
        terminal.expect("no statement runs")
        terminal.type("q")
        assert terminal.process.wait(240) == 0
    finally:
        terminal.close()


# ---- doctor --------------------------------------------------------------------------------------


def findings(*arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
    shown = run("doctor", "--format", "json", *arguments, SWANLAKE_STATUS="off", **environment)
    return shown.exit_code, {row["check"]: row for row in json.loads(shown.stdout)}


def test_doctor_finds_a_running_server_well(server: ServerProcess) -> None:
    arguments = ("--home", str(server.home), "--port", str(server.port), "--pipeline", "inline")
    code, found = findings(*arguments)
    assert code == 0, found
    assert found["server"]["state"] == "ok"
    assert "accepting" in found["server"]["text"]
    assert found["catalog"]["state"] == found["storage"]["state"] == found["queue"]["state"] == "ok"


def test_doctor_needs_no_server_and_no_lake(tmp_path: Path) -> None:
    arguments = ("--home", str(tmp_path / "none"), "--port", "0", "--pipeline", "inline")
    code, found = findings(*arguments)
    assert code == 0, found
    assert "none runs" in found["server"]["text"]
    assert not (tmp_path / "none").exists()


def test_doctor_reaches_postgres_and_compares_its_clock(
    start_server: Callable[..., ServerProcess], postgres_database: str
) -> None:
    server = start_server(SWANLAKE_METABASE_URL=postgres_database)
    arguments = ("--home", str(server.home), "--port", str(server.port), "--pipeline", "inline")
    code, found = findings(*arguments, SWANLAKE_METABASE_URL=postgres_database)
    assert code == 0, found
    assert found["catalog"]["text"] == "1 catalog in PostgreSQL"
    assert found["clock"]["text"] == "agrees with PostgreSQL"


def test_doctor_says_what_to_fix(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "tokens").mkdir()
    (home / "tokens" / "ci").write_text("secret")
    (home / "tokens" / "ci").chmod(0o644)
    code, found = findings(
        "--home", str(home), "--port", "0",
        SWANLAKE_METABASE_URL="postgresql://127.0.0.1:1/none", JAVA_HOME=str(tmp_path),
    )  # fmt: skip
    assert code == 1
    assert found["home"]["remedy"] == f"chmod 700 {home}"
    assert found["tokens"]["remedy"] == f"chmod 600 {home / 'tokens' / 'ci'}"
    assert found["catalog"]["state"] == "problem"
    assert "openjdk" in found["java"]["remedy"]
    assert "secret" not in json.dumps(found)


def test_doctor_with_wrong_settings_exits_2() -> None:
    code, found = findings("--port", "many")
    assert code == 2
    assert found["settings"]["state"] == "problem"


# ---- demo ----------------------------------------------------------------------------------------


def test_demo_shows_every_part_and_loses_no_event(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    for _ in range(2):  # it can be repeated
        shown = run("demo", "--url", server.url, "--duration", "1s", "--rate", "50", "--no-browser")
        assert shown.exit_code == 0, shown.output
        assert "20,050 events: each one that was sent, once." in shown.stdout
        assert "compact" in shown.stdout
    with FlightSQLClient(server.url) as client:
        query = "SELECT count(*) FILTER (city = 'Oslo') FROM swanlake_demo.demo.events"
        assert client.query(query).scalar() == 0


def test_demo_with_a_home_starts_a_server_there(tmp_path: Path) -> None:
    shown = run(
        "demo", "--home", str(tmp_path / "home"), "--duration", "1s", "--rate", "20",
        "--no-browser", SWANLAKE_PIPELINE="inline",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "start a server" in shown.stdout
    assert "20,020 events" in shown.stdout
    assert (tmp_path / "home" / "catalogs").is_dir()


def test_demo_with_an_unreachable_url_exits_2() -> None:
    assert_failed(run("demo", "--url", "grpc://127.0.0.1:1"), 2, "No server answers")
