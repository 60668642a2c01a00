"""``swanlake sql``: runs statements of a script or from a prompt, and prints their results."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from swanlake.cli.output import Result, show
from swanlake.client import FlightSQLClient
from swanlake.errors import QueryCancelled, ServerUnavailable, SwanLakeError
from swanlake.sql.tokens import tokenize

_HISTORY = "~/.swanlake_history"
_HELP = """\
  End a statement with ; and press Enter. Ctrl-C cancels a running statement, Ctrl-D quits.
  .help   show this text
  .tables list the tables of the current catalog
  .quit   quit"""
_TABLES = """SELECT schema_name AS "schema", table_name AS "table", estimated_size AS "rows"
FROM duckdb_tables() WHERE database_name IN (current_catalog(), 'temp') ORDER BY ALL"""


class Shell:
    """Runs statements on one connection and prints their results."""

    def __init__(self, client: FlightSQLClient, output: str, *, quiet: bool = False) -> None:
        self._client = client
        self._output = output
        self._quiet = quiet

    def run_script(self, text: str) -> None:
        """Runs the statements of a text in order; stops at the first error."""
        for statement in split(text):
            self._run(statement)

    def interact(self) -> None:
        """Reads statements from the terminal until the user quits."""
        prompt: PromptSession[str] = PromptSession(history=_history())
        pending = ""
        while True:
            try:
                line = prompt.prompt("     ...> " if pending else "swanlake> ")
            except KeyboardInterrupt:
                pending = ""
                continue
            except EOFError:
                return
            if not pending and line.strip() in (".quit", ".exit", "exit", "quit", "\\q"):
                return
            if not pending and line.strip() == ".help":
                print(_HELP)
                continue
            if not pending and line.strip() == ".tables":
                line = _TABLES + ";"
            pending += line + "\n"
            if is_complete(pending):
                self._run_and_report(pending)
                pending = ""

    def _run_and_report(self, text: str) -> None:
        started = time.monotonic()
        try:
            self.run_script(text)
            if not self._quiet:
                print(f"({time.monotonic() - started:.3f} s)")
        except (QueryCancelled, KeyboardInterrupt):
            print("cancelled", file=sys.stderr)
        except ServerUnavailable as lost:
            print(f"connection lost: {lost}", file=sys.stderr)
        except SwanLakeError as failed:
            print(f"{failed.identifier}: {failed}", file=sys.stderr)

    def _run(self, statement: str) -> None:
        # Ctrl-C cancels the statement while it executes and while its rows are printed.
        with self._client.stream(statement) as rows:
            show(Result(rows.schema, rows, rows.affected_rows), self._output, quiet=self._quiet)


def _history() -> History:
    """The history file; in memory if the home directory is not writable."""
    path = Path(os.path.expanduser(_HISTORY))  # unchanged without a home directory
    try:
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def split(text: str) -> list[str]:
    """The statements of a text, without the semicolons between them."""
    raw = text.encode()
    statements, start = [], 0
    for token in tokenize(text):
        if token.is_operator and token.text == ";":
            statements.append(raw[start : token.start].decode())
            start = token.end
    statements.append(raw[start:].decode())
    return [statement for statement in statements if tokenize(statement)]


def is_complete(text: str) -> bool:
    """True if the text ends with the semicolon of a statement."""
    tokens = tokenize(text)
    return not tokens or (tokens[-1].is_operator and tokens[-1].text == ";")
