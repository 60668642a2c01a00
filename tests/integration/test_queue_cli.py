"""``swanlake queue`` against real servers."""

from __future__ import annotations

import json
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
from swanlake.cli.connection import DEFAULT_URL
from swanlake.client import FlightSQLClient
from tests.cli_results import done, refused
from tests.server_process import ServerProcess

Queue = Callable[..., Result]

DOCUMENT = Path(__file__).parents[2] / "docs" / "queue.md"
COMMANDS = ("list", "show", "flush", "pause", "resume", "dead-letters", "replay")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["queue", *arguments], prog_name="swanlake")


@pytest.fixture
def own_server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server whose queue nobody else writes to."""
    return start_server()


@pytest.fixture
def queue(own_server: ServerProcess) -> Queue:
    """``queue("flush", "t")``"""

    def run_queue(*arguments: str) -> Result:
        return run(*arguments, "--url", own_server.url)

    return run_queue


@pytest.fixture
def sql(own_server: ServerProcess) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Runs a text and gives its rows."""
    with FlightSQLClient(own_server.url) as connection:
        yield lambda text: connection.execute(text).table.to_pylist()


def rows_of(result: Result) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(done(result))
    return rows


def test_an_empty_queue(queue: Queue) -> None:
    assert done(queue("list")) == "The queue is empty.\n"
    assert done(queue("show")) == "The queue is empty.\n"
    assert done(queue("show", "t")) == "Nothing is queued for t.\n"
    assert done(queue("flush")) == "The queue is empty.\n"
    assert done(queue("flush", "main.t")) == "Nothing is queued for main.t.\n"
    assert done(queue("dead-letters")) == "There are no dead letters.\n"
    assert done(queue("replay", "--all")) == "There is nothing to replay.\n"
    for name in ("list", "show", "flush", "dead-letters"):
        assert done(queue(name, "--format", "json")) == "[]\n"


def test_rows_from_the_queue_to_the_lake(queue: Queue, sql: Callable[..., Any]) -> None:
    sql('CREATE TABLE a (i INTEGER); CREATE TABLE "it\'s" (i INTEGER)')
    sql("INSERT INTO duckling_queue.a VALUES (1), (2)")
    sql('INSERT INTO duckling_queue."it\'s" VALUES (3)')

    listed = rows_of(queue("list", "--format", "json"))
    assert [(row["table_name"], row["state"], row["rows"]) for row in listed] == [
        ("a", "open", 2),
        ("it's", "open", 1),
    ]
    shown = done(queue("show"))
    assert "open" in shown
    assert ".arrows" not in shown
    [segment] = rows_of(queue("show", 'main."it\'s"', "--format", "json"))
    assert segment["rows"] == 1
    assert pa.ipc.open_stream(Path(segment["path"]).read_bytes()).schema.names == ["i"]
    listed_in_arrow = queue("list", "--format", "arrow")
    assert pa.ipc.open_stream(listed_in_arrow.stdout_bytes).read_all().num_rows == 2

    [flushed] = rows_of(queue("flush", 'swanlake.main."it\'s"', "--format", "json"))
    assert (flushed["rows"], flushed["files"], flushed["dead_letters"]) == (1, 1, 0)
    assert [row["table_name"] for row in rows_of(queue("list", "--format", "json"))] == ["a"]
    assert "│ a " in done(queue("flush"))
    assert done(queue("list")) == "The queue is empty.\n"
    assert sql("FROM a ORDER BY i") == [{"i": 1}, {"i": 2}]


def test_pause_and_resume(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER)")
    assert done(queue("pause")) == "The queue is paused: it takes rows and flushes none.\n"
    sql("INSERT INTO duckling_queue.t VALUES (1)")
    assert "paused" in done(queue("list"))
    refused(queue("flush"), 1, "The queue is paused")
    assert done(queue("resume")) == "The queue flushes again.\n"
    assert rows_of(queue("flush", "--format", "json"))[0]["rows"] == 1


def test_dead_letters_and_their_replay(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER); CREATE TABLE u (i INTEGER)")
    for table in ("t", "u"):
        sql(f"INSERT INTO duckling_queue.{table} VALUES (7)")
        sql(f"DROP TABLE {table}")
    flushed = queue("flush")
    assert flushed.exit_code == 1
    assert flushed.stderr == (
        "swanlake: 2 segments became dead letters; `swanlake queue dead-letters` says why.\n"
    )
    assert "│ t " in flushed.stdout

    letters = rows_of(queue("dead-letters", "--format", "json"))
    letters.sort(key=lambda row: str(row["table_name"]))  # two flushes ran side by side
    assert [(row["table_name"], row["rows"], row["replayable"]) for row in letters] == [
        ("t", 1, True),
        ("u", 1, True),
    ]
    assert all("is gone" in row["reason"] for row in letters)
    shown = done(queue("dead-letters"))
    assert letters[0]["segment_id"] in shown
    assert letters[0]["path"] not in shown

    refused(queue("replay", letters[0]["segment_id"]), 1, r"There is no table main\.t")
    refused(queue("replay", "no-such-letter"), 1, "There is no dead letter no-such-letter")
    sql("CREATE TABLE t (i INTEGER)")
    assert letters[0]["segment_id"] in done(queue("replay", letters[0]["segment_id"]))
    sql("CREATE TABLE u (i INTEGER)")
    [replayed] = rows_of(queue("replay", "--all", "--format", "json"))
    assert replayed["segment_id"] == letters[1]["segment_id"]
    assert done(queue("dead-letters")) == "There are no dead letters.\n"
    queue("flush")  # the director may have been faster
    assert sql("FROM t UNION ALL FROM u") == [{"i": 7}, {"i": 7}]


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "some-id", "--all"],
        ["list", "--format", "xml"],
        ["flush", "a", "b"],
        ["purge"],
    ],
)
def test_wrong_arguments_exit_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_name_that_is_none_exits_1(queue: Queue, sql: Callable[..., Any]) -> None:
    sql("CREATE TABLE t (i INTEGER)")
    sql("INSERT INTO duckling_queue.t VALUES (1)")
    for name in ("show", "flush"):
        refused(queue(name, "a.b.c.d"), 1, "write catalog.schema.table")


def test_no_connection_exits_2(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{free.getsockname()[1]}"
        for name in COMMANDS:
            arguments = [name, "--all"] if name == "replay" else [name]
            refused(run(*arguments, "--url", url), 2, f"Cannot connect to {url}: ")
    refused(run("list", "--url", "nowhere"), 2, "nowhere")
    refused(run("list", "--token-file", str(tmp_path / "none")), 2, "cannot be read")


def test_a_token_is_needed_where_the_server_asks_for_one(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    tokens = tmp_path / "home0" / "tokens"
    tokens.mkdir(parents=True)
    (tokens / "alice").write_text("secret-word\n")
    server = start_server("--auth", "token")
    refused(run("list", "--url", server.url), 2, "Cannot connect to ")
    token = str(tokens / "alice")
    assert done(run("list", "--url", server.url, "--token-file", token)) == "The queue is empty.\n"


# ---- the document --------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_every_command_is_documented() -> None:
    (shell,) = blocks("sh")
    assert re.findall(r"^swanlake queue ([a-z-]+)", shell, re.MULTILINE) == list(COMMANDS)


def test_the_examples_of_the_document(
    own_server: ServerProcess, queue: Queue, sql: Callable[..., Any]
) -> None:
    writing, reading = blocks("sql")
    for statement in writing.split(";"):
        if statement.strip():
            sql(statement)
    for program in blocks("python"):
        program = program.replace(DEFAULT_URL, own_server.url)
        subprocess.run([sys.executable, "-c", program], check=True)
    # 1, ten ticks and 12; 13 to 16; and 17 once.
    assert next(iter(sql(reading)[0].values())) == 17
    (shell,) = blocks("sh")
    for line in shell.splitlines():
        done(queue(*shlex.split(line, comments=True)[2:]))
    assert sql("SELECT count(*) AS n, count(seen) AS seen FROM events") == [{"n": 17, "seen": 17}]
