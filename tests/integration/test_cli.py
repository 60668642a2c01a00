"""The command line against real servers: ``swanlake ping``, ``swanlake sql`` and its prompt."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from swanlake._version import __version__
from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess
from tests.waiting import eventually

SWANLAKE = [sys.executable, "-m", "swanlake"]


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, arguments, input=stdin, prog_name="swanlake")


@pytest.fixture
def sql(server: ServerProcess) -> Callable[..., Result]:
    """``sql("-c", "SELECT 1")`` on the shared server."""

    def run_sql(*arguments: str, stdin: str | None = None) -> Result:
        return run("sql", "--url", server.url, *arguments, stdin=stdin)

    return run_sql


# ---- ping ----------------------------------------------------------------------------------------


def test_ping_of_an_accepting_server_exits_0(server: ServerProcess) -> None:
    # On a busy machine the checks may take longer than the server waits for them.
    answered = eventually(lambda: _succeeded(run("ping", "--url", server.url)))
    assert answered.output == f"{server.url} - accepting\n"
    quiet = run("ping", "--url", server.url, "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")


def _succeeded(result: Result) -> Result | None:
    return result if result.exit_code == 0 else None


def test_ping_of_a_server_whose_storage_is_gone_names_it(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    data = server.home / "data"
    data.rename(server.home / "elsewhere")
    data.write_text("no directory")
    wanted = f"{server.url} - not ready: The lake's files cannot be reached.\n"
    answered = eventually(lambda: [r for r in [run("ping", "--url", server.url)] if r.exit_code])
    assert (answered[0].exit_code, answered[0].output) == (1, wanted)
    data.unlink()
    (server.home / "elsewhere").rename(data)
    assert eventually(lambda: _succeeded(run("ping", "--url", server.url)))


def test_ping_of_a_draining_server_exits_1(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    with FlightSQLClient(server.url) as client:
        statement = subprocess.Popen(
            [*SWANLAKE, "sql", "--url", server.url, "-c",
             ENDLESS_QUERY],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            eventually(lambda: client.status()["statements_running"])
            server.terminate()
            eventually(lambda: client.status()["state"] == "draining")
            answered = run("ping", "--url", server.url)
            assert (answered.exit_code, answered.output) == (1, f"{server.url} - draining\n")
        finally:
            statement.kill()
            statement.wait()
            server.kill()


def test_ping_without_a_server_exits_2() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        answered = run("ping", "--url", url)
    assert (answered.exit_code, answered.output) == (2, f"{url} - no response\n")


def test_ping_of_an_unknown_host_exits_2() -> None:
    assert run("ping", "--url", "grpc://no-such-host.invalid:4214").exit_code == 2


def test_ping_times_out_on_a_server_that_never_answers() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"grpc://127.0.0.1:{mute.getsockname()[1]}"
        answered = run("ping", "--url", url, "--timeout", "0.5")
    assert answered.exit_code == 2


def test_installed_command_prints_version_and_exit_code(server: ServerProcess) -> None:
    shown = subprocess.run([*SWANLAKE, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"swanlake, version {__version__}\n"
    script = Path(sys.executable).with_name("swanlake")
    asked = subprocess.run([script, "ping", "--url", server.url], capture_output=True, check=False)
    assert asked.returncode == 0


# ---- sql in scripts ------------------------------------------------------------------------------


def test_sql_is_read_from_option_file_or_standard_input(
    sql: Callable[..., Result], tmp_path: Path
) -> None:
    text = "SELECT 'é;' AS a;\nSELECT 2 AS b;"
    file = tmp_path / "script.sql"
    file.write_text(text)
    expected = "a\né;\nb\n2\n"
    assert sql("--format", "csv", "-c", text).output == expected
    assert sql("--format", "csv", "-f", str(file)).output == expected
    assert sql("--format", "csv", stdin=text).output == expected
    assert sql("--format", "csv", "-f", "-", stdin=text).output == expected


def test_sql_statements_share_a_session(sql: Callable[..., Result]) -> None:
    done = sql("-c", "CREATE TEMP TABLE t (i INTEGER); INSERT INTO t VALUES (1), (2); FROM t")
    assert done.exit_code == 0
    assert "2 rows affected\n" in done.output
    assert done.output.endswith("2 rows\n")


def test_sql_quiet_prints_results_only(sql: Callable[..., Result]) -> None:
    done = sql("--quiet", "-c", "CREATE TEMP TABLE t (i INTEGER); FROM t")
    assert "affected" not in done.output
    assert "rows" not in done.output


def test_sql_json_output_is_valid(sql: Callable[..., Result]) -> None:
    done = sql("--format", "json", "-c", "SELECT 'nan'::DOUBLE AS n, [uuid()] AS u FROM range(2)")
    rows = json.loads(done.output)
    assert [row["n"] for row in rows] == ["NaN", "NaN"]
    assert sql("--format", "json", "-c", "SELECT 1 AS a WHERE false").output == "[]\n"


def test_sql_arrow_output_is_an_ipc_stream(sql: Callable[..., Result]) -> None:
    done = sql("--format", "arrow", "-c", "SELECT range AS i FROM range(300000)")
    table = pa.ipc.open_stream(done.stdout_bytes).read_all()
    assert table.num_rows == 300_000
    assert table.schema.names == ["i"]


def test_sql_stops_at_the_first_failing_statement(sql: Callable[..., Result]) -> None:
    failed = sql("--format", "csv", "-c", "SELECT 1 AS a; SELECT * FROM no_such; SELECT 3 AS c")
    assert failed.exit_code == 3
    assert failed.stdout == "a\n1\n"
    assert failed.stderr.startswith("swanlake: CATALOG_ERROR: Table with name no_such does not")
    assert "Traceback" not in failed.stderr


def test_sql_that_fails_while_fetching_exits_3(sql: Callable[..., Result]) -> None:
    failed = sql("-c", "SELECT CASE WHEN range < 500000 THEN 1 ELSE error('too far') END "
                       "FROM range(1000000)")  # fmt: skip
    assert failed.exit_code == 3
    assert "too far" in failed.stderr or "one of its threads" in failed.stderr


def test_sql_that_cannot_connect_exits_2() -> None:
    failed = run("sql", "--url", "grpc://127.0.0.1:1", "-c", "SELECT 1")
    assert failed.exit_code == 2
    assert failed.stderr.startswith("swanlake: Cannot connect to grpc://127.0.0.1:1: ")


def test_sql_that_is_not_utf8_exits_1(server: ServerProcess) -> None:
    failed = subprocess.run(
        [*SWANLAKE, "sql", "--url", server.url],
        input=b"SELECT '\xff'", capture_output=True, check=False,
    )  # fmt: skip
    assert failed.returncode == 1
    assert failed.stderr == b"swanlake: The SQL is not UTF-8 text.\n"


@pytest.mark.parametrize("output", ["table", "csv", "json", "arrow"])
def test_closed_output_pipe_ends_sql_without_a_traceback(
    server: ServerProcess, output: str
) -> None:
    process = subprocess.Popen(
        [*SWANLAKE, "sql", "--url", server.url, "--format", output, "-c",
         "SELECT range AS i FROM range(1000000)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_commands_and_files_run_in_their_order_in_one_session(
    sql: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "script.sql"
    file.write_text(".mode csv\nINSERT INTO t VALUES (2);\nSELECT max(i) AS m FROM t;")
    done = sql(
        "--quiet", "-c", "CREATE TEMP TABLE t (i INTEGER)", "-f", str(file),
        "-c", "INSERT INTO t VALUES (3)", "-c", "SELECT count(*) AS n FROM t",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.stdout == "m\n2\nn\n2\n"


def test_error_in_a_file_names_its_line_and_marks_the_place(
    sql: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "script.sql"
    file.write_text("SELECT 1;\n\nSELECT *\nFROM no_such_table;\nSELECT 3;")
    failed = sql("-f", str(file))
    assert failed.exit_code == 3
    lines = failed.stderr.splitlines()
    assert lines[0].startswith(f"{file}:3: CATALOG_ERROR: Table with name no_such_table")
    assert lines[-2:] == ["LINE 4: FROM no_such_table", "             ^"]


def test_no_bail_runs_the_other_statements_too(sql: Callable[..., Result]) -> None:
    failed = sql(
        "--no-bail", "--format", "csv", "-c", "SELECT * FROM no_such; SELECT 2 AS b",
        "-c", "SELECT 3 AS c",
    )  # fmt: skip
    assert failed.exit_code == 3
    assert failed.stdout == "b\n2\nc\n3\n"
    assert failed.stderr.count("CATALOG_ERROR") == 1


def test_unknown_command_in_a_script_exits_3(sql: Callable[..., Result]) -> None:
    failed = sql("-c", "\\nosuch")
    assert failed.exit_code == 3
    assert failed.stderr.startswith("swanlake: INVALID_REQUEST: There is no command \\nosuch;")


def test_refused_connection_prints_one_line_and_no_password() -> None:
    failed = subprocess.run(
        [*SWANLAKE, "sql", "--url", "grpc://user:hunter2@127.0.0.1:1", "-c", "SELECT 1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert failed.returncode == 2
    assert failed.stderr.startswith("swanlake: Cannot connect to grpc://127.0.0.1:1: ")
    assert failed.stderr.count("\n") == 1
    assert "hunter2" not in failed.stderr
