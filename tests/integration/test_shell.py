"""The prompt of ``swanlake sql`` in a real terminal."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swanlake._version import __version__
from swanlake.client import FlightSQLClient
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS
from tests.server_process import ServerProcess
from tests.terminal import Terminal
from tests.waiting import eventually


def shell(server: ServerProcess, home: Path, **options: Any) -> Terminal:
    """``swanlake sql`` in a terminal."""
    return Terminal("sql", "--url", server.url, home=home, **options)


@pytest.fixture
def terminal(server: ServerProcess, tmp_path: Path) -> Iterator[Terminal]:
    terminal = shell(server, tmp_path)
    yield terminal
    terminal.close()


def test_prompt_runs_statements_and_commands(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("swanlake>")
    terminal.type("SELECT 40 + 2\r")
    terminal.expect("...>")
    terminal.type("AS answer;\r")
    terminal.expect("answer")
    terminal.expect("42")
    terminal.expect("1 row")
    terminal.expect("swanlake>")

    terminal.type("SELECT * FROM no_such_table;\r")
    terminal.expect("CATALOG_ERROR: ")
    terminal.expect("swanlake>")

    terminal.type("CREATE TEMP TABLE typed (i INTEGER);\r")
    terminal.expect(" s)")
    terminal.expect("swanlake>")
    terminal.type(".tables typed\r")  # other tests have tables on the server, too
    terminal.expect("│ typed")
    terminal.expect("swanlake>")
    terminal.type(".help\r")
    terminal.expect("Ctrl-C cancels")
    terminal.expect("swanlake>")

    terminal.type("SELECT half\r")
    terminal.expect("...>")
    terminal.type("\x03")  # Ctrl-C discards the incomplete statement
    terminal.expect("swanlake>")
    terminal.type("\x04")  # Ctrl-D
    assert terminal.process.wait(240) == 0
    history = (tmp_path / ".swanlake_history").read_text()
    assert "+AS answer;" in history


@pytest.mark.parametrize(
    "statement",
    [
        f"{ENDLESS_QUERY};",
        f"{ENDLESS_ROWS};",
    ],
    ids=["executing", "fetching"],
)
def test_ctrl_c_cancels_the_statement_and_keeps_the_prompt(
    terminal: Terminal, server: ServerProcess, statement: str
) -> None:
    with FlightSQLClient(server.url) as observer:
        terminal.expect("swanlake>")
        terminal.type(statement + "\r")
        terminal.expect("(Ctrl-C cancels)")
        terminal.type("\x03")
        terminal.expect("cancelled")
        terminal.expect("swanlake>")
        eventually(lambda: not observer.status()["statements_running"])
    terminal.type("SELECT 'still ' || 'here';\r")
    terminal.expect("still here")
    terminal.expect("swanlake>")
    terminal.type(".quit\r")
    assert terminal.process.wait(240) == 0


def test_prompt_works_without_a_writable_home(server: ServerProcess) -> None:
    terminal = shell(server, Path("/proc/nowhere"))
    try:
        terminal.expect("swanlake>")
        terminal.type("SELECT 'it ' || 'works';\r")
        terminal.expect("it works")
        terminal.expect("swanlake>")
        terminal.type("exit\r")
        assert terminal.process.wait(240) == 0
    finally:
        terminal.close()


def test_prompt_survives_a_lost_server(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server: Any = start_server()
    terminal = shell(server, tmp_path)
    try:
        terminal.expect("swanlake>")
        server.kill()
        terminal.type("SELECT 1;\r")
        terminal.expect("Reconnecting")
        terminal.type("\x03")
        terminal.expect("swanlake>")
        terminal.type("\x04")
        assert terminal.process.wait(240) == 0
    finally:
        terminal.close()


# ---- commands, completion, display ---------------------------------------------------------------


def run_and_quit(terminal: Terminal, keys: str = "\\q\r") -> None:
    terminal.type(keys)
    assert terminal.process.wait(240) == 0


def test_banner_names_the_server_and_its_version(terminal: Terminal, server: ServerProcess) -> None:
    terminal.expect(f"Connected to SwanLake {__version__} at {server.url}")
    terminal.expect("Type \\? for help")
    run_and_quit(terminal)


def test_unknown_command_is_refused_at_once(terminal: Terminal) -> None:
    terminal.expect("swanlake>")
    terminal.type(".tabels\r")
    terminal.expect("INVALID_REQUEST: There is no command .tabels; the nearest is .tables.")
    run_and_quit(terminal)


def test_tab_completes_the_names_of_the_lake(terminal: Terminal, server: ServerProcess) -> None:
    with FlightSQLClient(server.url) as client:
        client.execute("CREATE OR REPLACE TABLE completed_table (only_column INTEGER)")
        client.execute("INSERT INTO completed_table VALUES (4711)")
    terminal.expect("swanlake>")

    def is_completed() -> bool:
        """Names are fetched in the background: Tab until they are there."""
        terminal.type("\x15FROM completed_t\t")
        return terminal.shows("completed_table", seconds=2)

    eventually(is_completed)
    terminal.type(";\r")
    terminal.expect("only_column")
    terminal.expect("integer")
    terminal.expect("4711")
    run_and_quit(terminal)


def test_temporary_table_is_completed(terminal: Terminal) -> None:
    terminal.expect("swanlake>")
    terminal.type("CREATE TEMP TABLE temporary_one AS SELECT 815 AS n;\r")
    terminal.expect(" s)")
    terminal.expect("swanlake>")
    terminal.type("FROM temporary_o\t")
    terminal.expect("temporary_one")
    terminal.type(";\r")
    terminal.expect("815")
    run_and_quit(terminal)


def test_describe_expanded_and_output(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("swanlake>")
    terminal.type("CREATE TEMP TABLE described (first INTEGER NOT NULL, second DATE);\r")
    terminal.expect(" s)")
    terminal.type("\\d described\r")
    terminal.expect("second")
    terminal.expect("DATE")
    terminal.expect("swanlake>")
    terminal.type("\\x\r")
    terminal.expect("Expanded display is on.")
    terminal.type("SELECT 5 AS five, NULL AS none;\r")
    terminal.expect("five")
    terminal.expect("│ 5")
    terminal.expect("│ NULL")
    terminal.expect("swanlake>")
    terminal.type(".mode csv\r")
    terminal.type(f"\\o {tmp_path}/out.csv\r")
    terminal.type("SELECT 1 AS a, 'x' AS b;\r")
    file = tmp_path / "out.csv"
    eventually(lambda: file.exists() and file.read_text() == "a,b\n1,x\n")
    terminal.type("\\o\r")
    run_and_quit(terminal)


def test_catalog_and_transaction_show_in_the_prompt(
    terminal: Terminal, server: ServerProcess
) -> None:
    with FlightSQLClient(server.url) as client:
        client.execute("CALL swanlake_create_catalog('prompted')")
    terminal.expect("swanlake>")
    terminal.type("\\c prompted\r")
    terminal.expect("prompted>")
    terminal.type("BEGIN;\r")
    terminal.expect("prompted*>")
    terminal.type("ROLLBACK;\r")
    terminal.expect("prompted>")
    run_and_quit(terminal)


def test_watch_repeats_the_statement_until_ctrl_c(terminal: Terminal) -> None:
    terminal.expect("swanlake>")
    terminal.type("SELECT 6 * 7 AS watched \\watch 0.1\r")
    for _ in range(3):
        terminal.expect("every 0.1 s")
        terminal.expect("42")
    terminal.type("\x03")
    terminal.expect("swanlake>")
    run_and_quit(terminal)


def test_editor_changes_the_last_statement(server: ServerProcess, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/before/after/ "$1"\n')
    editor.chmod(0o700)
    terminal = shell(server, tmp_path, EDITOR=str(editor), VISUAL=str(editor))
    try:
        terminal.expect("swanlake>")
        terminal.type("SELECT 'the word ' || 'before';\r")
        terminal.expect("the word before")
        terminal.expect("swanlake>")
        terminal.type("\\e\r")
        terminal.expect("'after'")
        terminal.type(";\r")
        terminal.expect("the word after")
        run_and_quit(terminal)
    finally:
        terminal.close()


def test_long_result_goes_to_the_pager(server: ServerProcess, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path}/paged\necho was paged\n")
    pager.chmod(0o700)
    terminal = shell(server, tmp_path, size=(24, 80), PAGER=str(pager))
    try:
        terminal.expect("swanlake>")
        terminal.type("FROM range(50);\r")
        terminal.expect("was paged")
        text = (tmp_path / "paged").read_text()
        assert "│     49 │" in text
        assert "50 rows" in text
        terminal.type("\\pager off\r")
        terminal.expect("The pager is off.")
        terminal.type("FROM range(50);\r")
        terminal.expect("│     49 │")
        run_and_quit(terminal)
    finally:
        terminal.close()


def test_wide_result_is_elided_with_its_number_of_columns(
    server: ServerProcess, tmp_path: Path
) -> None:
    terminal = shell(server, tmp_path, size=(24, 80))
    try:
        terminal.expect("swanlake>")
        terminal.type("FROM duckdb_functions() LIMIT 2;\r")
        terminal.expect(" … ")
        terminal.expect("columns (")
        run_and_quit(terminal)
    finally:
        terminal.close()


def test_long_statement_shows_its_time(terminal: Terminal) -> None:
    terminal.expect("swanlake>")
    terminal.type(f"{ENDLESS_QUERY};\r")
    terminal.expect(" s  (Ctrl-C cancels)")
    terminal.type("\x03")
    terminal.expect("cancelled")
    run_and_quit(terminal)


def test_restart_is_survived_and_what_was_lost_is_said(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server()
    terminal = shell(server, tmp_path)
    try:
        terminal.expect("swanlake>")
        terminal.type("CREATE TEMP TABLE gone (i INTEGER);\r")
        terminal.expect(" s)")
        terminal.type("SET preserve_insertion_order = true;\r")
        terminal.expect(" s)")
        server.stop()
        start_server("--port", str(server.port), home=server.home)
        terminal.type("SELECT 'once ' || 'more';\r")
        terminal.expect("Reconnected to ")
        terminal.expect(
            "Lost with the old session: temporary gone; setting preserve_insertion_order."
        )
        terminal.expect("swanlake>")
        terminal.type("SELECT 'once ' || 'more';\r")
        terminal.expect("once more")
        run_and_quit(terminal)
    finally:
        terminal.close()


def test_history_is_private(server: ServerProcess, tmp_path: Path) -> None:
    history = tmp_path / ".swanlake_history"
    history.write_text("")
    history.chmod(0o644)
    terminal = shell(server, tmp_path)
    try:
        terminal.expect("swanlake>")
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
        run_and_quit(terminal)
    finally:
        terminal.close()
