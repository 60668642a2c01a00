"""Starting and stopping server processes: ready files, exit codes, signals, logs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pytest

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.credentials import write_tokens
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS, waiting_query
from tests.server_process import ServerProcess
from tests.waiting import eventually

#: Generous: how long a stop may take beyond its grace period on a busy machine.
STOP_SECONDS = 60.0


def start_fails(home: Path, *flags: str, **environment: str) -> tuple[int, str]:
    """Runs a server that cannot start; returns its exit code and its log."""
    server = ServerProcess(home, *flags, **environment)
    server.launch()
    try:
        code = server.process.wait(60)
    finally:
        server.kill()
    assert "Traceback" not in server.log_text
    return code, server.log_text


@pytest.fixture
def observe() -> Iterator[Callable[[ServerProcess], FlightSQLClient]]:
    """Opens connections for observing servers."""
    opened: list[FlightSQLClient] = []

    def observe(server: ServerProcess) -> FlightSQLClient:
        opened.append(FlightSQLClient(server.url, timeout=60))
        return opened[-1]

    yield observe
    for connection in opened:
        connection.close()


class BackgroundStatement:
    """A statement that runs in a thread, and its rows or its error."""

    def __init__(self, connection: Any, sql: str) -> None:
        self.rows: list[Any] | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(connection, sql))
        self._thread.start()

    def _run(self, connection: Any, sql: str) -> None:
        # Not a cursor: it prepares first, and preparing also counts as running.
        statement = adbc_driver_manager.AdbcStatement(connection.adbc_connection)
        try:
            statement.set_sql_query(sql)
            handle, _ = statement.execute_query()
            table = pa.RecordBatchReader.from_stream(handle).read_all()
            self.rows = list(zip(*table.to_pydict().values(), strict=True))
        except adbc_driver_manager.Error as error:
            self.error = error
        finally:
            statement.close()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def is_running(observer: FlightSQLClient) -> bool:
    return bool(observer.status()["statements_running"])


# ---- start ---------------------------------------------------------------------------------------


def test_ready_file_names_the_address_until_the_server_stops(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home").start()
    ready_file = tmp_path / "home.ready"
    assert json.loads(ready_file.read_text()) == {
        "flight": f"grpc://127.0.0.1:{server.port}",
        "status": None,
        "pid": server.process.pid,
    }
    assert server.port != 0
    with FlightSQLClient(server.url, timeout=60) as connection:
        assert connection.status()["state"] == "accepting"
    assert server.stop() == 0
    assert not ready_file.exists()


def test_unwritable_ready_file_exits_1(tmp_path: Path) -> None:
    code, log = start_fails(tmp_path / "home", "--ready-file", str(tmp_path / "none" / "ready"))
    assert code == 1
    assert "The ready file" in log


def test_port_in_use_exits_3(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, log = start_fails(tmp_path / "home", "--port", port)
    assert code == 3
    assert f"swanlake: Cannot listen on 127.0.0.1:{port}" in log
    assert not (tmp_path / "home").exists(), "nothing is initialised"


def test_port_of_another_server_exits_3(tmp_path: Path, server: ServerProcess) -> None:
    code, _ = start_fails(tmp_path / "second", "--port", str(server.port))
    assert code == 3


def test_address_of_another_machine_exits_3(tmp_path: Path) -> None:
    code, log = start_fails(tmp_path / "home", "--host", "192.0.2.1", "--insecure")
    assert code == 3
    assert "192.0.2.1" in log


def test_home_that_is_a_file_exits_4(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("not a directory")
    code, log = start_fails(home)
    assert code == 4
    assert "swanlake: The lake's metadata cannot be reached" in log
    assert home.read_text() == "not a directory"


def test_home_that_is_a_file_fails_with_token_authentication(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("not a directory")
    code, log = start_fails(home, "--auth", "token")
    assert code != 0
    assert "swanlake: The tokens in" in log


def test_unwritable_home_exits_4(tmp_path: Path) -> None:
    code, log = start_fails(tmp_path / "home", "--home", "/proc/swanlake")
    assert code == 4
    assert "/proc/swanlake" in log


def test_unwritable_temp_directory_exits_1(tmp_path: Path) -> None:
    code, log = start_fails(tmp_path / "home", "--duckdb-temp-directory", "/proc/swanlake")
    assert code == 1
    assert "swanlake: " in log
    assert "/proc/swanlake" in log


def test_unreachable_postgres_exits_4_without_printing_the_password(tmp_path: Path) -> None:
    url = "postgresql://u:secretpw@127.0.0.1:1/x"
    code, log = start_fails(tmp_path / "home", SWANLAKE_METABASE_URL=url)
    assert code == 4
    assert "swanlake: The lake's metadata cannot be reached: " in log
    assert "secretpw" not in log


def test_malformed_postgres_url_fails_without_printing_the_password(tmp_path: Path) -> None:
    url = "postgresql://u:secretpw@127.0.0.1:port/x y"
    code, log = start_fails(tmp_path / "home", SWANLAKE_METABASE_URL=url)
    assert code in (2, 4)
    assert "swanlake: " in log
    assert "secretpw" not in log


def test_bad_init_sql_is_reported_without_its_text(tmp_path: Path) -> None:
    sql = "CREATE SECRET s (TYPE s3, SECRET 'secretpw'); SELEC secretpw"
    code, log = start_fails(tmp_path / "home", SWANLAKE_DUCKLAKE_INIT_SQL=sql)
    assert code == 1
    assert "swanlake: ducklake_init_sql failed" in log
    assert "secretpw" not in log


def test_wrong_configuration_exits_2_without_a_traceback(tmp_path: Path) -> None:
    code, log = start_fails(tmp_path / "home", SWANLAKE_MAX_SESSION="1")
    assert code == 2
    assert log == (
        "swanlake: unknown environment variable 'SWANLAKE_MAX_SESSION'; the nearest valid one is "
        "'SWANLAKE_MAX_SESSIONS'.\n"
    )


def test_flags_override_environment_and_environment_overrides_file(
    tmp_path: Path, start_server: Callable[..., ServerProcess], observe: Any
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_sessions = 1\nlog_level = 'error'\n[query]\ntimeout_seconds = 1\n")
    server = start_server(
        "--config", str(file), "--max-sessions", "3",
        SWANLAKE_MAX_SESSIONS="2", SWANLAKE_LOG_LEVEL="debug",
    )  # fmt: skip
    assert observe(server).status()["sessions"]["max"] == 3
    assert "accepts on" in server.log_text  # the level of the environment, not of the file


def test_serve_is_the_default_command(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready"
    process = subprocess.Popen(
        [sys.executable, "-m", "swanlake", "--port", "0", "--ready-file", str(ready_file)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        eventually(lambda: ready_file.exists() or process.poll() is not None)
        url = json.loads(ready_file.read_text())["flight"]
        process.terminate()
        output, _ = process.communicate(timeout=STOP_SECONDS)
        assert f"accepts connections on {url}" in output
        assert process.returncode == 0
        assert (tmp_path / "swanlake-home").is_dir()
    finally:
        process.kill()


# ---- stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_stops_at_a_signal(
    start_server: Callable[..., ServerProcess], connect: Any, number: signal.Signals
) -> None:
    server = start_server()
    with connect(server.url).cursor() as cursor:
        cursor.execute("CREATE TABLE t AS SELECT 1 AS i")
    server.process.send_signal(number)
    assert server.process.wait(STOP_SECONDS) == 0
    assert not server.is_ready
    assert "Traceback" not in server.log_text


def test_running_statement_finishes_while_new_ones_are_refused(
    start_server: Callable[..., ServerProcess], connect: Any, observe: Any, tmp_path: Path
) -> None:
    server = start_server("--shutdown-grace-seconds", "600")
    observer = observe(server)
    pipe = tmp_path / "pipe"
    statement = BackgroundStatement(connect(server.url), waiting_query(pipe))
    newcomer = connect(server.url).cursor()
    eventually(lambda: is_running(observer))
    server.terminate()
    eventually(lambda: observer.status()["state"] == "draining")
    with newcomer, pytest.raises(adbc_driver_manager.OperationalError) as refused:
        newcomer.execute("SELECT 1")
    assert "SERVER_DRAINING: " in str(refused.value)
    assert refused.value.status_code == adbc_driver_manager.AdbcStatusCode.IO  # UNAVAILABLE
    pipe.write_text("1\n2\n")
    statement.join()
    assert statement.rows == [(3,)]
    assert server.process.wait(STOP_SECONDS) == 0


def test_draining_server_finishes_a_result_being_read(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server("--shutdown-grace-seconds", "600")
    with FlightSQLClient(server.url) as client:
        with client.stream("SELECT range AS i FROM range(20000000)") as batches:
            rows = next(iter(batches)).num_rows
            server.terminate()
            eventually(lambda: not server.is_ready)
            rows += sum(batch.num_rows for batch in batches)
    assert rows == 20_000_000
    assert server.process.wait(STOP_SECONDS) == 0


def test_draining_server_serves_an_unfetched_result(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    client = FlightSql(server.url)
    info = client.execute("SELECT 42 AS i")
    server.terminate()
    eventually(lambda: not server.is_ready)
    assert client.fetch(info).read_all().to_pydict() == {"i": [42]}
    assert server.process.wait(STOP_SECONDS) == 0


def test_statement_is_cancelled_after_the_grace_period(
    start_server: Callable[..., ServerProcess], connect: Any, observe: Any
) -> None:
    server = start_server("--shutdown-grace-seconds", "1")
    observer = observe(server)
    statement = BackgroundStatement(connect(server.url), ENDLESS_QUERY)
    eventually(lambda: is_running(observer))
    server.terminate()
    assert server.process.wait(STOP_SECONDS) == 0
    statement.join()
    assert "QUERY_CANCELLED: The server is shutting down." in str(statement.error)


def test_client_that_stopped_reading_does_not_delay_the_stop(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server("--shutdown-grace-seconds", "1")
    with FlightSQLClient(server.url) as client:
        with client.stream(ENDLESS_ROWS) as batches:
            assert next(iter(batches)).num_rows
            server.terminate()
            assert server.process.wait(STOP_SECONDS) == 0


def test_later_signal_stops_at_once(
    start_server: Callable[..., ServerProcess], connect: Any, observe: Any
) -> None:
    server = start_server("--shutdown-grace-seconds", "600")
    observer = observe(server)
    statement = BackgroundStatement(connect(server.url), ENDLESS_QUERY)
    eventually(lambda: is_running(observer))
    server.terminate()
    server.terminate()  # the same moment: a process group was signalled, not an impatient user
    eventually(lambda: observer.status()["state"] == "draining")

    def is_gone() -> bool:
        server.terminate()
        return not server.is_alive

    eventually(is_gone, STOP_SECONDS)
    assert server.process.returncode == 1
    statement.join()
    assert statement.error is not None


def test_signal_during_start_stops_the_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.launch()
    eventually(
        lambda: server.home.exists()
    )  # signal handlers are installed before the home is created
    server.terminate()
    assert server.process.wait(STOP_SECONDS) == 0


def test_server_restarts_on_the_home_of_a_killed_one(
    start_server: Callable[..., ServerProcess], connect: Any, observe: Any
) -> None:
    first = start_server()
    with connect(first.url).cursor() as cursor:
        cursor.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    statement = BackgroundStatement(connect(first.url), ENDLESS_QUERY)
    observer = observe(first)
    eventually(lambda: is_running(observer))
    first.kill()
    statement.join()
    second = start_server(home=first.home)
    with connect(second.url).cursor() as cursor:
        cursor.execute("SELECT sum(i)::INTEGER FROM t")
        assert cursor.fetchall() == [(4950,)]
    assert second.stop() == 0


# ---- logs ----------------------------------------------------------------------------------------


def test_json_log_has_one_object_per_line_and_no_secret(tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    ready_file = tmp_path / "ready"
    token = "very-secret-token"
    write_tokens(tmp_path / "home", alice=token)
    command = [sys.executable, "-m", "swanlake", "serve", "--port", "0", "--log-format", "json"]
    command += ["--pipeline", "inline"]
    command += ["--log-level", "debug", "--auth", "token", "--ready-file", str(ready_file)]
    secret = "CREATE MACRO hidden() AS 'hunter2'"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--home", str(tmp_path / "home")], cwd=tmp_path, stderr=stderr,
            stdout=subprocess.DEVNULL, env=os.environ | {"SWANLAKE_DUCKLAKE_INIT_SQL": secret},
        )  # fmt: skip
    try:
        eventually(lambda: ready_file.exists() or process.poll() is not None)
        url = json.loads(ready_file.read_text())["flight"]
        with FlightSQLClient(url, token=token) as connection:
            assert connection.execute("SELECT memory.main.hidden()").table
            with pytest.raises(SwanLakeError):
                connection.execute("SELEC 1")
        with pytest.raises(SwanLakeError):
            FlightSQLClient(url, token="wrong-" + token)
        process.terminate()
        assert process.wait(STOP_SECONDS) == 0
    finally:
        process.kill()
    text = errors.read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    assert all({"ts", "level", "logger", "msg"} <= entry.keys() for entry in entries)
    assert any("accepts on" in entry["msg"] for entry in entries)
    assert entries[-1]["msg"] == "stopped"
    assert "hunter2" not in text
    assert token not in text


def test_second_server_on_the_same_home_refuses_and_names_the_first(
    start_server: Callable[..., ServerProcess],
) -> None:
    first = start_server()
    code, log = start_fails(first.home)
    assert code == 3
    assert (
        f"swanlake: The home directory {first.home} belongs to a server that runs "
        f"(process {first.process.pid}). Stop it, or choose another directory with --home.\n"
    ) in log
    first.kill()
    start_server(home=first.home)  # a killed server leaves nothing behind that is in the way


def test_banner_has_commands_that_work_as_pasted(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server()
    (command,) = re.findall(r"^  query +(.*)$", server.log_text, re.MULTILINE)
    shown = subprocess.run(
        f"{command} -c 'SELECT 40 + 2 AS answer' --format csv",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == "answer\n42\n"
    assert f"  home    {server.home}\n" in server.log_text
    assert f"kill {server.process.pid}\n" in server.log_text
