"""The command line without a server: splitting SQL, printing results, invalid use, logs."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import sys
from pathlib import Path

import click
import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner
from click.testing import Result as CliResult

import swanlake.cli
from swanlake import config
from swanlake._version import __version__
from swanlake.cli.commands import serve
from swanlake.cli.commands import swanlake as command
from swanlake.cli.credentials import token, user
from swanlake.cli.logs import JsonFormatter
from swanlake.cli.output import Result, View, show
from swanlake.cli.settings_reference import settings_reference
from swanlake.cli.shell.input import Statement, is_complete, split
from swanlake.client import FlightSQLClient
from swanlake.client.transport.errors import error_from_wire
from swanlake.errors import (
    ConfigError,
    ConnectionLost,
    InvalidStatement,
    QueryCancelled,
    ServerUnavailable,
    ServerUnreachable,
    SwanLakeError,
)


def run(*arguments: str, **environment: str) -> CliResult:
    return CliRunner().invoke(command, arguments, env=environment, prog_name="swanlake")


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the developer's own swanlake.toml."""
    monkeypatch.chdir(tmp_path)


# ---- commands ------------------------------------------------------------------------------------


def test_version() -> None:
    assert run("--version").output == f"swanlake, version {__version__}\n"


def test_help_lists_the_commands() -> None:
    shown = run("--help")
    assert shown.exit_code == 0
    for name in ("serve", "sql", "ping", "config"):
        assert f"\n  {name} " in shown.output


def test_serve_has_a_flag_for_every_setting_that_is_not_secret() -> None:
    shown = run("serve", "--help").output
    for row in config.SETTINGS.values():
        assert (f"{row.flag} " in shown) == (not row.secret), row.name


@pytest.mark.parametrize("command_name", [["serve"], []], ids=["serve", "default"])
def test_unknown_flag_names_the_nearest(command_name: list[str]) -> None:
    refused = run(*command_name, "--max-session", "1")
    assert refused.exit_code == 2
    assert "No such option" in refused.stderr
    assert "--max-sessions" in refused.stderr


@pytest.mark.parametrize("flag", ["--metabase-url", "--ducklake-init-sql"])
def test_secrets_have_no_flag(flag: str) -> None:
    assert run("serve", flag, "hunter2").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--port", "abc"], {}, "swanlake: --port: 'abc' is not a whole number.\n"),
        (["--max-sessions", "0"], {}, "swanlake: --max-sessions: '0' is below the minimum of 1.\n"),
        (
            [],
            {"SWANLAKE_PRT": "1"},
            "swanlake: unknown environment variable 'SWANLAKE_PRT'; the nearest valid one is "
            "'SWANLAKE_PORT'.\n",
        ),
        (
            ["--config", "nope.toml"],
            {},
            "swanlake: The configuration file nope.toml does not exist.\n",
        ),
        (
            [],
            {"SWANLAKE_CONFIG": "nope.toml"},
            "swanlake: The configuration file nope.toml does not exist.\n",
        ),
        (
            ["--tls-cert", "cert.pem"],
            {},
            "swanlake: tls_cert and tls_key belong together; one of them is missing.\n",
        ),
        (
            ["--tls-cert", "cert.pem", "--tls-key", "key.pem"],
            {},
            "swanlake: The TLS files cannot be read: [Errno 2] No such file or directory: "
            "'cert.pem'.\n",
        ),
    ],
)
def test_serve_refuses_a_wrong_configuration_in_one_sentence(
    arguments: list[str], environment: dict[str, str], sentence: str
) -> None:
    refused = run("serve", *arguments, **environment)
    assert refused.exit_code == 2
    assert refused.stderr == sentence


def test_config_show_prints_value_and_source_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "swanlake.toml"
    file.write_text("max_sessions = 7\nmetabase_url = 'postgresql://u:hunter2@h/d'\n")
    shown = run("config", "show", SWANLAKE_PORT="5000", SWANLAKE_DUCKLAKE_INIT_SQL="hunter2")
    assert shown.exit_code == 0
    assert "hunter2" not in shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    assert [line[0] for line in lines] == list(config.SETTINGS)
    assert ["port", "5000", "SWANLAKE_PORT"] in lines
    assert ["max_sessions", "7", "swanlake.toml"] in lines
    assert ["metabase_url", config.MASK, "swanlake.toml"] in lines
    assert ["ducklake_init_sql", config.MASK, "SWANLAKE_DUCKLAKE_INIT_SQL"] in lines
    assert ["host", "127.0.0.1", "default"] in lines


def test_config_show_refuses_what_serve_refuses() -> None:
    refused = run("config", "show", SWANLAKE_PORT="abc")
    assert refused.exit_code == 2
    assert refused.stderr == "swanlake: SWANLAKE_PORT: 'abc' is not a whole number.\n"


def test_config_docs_prints_the_reference() -> None:
    assert run("config", "docs").output == settings_reference()


def test_serve_without_the_server_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    monkeypatch.delitem(sys.modules, "swanlake.cli.commands")
    with pytest.raises(SystemExit) as left:
        swanlake.cli.main()
    assert left.value.code == (
        "The swanlake command needs the server's packages (click is missing): "
        "pip install '.[server]' in a checkout of SwanLake."
    )


@pytest.mark.parametrize(
    "arguments",
    [["--timeout", "soon"], ["--timeout", "0"], ["--timeout", "-1"], ["--no-such"], ["surplus"]],
)
def test_ping_with_wrong_arguments_exits_3(arguments: list[str]) -> None:
    assert run("ping", *arguments).exit_code == 3


NOT_URLS = ["nonsense", "", "grpc://", "http://x", "localhost:4214", "grpc://h:port", "grpc://[::1"]


@pytest.mark.parametrize("url", NOT_URLS)
def test_ping_of_an_invalid_url_exits_3(url: str) -> None:
    refused = run("ping", "--url", url)
    assert refused.exit_code == 3
    assert "is not the URL of a Flight server" in refused.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such"],
        ["-f", "no-such.sql"],
        ["--token-file", "no-such-token", "-c", "SELECT 1"],
        ["--tls-ca", "no-such-ca", "-c", "SELECT 1"],
        ["--url", "nonsense", "-c", "SELECT 1"],
        ["--format", "xml", "-c", "SELECT 1"],
    ],
)
def test_sql_with_invalid_input_exits_1(arguments: list[str]) -> None:
    refused = run("sql", *arguments)
    assert refused.exit_code == 1
    assert refused.stderr


def test_sql_with_an_unprintable_token_exits_1(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xff\xfe")
    assert run("sql", "--token-file", str(file), "-c", "SELECT 1").exit_code == 1
    file.write_text("tökén")
    assert run("sql", "--token-file", str(file), "-c", "SELECT 1").exit_code == 1


# ---- splitting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" -- nothing; here", []),
        (";;", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT 'a;b'; SELECT \"c;d\"", ["SELECT 'a;b'", 'SELECT "c;d"']),
        ("SELECT $$a;b$$; SELECT E'\\';'", ["SELECT $$a;b$$", "SELECT E'\\';'"]),
        ("/* ; */ SELECT 1; -- the end;", ["/* ; */ SELECT 1"]),
        ("SELECT 'é;'; SELECT 'ü'", ["SELECT 'é;'", "SELECT 'ü'"]),
    ],
)
def test_text_is_split_at_semicolons_between_statements(text: str, statements: list[str]) -> None:
    assert [item.text for item in split(text) if isinstance(item, Statement)] == statements


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("SELECT 1;", True),
        ("SELECT 1; -- comment", True),
        ("SELECT 1", False),
        ("SELECT 'a;", False),
        ("SELECT 1 /* ;", False),
        ("SELECT 1; SELECT 2", False),
    ],
)
def test_statement_is_complete_when_a_semicolon_ends_it(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


# ---- printing ------------------------------------------------------------------------------------


def result(sql: str) -> Result:
    table = duckdb.sql(sql).to_arrow_table()

    return Result(table.schema, iter(table.to_batches()))


def printed(sql: str, output: str, capsys: pytest.CaptureFixture[str]) -> str:
    show(result(sql), View(output))
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("NULL", None),
        ("true", True),
        ("42", 42),
        ("SELECT sum(1) FROM range(3)", 3),
        ("1.50::DECIMAL(5, 2)", 1.5),
        ("0.5::DOUBLE", 0.5),
        ("'nan'::DOUBLE", "NaN"),
        ("'-inf'::FLOAT", "-Infinity"),
        ("['inf'::DOUBLE, NULL]", ["Infinity", None]),
        ("'quo\"te é'", 'quo"te é'),
        ("TIMESTAMP '2024-02-29 12:34:56.789'", "2024-02-29 12:34:56.789"),
        ("TIMESTAMP_NS '2024-02-29 12:34:56.123456789'", "2024-02-29 12:34:56.123456789"),
        ("TIMESTAMPTZ '2024-02-29 12:34:56+00'", "2024-02-29 12:34:56+00"),
        ("DATE 'infinity'", "infinity"),
        ("DATE '290000-01-01'", "290000-01-01"),
        ("TIME '12:34:56'", "12:34:56"),
        ("INTERVAL '1 year 2 days 3 seconds'", "1 year 2 days 00:00:03"),
        ("'\\xAA'::BLOB", "\\xAA"),
        ("[]::INTEGER[]", []),
        ("[1, 2]::INTEGER[2]", [1, 2]),
        ("{'a': 1, 'b \"c': [DATE '2024-02-29']}", {"a": 1, 'b "c': ["2024-02-29"]}),
        ("MAP {'k': {'n': NULL}}", {"k": {"n": None}}),
        ("MAP {1: INTERVAL '1 day'}", {"1": "1 day"}),
        ("MAP {}::MAP(VARCHAR, INTEGER)", {}),
    ],
)
def test_json_is_valid_for_every_value(
    sql: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = printed(f"SELECT ({sql}) AS v", "json", capsys)
    assert json.loads(text, parse_constant=refuse) == [{"v": value}]


def test_json_keeps_every_digit_of_a_decimal(capsys: pytest.CaptureFixture[str]) -> None:
    digits = "1234567890123456789012345.0123456789012"
    assert digits in printed(f"SELECT {digits}::DECIMAL(38, 13) AS d", "json", capsys)


def test_json_of_no_rows_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed("SELECT 1 AS a WHERE false", "json", capsys)) == []


def test_json_keeps_columns_of_the_same_name_apart(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("SELECT 1 AS a, 2 AS a, 3 AS a_1", "json", capsys)
    assert json.loads(text) == [{"a": 1, "a_2": 2, "a_1": 3}]


def test_csv_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(
        """SELECT 'a,b' AS "x,y", 'say "hi"' AS q, 'two\nlines' AS n, '' AS e, NULL AS z,
        [1, 2] AS l, 'nan'::DOUBLE AS f, true AS b""",
        "csv",
        capsys,
    )
    assert text == '"x,y",q,n,e,z,l,f,b\n"a,b","say ""hi""","two\nlines","",,"[1, 2]",nan,true\n'


def test_csv_of_no_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed("SELECT 1 AS a, 2 AS b WHERE false", "csv", capsys) == "a,b\n"


def test_table_shows_nulls_and_counts_rows(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("SELECT NULL AS a, '[b]not markup[/b]' AS m", "table", capsys)
    assert "NULL" in text
    assert "[b]not markup[/b]" in text
    assert text.endswith("1 row\n")


def test_table_shows_a_thousand_rows_and_the_number_of_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = printed("SELECT range AS i FROM range(1002)", "table", capsys)
    assert " 999 " in text
    assert " 1000 " not in text
    assert text.endswith("1002 rows (2 more not shown)\n")


@pytest.mark.parametrize(
    ("rows", "text"), [(0, "0 rows affected"), (1, "1 row affected"), (-1, "OK")]
)
def test_statement_without_columns_prints_the_affected_rows(
    rows: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(Result(pa.schema([]), [], rows), View())
    assert capsys.readouterr().out == text + "\n"


def test_arrow_is_an_ipc_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw))
    show(result("SELECT range AS i FROM range(3)"), View("arrow"))
    table = pa.ipc.open_stream(raw.getvalue()).read_all()
    assert table.to_pydict() == {"i": [0, 1, 2]}


# ---- the driver's words --------------------------------------------------------------------------


@pytest.mark.parametrize("url", NOT_URLS)
def test_connection_refuses_an_invalid_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"grpc://host:4214"):
        FlightSQLClient(url)


@pytest.mark.parametrize("token", ["line\nbreak", "ünï"])
def test_connection_refuses_an_unprintable_token(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        FlightSQLClient("grpc://127.0.0.1:1", token=token)


@pytest.mark.parametrize("roots", [b"garbage", b"\xff", b""])
def test_connection_refuses_invalid_certificates(roots: bytes) -> None:
    with pytest.raises(ConfigError, match="PEM"):
        FlightSQLClient("grpc+tls://127.0.0.1:1", tls_ca=roots)


@pytest.mark.parametrize(
    ("wire", "kind", "identifier", "message"),
    [
        (
            flight.FlightUnavailableError("SERVER_DRAINING: Go away.. Detail: Unavailable"),
            ServerUnavailable,
            "SERVER_DRAINING",
            "Go away.",
        ),
        (
            pa.ArrowInvalid("PARSER_ERROR: At ^. Detail: Python exception: INVALID_ARGUMENT"),
            InvalidStatement,
            "PARSER_ERROR",
            "At ^",
        ),
        (
            pa.ArrowInvalid("X_ERROR: a. Detail: b. Detail: Python exception: INVALID_ARGUMENT"),
            InvalidStatement,
            "X_ERROR",
            "a. Detail: b",
        ),
        (
            pa.ArrowInvalid(
                "X_ERROR: a. Detail: b. Detail: Python exception: INVALID_ARGUMENT. gRPC client "
                "debug context: X_ERROR: a. Detail: Python exception: X. Client context: OK"
            ),
            InvalidStatement,
            "X_ERROR",
            "a. Detail: b",
        ),
        (
            pa.ArrowKeyError("CATALOG_ERROR: No t. Detail: Python exception: NOT_FOUND"),
            InvalidStatement,
            "CATALOG_ERROR",
            "No t",
        ),
        (
            flight.FlightCancelledError("QUERY_CANCELLED: Stopped.. Detail: Cancelled"),
            QueryCancelled,
            "QUERY_CANCELLED",
            "Stopped.",
        ),
        (
            flight.FlightUnavailableError(
                "Flight returned unavailable error, with message: failed to connect to all "
                "addresses. gRPC client debug context: UNKNOWN: x. Client context: y"
            ),
            ServerUnreachable,
            "SERVER_UNREACHABLE",
            "No server answers at the server: failed to connect to all addresses",
        ),
        (
            flight.FlightUnavailableError(
                "Flight returned unavailable error, with message: Socket closed. gRPC client "
                "debug context: UNKNOWN: x. Client context: y"
            ),
            ConnectionLost,
            "CONNECTION_LOST",
            "The connection to the server was lost: Socket closed",
        ),
    ],
)
def test_flight_errors_become_the_raised_error_classes(
    wire: Exception, kind: type[SwanLakeError], identifier: str, message: str
) -> None:
    error = error_from_wire(wire)
    assert type(error) is kind
    assert (error.identifier, str(error)) == (identifier, message)


# ---- logs ----------------------------------------------------------------------------------------


def test_json_log_has_one_object_per_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord(
            "swanlake.x", logging.ERROR, "f", 1, "said %s", ("a\nb",), sys.exc_info()
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["level"] == "error"
    assert entry["logger"] == "swanlake.x"
    assert entry["msg"] == "said a\nb"
    assert "ValueError" in entry["exception"]


def documented_commands() -> list[str]:
    """The commands in the examples of the security document."""
    document = Path(__file__).parents[2] / "docs" / "security.md"
    blocks = re.findall(r"```sh\n(.*?)```", document.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("swanlake ")]


@pytest.mark.parametrize("line", documented_commands())
def test_documented_command_has_valid_arguments(line: str) -> None:
    _, *arguments = shlex.split(line)
    parsed: click.Command = command
    while isinstance(parsed, click.Group):
        parsed = parsed.commands[arguments.pop(0)]
    parsed.make_context(parsed.name, arguments)


def test_every_credential_command_is_documented() -> None:
    documented = {tuple(line.split()[1:3]) for line in documented_commands()}
    for group in (token, user):
        assert {(group.name, name) for name in group.commands} <= documented


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(["--insecure", "--port", "0"], "true"), (["--insecure", "false"], "false"), ([], None)],
)
def test_flag_of_a_boolean_may_omit_its_value(arguments: list[str], value: str | None) -> None:
    context = serve.make_context("serve", arguments)
    assert context.params["insecure"] == value
