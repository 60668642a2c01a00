"""``swanlake sql``: statements in, results out, in a script or at a prompt."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from swanlake.cli.output import show
from swanlake.client.driver import Connection, Result
from swanlake.errors import QueryCancelled, ServerUnavailable, SwanLakeError
from swanlake.sql.tokens import tokenize

T = TypeVar("T")

_HISTORY = "~/.swanlake_history"
_INTERRUPT_POLL = 0.1
_HELP = """\
  End a statement with ; and press Enter. Ctrl-C stops a running statement, Ctrl-D leaves.
  .help   this text
  .tables the tables of the current catalog
  .quit   leave"""
_TABLES = """SELECT schema_name AS "schema", table_name AS "table", estimated_size AS "rows"
FROM duckdb_tables() WHERE database_name IN (current_catalog(), 'temp') ORDER BY ALL"""


class Shell:
    """Runs statements on one connection and shows what they give."""

    def __init__(self, connection: Connection, output: str, *, quiet: bool = False) -> None:
        self._connection = connection
        self._output = output
        self._quiet = quiet
        self._interrupted = False

    def run_script(self, text: str) -> None:
        """Runs the statements of a text one after the other; stops at the first that fails."""
        for statement in split(text):
            self._run(statement)

    def interact(self) -> None:
        """Reads statements from the terminal until the user leaves."""
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
        query_id = str(uuid.uuid4())
        self._interrupted = False
        self._interruptible(query_id, lambda: self._execute_and_show(statement, query_id))

    def _execute_and_show(self, statement: str, query_id: str) -> None:
        result = self._connection.execute(statement, query_id=query_id)
        with closing(result.batches) as batches:
            wanted = Result(result.schema, self._while_wanted(batches), result.rows)
            show(wanted, self._output, quiet=self._quiet)

    def _while_wanted(self, batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
        for batch in batches:
            if self._interrupted:  # between two batches the server had nothing to stop
                raise QueryCancelled("The statement was stopped from the keyboard.")
            yield batch

    def _interruptible(self, query_id: str, work: Callable[[], T]) -> T:
        """Works in a thread of its own: here a Ctrl-C can only meet a wait, and cancels."""
        outcome: list[T] = []
        failure: list[Exception] = []
        done = threading.Event()

        def attempt() -> None:
            try:
                outcome.append(work())
            except Exception as error:  # noqa: BLE001 - handed to the thread that waits
                failure.append(error)
            finally:
                done.set()

        threading.Thread(target=attempt, daemon=True).start()
        while not done.is_set():
            try:
                done.wait(_INTERRUPT_POLL)  # Thread.join forgets the thread when it is interrupted
            except KeyboardInterrupt:
                self._interrupted = True
                with suppress(SwanLakeError):  # then the work itself says what is wrong
                    self._connection.cancel(query_id)
        if failure:
            if self._interrupted and not isinstance(failure[0], ServerUnavailable):
                raise KeyboardInterrupt from failure[0]
            raise failure[0]
        return outcome[0]


def _history() -> History:
    """The history file, or none that lasts where there is no home to write it to."""
    path = Path(os.path.expanduser(_HISTORY))  # stays as it is where nobody knows the home
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
    """True if the last thing in the text is a semicolon that ends a statement."""
    tokens = tokenize(text)
    return not tokens or (tokens[-1].is_operator and tokens[-1].text == ";")
