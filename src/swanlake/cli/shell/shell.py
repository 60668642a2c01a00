"""``swanlake sql``: runs statements and commands of scripts or from a prompt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from swanlake.cli.output import FORMATS, Result, View, show, terminal_size, text_style
from swanlake.cli.pager import page
from swanlake.cli.remote import display_url
from swanlake.cli.shell import describe
from swanlake.cli.shell.commands import Invocation, help_lines, parse_command
from swanlake.cli.shell.completion import Table
from swanlake.cli.shell.error_text import error_lines
from swanlake.cli.shell.input import Command, Statement, split
from swanlake.cli.shell.lexing import pieces
from swanlake.cli.shell.link import LOST, Link
from swanlake.cli.shell.running import RunningLine
from swanlake.client import QueryOptions
from swanlake.errors import (
    InvalidRequest,
    QueryCancelled,
    ServerUnreachable,
    SessionLost,
    SwanLakeError,
)

if TYPE_CHECKING:
    from swanlake.cli.shell.names_source import NamesSource

_MAX_NESTED_FILES = 16
_TEMPORARY_COLUMNS = """SELECT table_name, list(column_name) FROM duckdb_columns()
WHERE database_name = 'temp' GROUP BY ALL"""


class Quit(Exception):
    """The user wants to leave the shell."""


class ScriptFailed(Exception):
    """A statement of a script failed and was reported; ``error`` says how."""

    def __init__(self, error: SwanLakeError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Source:
    """Where statements come from: its name in errors, and whether an error ends it."""

    name: str = ""
    bail: bool = True
    #: The first error of a source that goes on after errors.
    failed: SwanLakeError | None = field(default=None)


class Shell:
    """Runs statements on one session and prints their results."""

    def __init__(self, link: Link, url: str, view: View, *, is_interactive: bool = False) -> None:
        self._link = link
        self._url = display_url(url)
        self._view = view
        self._is_interactive = is_interactive
        self._timing = is_interactive and not view.quiet
        self._output: IO[str] | None = None
        self._last = ""
        self._next_input = ""
        self._names: NamesSource | None = None
        self._progress: Callable[[str], float | None] = lambda query_id: None
        self._depth = 0
        self._buffer = ""

    # ---- scripts ---------------------------------------------------------------------------------

    def run_script(self, text: str, name: str = "", *, bail: bool = True) -> None:
        """Runs a text in order; raises ScriptFailed at the first error, or after the last item."""
        source = Source(name, bail)
        try:
            for item in split(text):
                self._run_item(item, source)
        except Quit:
            pass
        if source.failed is not None:
            raise ScriptFailed(source.failed)

    def _run_item(self, item: Statement | Command, source: Source) -> None:
        try:
            if isinstance(item, Statement):
                self._execute(item.text)
            else:
                self._run_command(item)
        except ScriptFailed as failed:  # of a file that this one reads
            if source.bail:
                raise
            source.failed = source.failed or failed.error
        except SwanLakeError as error:
            sys.stdout.flush()
            where = f"{source.name}:{item.line}" if source.name else "swanlake"
            self._report(error, where=where, first_line=item.line)
            if source.bail or isinstance(error, LOST):
                raise ScriptFailed(error) from None
            source.failed = source.failed or error

    # ---- the prompt ------------------------------------------------------------------------------

    def interact(self, names: NamesSource, progress: Callable[[str], float | None]) -> None:
        """Reads statements and commands from the terminal until the user quits."""
        from swanlake.cli.shell.prompt import Prompt  # slow to load

        self._names, self._progress = names, progress
        self._link.find_place()
        names.refresh()
        if not self._view.quiet:
            self._show_banner()
        prompt = Prompt(lambda: names.names, lambda: self._link.place)
        while True:
            default, self._next_input = self._next_input, ""
            try:
                text = prompt.read(self._prompt_text(), default)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            try:
                for item in split(text):
                    if not self._run_at_prompt(item):
                        break
            except Quit:
                return

    def _show_banner(self) -> None:
        version = ""
        with suppress(SwanLakeError, KeyError):  # another Flight SQL server
            version = f" {self._link.client.status()['version']}"
        print(f"Connected to SwanLake{version} at {self._url}")
        print("Type \\? for help, \\q to quit; Tab completes.")

    def _prompt_text(self) -> str:
        place = self._link.place
        name = place.catalog or "swanlake"
        if place.schema != "main":
            name += f".{place.schema}"
        return f"{name}{'*' if self._link.state.in_transaction else ''}> "

    def _run_at_prompt(self, item: Statement | Command) -> bool:
        """Runs one item and reports its errors; False if what follows should not run."""
        try:
            if isinstance(item, Statement):
                self._run_statement(item)
            else:
                self._run_command(item)
            return True
        except (QueryCancelled, KeyboardInterrupt):
            print("cancelled", file=sys.stderr)
        except ScriptFailed:
            pass  # reported where it failed
        except SwanLakeError as error:
            self._report(error)
        return False

    def _run_statement(self, item: Statement) -> None:
        self._last = item.text
        if self._link.is_lost:
            self._reconnect()
        try:
            self._execute(item.text)
        except LOST as error:
            if self._recover(error):
                self._execute(item.text)

    def _recover(self, error: SwanLakeError) -> bool:
        """Reconnects after a lost connection; True if the statement should run again.

        It runs again only if it certainly did not run, and if a new session is as good as the old.
        """
        did_not_run = isinstance(error, SessionLost | ServerUnreachable)
        lost = self._link.mark_lost()
        self._report(error)
        self._reconnect()
        if lost:
            print(f"Lost with the old session: {'; '.join(lost)}.", file=sys.stderr)
        if did_not_run and lost:
            print("The statement did not run.", file=sys.stderr)
        elif not did_not_run:
            print("The statement may have taken effect: check before you repeat it.",
                  file=sys.stderr)  # fmt: skip
        return did_not_run and not lost

    def _reconnect(self) -> None:
        print("Reconnecting; Ctrl-C stops.", file=sys.stderr)
        self._link.reconnect()
        print(f"Reconnected to {self._url}.", file=sys.stderr)
        self._link.find_place()
        self._refresh_names()

    # ---- statements ------------------------------------------------------------------------------

    def _execute(self, sql: str, view: View | None = None) -> None:
        view = view or self._view
        if self._output is None and view.format == "arrow" and sys.stdout.isatty():
            raise InvalidRequest("Arrow is binary. Choose a file with \\o FILE first.")
        until_first = view.format in ("csv", "json", "arrow")
        query_id = os.urandom(16).hex()
        # Ctrl-C cancels the statement while it executes and while its rows are read.
        with (
            RunningLine(lambda: self._progress(query_id)) as line,
            self._link.client.stream(sql, options=QueryOptions(query_id=query_id)) as rows,
            self._redirected(),
        ):
            if self._timing:
                view = replace(view, clock=lambda: line.seconds)
            batches = line.follow(rows, until_first=until_first)
            show(Result(rows.schema, batches, rows.affected_rows), view)
        self._after(sql)

    def _after(self, sql: str) -> None:
        """Follows what a statement changed."""
        self._link.state.record(sql)
        if self._names is None:
            return
        verb = next((piece.text.lower() for piece in pieces(sql) if piece.is_code), "")
        if verb in ("use", "attach", "detach", "set", "rollback", "commit"):
            self._link.find_place()
        if verb in ("create", "drop", "alter", "attach", "detach", "call", "rollback", "commit"):
            self._refresh_names()

    def _refresh_names(self) -> None:
        if self._names is None:
            return
        self._names.refresh()
        if not self._link.state.in_transaction and not self._link.is_lost:
            try:
                rows = self._link.client.query(_TEMPORARY_COLUMNS).rows()
            except SwanLakeError:
                return
            tables = (Table("temp", "main", name, tuple(columns)) for name, columns in rows)
            self._names.set_temporary(tuple(tables))

    @contextmanager
    def _redirected(self) -> Iterator[None]:
        if self._output is None:
            yield
            return
        with redirect_stdout(self._output):
            yield
        self._output.flush()

    def _report(self, error: SwanLakeError, *, where: str = "", first_line: int = 1) -> None:
        style = text_style(sys.stderr)
        for line in error_lines(error, where=where, first_line=first_line, style=style):
            print(line, file=sys.stderr)

    # ---- commands --------------------------------------------------------------------------------

    def _run_command(self, command: Command) -> None:
        self._next_input = command.buffer  # to go on with
        invocation = parse_command(command.text)
        if invocation.command.name in ("again", "vertical_once", "watch"):
            self._next_input = ""
        self._buffer = command.buffer
        getattr(self, f"_do_{invocation.command.name}")(invocation)

    def _query(self, sql: str) -> None:
        """Runs a query of the shell's own and prints its rows."""
        self._execute(sql, replace(self._view, types=False))

    def _do_help(self, call: Invocation) -> None:
        lines = list(help_lines())
        if self._view.pager and len(lines) >= terminal_size().lines:
            page(lines)
        else:
            print("\n".join(lines))

    def _do_quit(self, call: Invocation) -> None:
        raise Quit

    def _do_connection(self, call: Invocation) -> None:
        place = self._link.place
        print(f"server   {self._url}")
        print(f"session  {self._link.client.session_id}")
        print(f"catalog  {place.catalog or '?'}, schema {place.schema}")

    def _do_catalog(self, call: Invocation) -> None:
        name = call.arguments[0] if call.arguments else "swanlake"
        self._execute(f"USE {name}", replace(self._view, quiet=True))
        self._link.find_place()

    def _do_describe(self, call: Invocation) -> None:
        name = next(iter(call.arguments), "")
        if not name or describe.has_wildcard(name):
            self._query(describe.relations(name))
            return
        about = self._link.client.query(describe.describe(name)).to_pylist()
        self._query(describe.columns(name))
        for row in about:
            self._print_about(row)

    def _print_about(self, row: dict[str, object]) -> None:
        with self._redirected():
            if row["rows"] is not None:
                print(f"{row['kind']} of about {row['rows']} rows")
            elif row["sql"]:
                print(row["sql"])
            if row["comment"]:
                print(row["comment"])

    def _do_tables(self, call: Invocation) -> None:
        self._query(describe.tables(*call.arguments))

    def _do_views(self, call: Invocation) -> None:
        self._query(describe.views(*call.arguments))

    def _do_schemas(self, call: Invocation) -> None:
        self._query(describe.schemas(*call.arguments))

    def _do_catalogs(self, call: Invocation) -> None:
        self._query("CALL swanlake_catalogs()")

    def _do_functions(self, call: Invocation) -> None:
        self._query(describe.functions(*call.arguments))

    def _do_users(self, call: Invocation) -> None:
        print(
            "Users and tokens belong to the lake: `swanlake user list`, `swanlake token list`, or "
            "as an admin CALL swanlake_users() and CALL swanlake_tokens()."
        )

    def _do_schema(self, call: Invocation) -> None:
        rows = self._link.client.query(describe.definitions(*call.arguments)).rows()
        with self._redirected():
            for (sql,) in rows:
                print(sql)

    def _do_edit(self, call: Invocation) -> None:
        self._require_terminal("\\e")
        edited = click.edit(self._buffer or self._last, extension=".sql")
        if edited is not None:
            self._next_input = edited.rstrip()

    def _do_print(self, call: Invocation) -> None:
        print(self._buffer or self._last)

    def _do_again(self, call: Invocation) -> None:
        self._run_statement(Statement(self._text_to_run()))

    def _do_vertical_once(self, call: Invocation) -> None:
        self._execute(self._text_to_run(), replace(self._view, format="vertical"))

    def _do_watch(self, call: Invocation) -> None:
        text = self._text_to_run()
        seconds = _number(call.arguments[0], float) if call.arguments else 2.0
        times = int(_number(call.arguments[1], int)) if len(call.arguments) > 1 else None
        runs = 0
        try:
            while True:
                print(time.strftime("%H:%M:%S"), f"every {seconds:g} s")
                self._execute(text, replace(self._view, pager=False))
                runs += 1
                if runs == times:
                    return
                time.sleep(seconds)
        except KeyboardInterrupt:
            print()

    def _text_to_run(self) -> str:
        text = self._buffer or self._last
        if not text:
            raise InvalidRequest("There is no statement to run.")
        self._last = text
        return text

    def _do_read(self, call: Invocation) -> None:
        path = Path(call.arguments[0]).expanduser()
        text = _read(path)
        if self._depth == _MAX_NESTED_FILES:
            raise InvalidRequest(f"{path} is read by a file that it reads.")
        self._depth += 1
        try:
            self.run_script(text, str(path))
        finally:
            self._depth -= 1

    def _do_output(self, call: Invocation) -> None:
        self.close_output()
        if call.arguments and call.arguments[0] != "stdout":
            path = Path(call.arguments[0]).expanduser()
            try:
                self._output = path.open("w", encoding="utf-8")
            except OSError as refused:
                raise InvalidRequest(f"{path} cannot be written: {refused.strerror}.") from None

    def _do_expanded(self, call: Invocation) -> None:
        is_on = _switched(call, self._view.format == "vertical")
        self._set_view(format="vertical" if is_on else "table")
        print(f"Expanded display is {_on_off(is_on)}.")

    def _do_mode(self, call: Invocation) -> None:
        if not call.arguments:
            print(f"The mode is {self._view.format}; others: {', '.join(FORMATS)}.")
            return
        mode = _MODES.get(call.arguments[0].lower(), call.arguments[0].lower())
        if mode not in FORMATS:
            raise InvalidRequest(f"The modes are {', '.join(FORMATS)}.")
        self._set_view(format=mode)

    def _do_timing(self, call: Invocation) -> None:
        self._timing = _switched(call, self._timing)
        print(f"Timing is {_on_off(self._timing)}.")

    def _do_pager(self, call: Invocation) -> None:
        self._set_view(pager=_switched(call, self._view.pager))
        print(f"The pager is {_on_off(self._view.pager)}.")

    def _do_rows(self, call: Invocation) -> None:
        if call.arguments:
            self._set_view(max_rows=int(_number(call.arguments[0], int)))
        print(f"Tables show at most {self._view.max_rows} rows.")

    def _do_null(self, call: Invocation) -> None:
        self._set_view(null=call.arguments[0])

    def _set_view(self, **changes: object) -> None:
        self._view = replace(self._view, **changes)  # type: ignore[arg-type]

    def _require_terminal(self, command: str) -> None:
        if not self._is_interactive:
            raise InvalidRequest(f"{command} needs a terminal.")

    def close_output(self) -> None:
        """Closes the file of ``\\o``, if there is one."""
        output, self._output = self._output, None
        if output is not None:
            output.close()


#: Names of duckdb's modes.
_MODES = {"line": "vertical", "duckbox": "table", "box": "table", "column": "table"}


def _switched(call: Invocation, is_on: bool) -> bool:
    if not call.arguments:
        return not is_on
    word = call.arguments[0].lower()
    if word not in ("on", "off"):
        raise InvalidRequest("Say on or off.")
    return word == "on"


def _on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        number = kind(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a number.") from None
    if not number > 0:
        raise InvalidRequest(f"{text} is not above 0.")
    return number


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as unreadable:
        raise InvalidRequest(f"{path} cannot be read: {unreadable.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is not UTF-8 text.") from None
