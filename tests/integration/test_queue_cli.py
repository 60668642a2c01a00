"""``swanlake queue`` against real servers."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from swanlake.cli.commands import swanlake as command
from swanlake.cli.remote import DEFAULT_URL
from swanlake.client import FlightSQLClient
from tests.cli_results import assert_failed, assert_succeeded, json_rows
from tests.credentials import write_tokens
from tests.server_process import ServerProcess

Queue = Callable[..., Result]

DOCUMENT = Path(__file__).parents[2] / "docs" / "queue.md"
COMMANDS = ("list", "show", "flush", "pause", "resume", "dead-letters", "replay", "discard")
#: The arguments without which a command is wrong.
NEEDED = {"replay": ["--all"], "discard": ["some-id", "--yes"]}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["queue", *arguments], prog_name="swanlake")


@pytest.fixture
def own_server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server for one test."""
    return start_server()


@pytest.fixture
def queue(own_server: ServerProcess) -> Queue:
    """Runs a command: ``queue("flush", "t")``."""

    def run_queue(*arguments: str) -> Result:
        return run(*arguments, "--url", own_server.url)

    return run_queue


@pytest.fixture
def sql(own_server: ServerProcess) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Runs a statement and returns its rows."""
    with FlightSQLClient(own_server.url) as connection:
        yield lambda text: connection.execute(text).table.to_pylist()


def test_commands_on_an_empty_queue_report_nothing(queue: Queue) -> None:
    assert assert_succeeded(queue("list")) == "The queue is empty.\n"
    assert assert_succeeded(queue("show")) == "The queue is empty.\n"
    assert assert_succeeded(queue("show", "t")) == "Nothing is queued for t.\n"
    assert assert_succeeded(queue("flush")) == "The queue is empty.\n"
    assert assert_succeeded(queue("flush", "main.t")) == "Nothing is queued for main.t.\n"
    assert assert_succeeded(queue("dead-letters")) == "There are no dead letters.\n"
    assert assert_succeeded(queue("replay", "--all")) == "There is nothing to replay.\n"
    for name in ("list", "show", "flush", "dead-letters"):
        assert assert_succeeded(queue(name, "--format", "json")) == "[]\n"


def test_list_show_and_flush_queued_rows(queue: Queue, sql: Callable[..., Any]) -> None:
    sql('CREATE TABLE a (i INTEGER); CREATE TABLE "it\'s" (i INTEGER)')
    sql("INSERT INTO duckling_queue.a VALUES (1), (2)")
    sql('INSERT INTO duckling_queue."it\'s" VALUES (3)')

    listed = json_rows(queue("list", "--format", "json"))
    assert [(row["table_name"], row["state"], row["rows"]) for row in listed] == [
        ("a", "open", 2),
        ("it's", "open", 1),
    ]
    shown = assert_succeeded(queue("show"))
    assert "open" in shown
    assert ".arrows" not in shown
    [segment] = json_rows(queue("show", 'main."it\'s"', "--format", "json"))
    assert segment["rows"] == 1
    assert pa.ipc.open_stream(Path(segment["path"]).read_bytes()).schema.names == ["i"]
    listed_in_arrow = queue("list", "--format", "arrow")
    assert pa.ipc.open_stream(listed_in_arrow.stdout_bytes).read_all().num_rows == 2

    [flushed] = json_rows(queue("flush", 'swanlake.main."it\'s"', "--format", "json"))
    assert (flushed["rows"], flushed["files"], flushed["dead_letters"]) == (1, 1, 0)
    assert [row["table_name"] for row in json_rows(queue("list", "--format", "json"))] == ["a"]
    assert "│ a " in assert_succeeded(queue("flush"))
    assert assert_succeeded(queue("list")) == "The queue is empty.\n"
    assert sql("FROM a ORDER BY i") == [{"i": 1}, {"i": 2}]


def test_paused_queue_refuses_flush_until_resumed(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER)")
    assert (
        assert_succeeded(queue("pause"))
        == "The queue is paused: it accepts rows but does not flush them.\n"
    )
    sql("INSERT INTO duckling_queue.t VALUES (1)")
    assert "paused" in assert_succeeded(queue("list"))
    assert_failed(queue("flush"), 1, "The queue is paused")
    assert assert_succeeded(queue("resume")) == "The queue has resumed flushing.\n"
    assert json_rows(queue("flush", "--format", "json"))[0]["rows"] == 1


def test_dead_letters_are_listed_and_replayed(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER); CREATE TABLE u (i INTEGER)")
    for table in ("t", "u"):
        sql(f"INSERT INTO duckling_queue.{table} VALUES (7)")
        sql(f"DROP TABLE {table}")
    flushed = queue("flush")
    assert flushed.exit_code == 1
    assert flushed.stderr == (
        "swanlake: 2 segments became dead letters; `swanlake queue dead-letters` shows why.\n"
    )
    assert "│ t " in flushed.stdout

    letters = json_rows(queue("dead-letters", "--format", "json"))
    letters.sort(key=lambda row: str(row["table_name"]))  # the two tables are flushed concurrently
    assert [(row["table_name"], row["rows"], row["replayable"]) for row in letters] == [
        ("t", 1, True),
        ("u", 1, True),
    ]
    assert all("does not exist" in row["reason"] for row in letters)
    shown = assert_succeeded(queue("dead-letters"))
    assert letters[0]["segment_id"] in shown
    assert letters[0]["path"] not in shown

    assert_failed(queue("replay", letters[0]["segment_id"]), 1, r"There is no table main\.t")
    assert_failed(queue("replay", "no-such-letter"), 1, "There is no dead letter no-such-letter")
    sql("CREATE TABLE t (i INTEGER)")
    assert letters[0]["segment_id"] in assert_succeeded(queue("replay", letters[0]["segment_id"]))
    sql("CREATE TABLE u (i INTEGER)")
    [replayed] = json_rows(queue("replay", "--all", "--format", "json"))
    assert replayed["segment_id"] == letters[1]["segment_id"]
    assert assert_succeeded(queue("dead-letters")) == "There are no dead letters.\n"
    queue("flush")  # the background flush may have been faster
    assert sql("FROM t UNION ALL FROM u") == [{"i": 7}, {"i": 7}]


def test_discarded_dead_letter_is_deleted(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER)")
    sql("INSERT INTO duckling_queue.t VALUES (7)")
    sql("DROP TABLE t")
    assert queue("flush").exit_code == 1
    [letter] = json_rows(queue("dead-letters", "--format", "json"))
    assert_failed(queue("discard", letter["segment_id"]), 2, "use --yes")
    [discarded] = json_rows(queue("discard", letter["segment_id"], "--yes", "--format", "json"))
    assert discarded == letter
    assert not Path(str(letter["path"])).exists()
    assert assert_succeeded(queue("dead-letters")) == "There are no dead letters.\n"
    assert_failed(queue("discard", letter["segment_id"], "--yes"), 1, "There is no dead letter")


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["discard"],
        ["replay", "some-id", "--all"],
        ["list", "--format", "xml"],
        ["flush", "a", "b"],
        ["purge"],
    ],
)
def test_wrong_arguments_exit_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_invalid_table_name_exits_1(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER)")
    sql("INSERT INTO duckling_queue.t VALUES (1)")
    for name in ("show", "flush"):
        assert_failed(queue(name, "a.b.c.d"), 1, "write catalog.schema.table")


def test_no_connection_exits_2(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        for name in COMMANDS:
            arguments = [name, *NEEDED.get(name, ())]
            assert_failed(run(*arguments, "--url", url), 2, f"Cannot connect to {url}: ")
    assert_failed(run("list", "--url", "nowhere"), 2, "nowhere")
    assert_failed(run("list", "--token-file", str(tmp_path / "none")), 2, "cannot be read")


def test_server_with_tokens_refuses_commands_without_one(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    write_tokens(tmp_path / "home0", alice="a-secret-sentence\n")
    server = start_server("--auth", "token")
    assert_failed(run("list", "--url", server.url), 2, "Cannot connect to ")
    token = str(server.home / "tokens" / "alice")
    assert (
        assert_succeeded(run("list", "--url", server.url, "--token-file", token))
        == "The queue is empty.\n"
    )


# ---- the document --------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_every_command_is_documented() -> None:
    (shell,) = blocks("sh")
    assert re.findall(r"^swanlake queue ([a-z-]+)", shell, re.MULTILINE) == list(COMMANDS)


def test_documented_examples_run(
    own_server: ServerProcess, queue: Queue, sql: Callable[..., Any]
) -> None:
    writing, reading = blocks("sql")
    for statement in writing.split(";"):
        if statement.strip():
            sql(statement)
    for program in blocks("python"):
        program = program.replace(DEFAULT_URL, own_server.url)
        subprocess.run([sys.executable, "-c", program], check=True)
    # 1, ten rows, 12, 13 to 16, and 17 once.
    assert next(iter(sql(reading)[0].values())) == 17
    (shell,) = blocks("sh")
    for line in shell.splitlines():
        arguments = shlex.split(line, comments=True)[2:]
        if "ID" in arguments:
            assert_failed(queue(*arguments, "--yes"), 1, "There is no dead letter ID")
        else:
            assert_succeeded(queue(*arguments))
    assert sql("SELECT count(*) AS n, count(seen) AS seen FROM events") == [{"n": 17, "seen": 17}]
