"""``swanlake maintain`` against real servers."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from tests.cli_results import assert_failed, assert_succeeded, json_rows
from tests.server_process import ServerProcess

Maintain = Callable[..., Result]

DOCUMENT = Path(__file__).parents[2] / "docs" / "maintenance.md"
COMMANDS = ("compact", "expire", "cleanup", "orphans", "history")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["maintain", *arguments], prog_name="swanlake")


@pytest.fixture
def own_server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server for one test."""
    return start_server()


@pytest.fixture
def maintain(own_server: ServerProcess) -> Maintain:
    """Runs a command: ``maintain("compact", "--dry-run")``."""

    def run_maintain(*arguments: str) -> Result:
        return run(*arguments, "--url", own_server.url)

    return run_maintain


@pytest.fixture
def sql(own_server: ServerProcess) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Runs a statement and returns its rows."""
    with FlightSQLClient(own_server.url) as connection:
        yield lambda text: connection.execute(text).table.to_pylist()


def fill(sql: Callable[..., Any], *tables: str) -> None:
    for table in tables:
        sql(f"CREATE TABLE {table} (i INTEGER)")
        for number in range(3):
            sql(f"INSERT INTO {table} SELECT * FROM range({number * 10}, {number * 10 + 10})")


def test_lake_with_nothing_to_do_reports_no_work(maintain: Maintain) -> None:
    assert assert_succeeded(maintain("compact")) == "There is nothing to compact.\n"
    assert assert_succeeded(maintain("compact", "--dry-run")) == "There is nothing to compact.\n"
    assert (
        assert_succeeded(maintain("expire", "--older-than", "7d"))
        == "There is no snapshot to expire.\n"
    )
    assert assert_succeeded(maintain("cleanup")) == "There is nothing to delete.\n"
    assert (
        assert_succeeded(maintain("history", "--job", "compact"))
        == "Nothing has been maintained yet.\n"
    )
    assert assert_succeeded(maintain("compact", "--format", "json")) == "[]\n"


def test_commands_compact_expire_and_clean_up(maintain: Maintain, sql: Callable[..., Any]) -> None:
    fill(sql, "a", '"it\'s"')
    planned = json_rows(maintain("compact", "--dry-run", "--format", "json"))
    assert [(row["table_name"], row["files"]) for row in planned] == [("a", 3), ("it's", 3)]
    compacted = maintain("compact", "--format", "json")
    assert compacted.stderr == "compact main.a (1 of 2)\ncompact main.it's (2 of 2)\n"
    rows = json_rows(compacted, shows_progress=True)
    assert [row["sources"] for row in rows] == [row["sources"] for row in planned]

    shown = assert_succeeded(maintain("expire", "--keep-last", "1", "--dry-run"))
    assert "would expire" in shown
    [newest] = [row["snapshot_id"] for row in sql("CALL swanlake_snapshots()")][-1:]
    shown = assert_succeeded(maintain("expire", "--keep-last", "1", "--older-than", "0s"))
    assert re.search(r"\d+ snapshots expired; the next clean-up has \d+ files", shown)
    assert [row["snapshot_id"] for row in sql("CALL swanlake_snapshots()")] == [newest]

    shown = assert_succeeded(maintain("cleanup", "--older-than", "0s", "--dry-run"))
    assert re.search(r"6 files with [0-9,]+ bytes would be deleted\.", shown)
    deleted = json_rows(
        maintain("cleanup", "--older-than", "0s", "--format", "json"), shows_progress=True
    )
    assert sorted(row["path"] for row in deleted) == sorted(
        path for row in rows for path in row["sources"]
    )
    assert assert_succeeded(maintain("orphans")) == "There is nothing to delete.\n"

    history = json_rows(maintain("history", "--format", "json"))
    assert [(row["job"], row["outcome"]) for row in history] == [
        ("orphans", "idle"),
        ("cleanup", "done"),
        ("expire", "done"),
        ("compact", "done"),
        ("compact", "done"),
    ]
    assert "expire" in assert_succeeded(maintain("history", "--limit", "3"))
    assert sql("SELECT count(*) AS n FROM a") == [{"n": 30}]


def test_table_and_catalog_options_limit_the_run(
    maintain: Maintain, sql: Callable[..., Any]
) -> None:
    sql("CALL swanlake_create_catalog('other')")
    fill(sql, "t", "u", "other.main.t")
    [row] = json_rows(maintain("compact", "--table", "t", "--format", "json"), shows_progress=True)
    assert (row["catalog_name"], row["table_name"]) == ("swanlake", "t")
    [row] = json_rows(
        maintain("compact", "--catalog", "other", "--format", "json"), shows_progress=True
    )
    assert (row["catalog_name"], row["table_name"]) == ("other", "t")
    history = json_rows(maintain("history", "--catalog", "other", "--format", "json"))
    assert [row["table_name"] for row in history] == ["main.t"]
    expired = maintain("expire", "--catalog", "other", "--keep-last", "1", "--format", "json")
    assert {row["catalog_name"] for row in json_rows(expired, shows_progress=True)} == {"other"}


def test_refused_request_exits_1(maintain: Maintain, sql: Callable[..., Any]) -> None:
    assert_failed(maintain("compact", "--table", "nothing"), 1, r"There is no table main\.nothing")
    assert_failed(maintain("compact", "--catalog", "nothing"), 1, "There is no catalog nothing")
    assert_failed(maintain("expire"), 1, "Say which snapshots expire")
    assert_failed(
        maintain("orphans", "--older-than", "1m"), 1, "of the last hour are never deleted"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["expire", "--keep-last", "0"],
        ["expire", "--older-than", "7"],
        ["history", "--job", "vacuum"],
        ["compact", "--format", "xml"],
        ["compact", "t"],
        ["checkpoint"],
    ],
)
def test_wrong_arguments_exit_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_no_connection_exits_2() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        for name in COMMANDS:
            assert_failed(run(name, "--url", url), 2, f"Cannot connect to {url}: ")


def test_terminal_shows_a_progress_bar(own_server: ServerProcess, sql: Callable[..., Any]) -> None:
    fill(sql, "a", "b")
    terminal, side = pty.openpty()
    arguments = [sys.executable, "-m", "swanlake", "maintain", "compact", "--url", own_server.url]
    finished = subprocess.run(
        [*arguments, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=side,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        timeout=60,
        check=True,
    )
    os.close(side)
    seen = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "compact main.b" in seen
    assert "2/2" in seen
    assert [row["table_name"] for row in json.loads(finished.stdout)] == ["a", "b"]


# ---- the document --------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_every_command_is_documented() -> None:
    (shell,) = blocks("sh")
    named = re.findall(r"^swanlake maintain ([a-z-]+)", shell, re.MULTILINE)
    assert set(named) == set(COMMANDS)


def test_documented_examples_run(maintain: Maintain, sql: Callable[..., Any]) -> None:
    fill(sql, "events")
    for text in blocks("sql"):
        for statement in text.split(";"):
            if statement.strip():
                sql(statement)
    (shell,) = blocks("sh")
    for line in shell.splitlines():
        result = maintain(*shlex.split(line, comments=True)[2:])
        assert result.exit_code == 0, result.output
