"""The commands of the shell: their names in psql's and duckdb's style, arguments and help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from swanlake.errors import InvalidRequest


@dataclass(frozen=True)
class MetaCommand:
    """A command of the shell. The shell runs its method ``_do_<name>``."""

    name: str
    #: As they are typed; the first is the one that help shows.
    spellings: tuple[str, ...]
    arguments: str
    help: str
    #: Arguments that must be given, and that may be given.
    required: int = 0
    optional: int = 0


@dataclass(frozen=True)
class Invocation:
    """A command with its arguments; ``is_verbose`` for a ``+`` after its name."""

    command: MetaCommand
    arguments: tuple[str, ...]
    is_verbose: bool = False


_ARGUMENT = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")


class UnknownCommand(InvalidRequest):
    """The shell has no such command."""


_GROUPS: dict[str, tuple[MetaCommand, ...]] = {
    "General": (
        MetaCommand("help", ("\\?", ".help", "\\h"), "", "show this list"),
        MetaCommand("quit", ("\\q", ".quit", ".exit", "\\quit"), "",
                    "quit; so do exit, quit and Ctrl-D"),
        MetaCommand("connection", ("\\conninfo",), "", "show the server and the session"),
        MetaCommand("catalog", ("\\c", "\\use"), "[CATALOG]",
                    "use another catalog, or the first again", 0, 1),
    ),
    "Objects": (
        MetaCommand("describe", ("\\d",), "[NAME]", "list tables and views, or describe one", 0, 1),
        MetaCommand("tables", ("\\dt", ".tables"), "[PATTERN]", "list tables", 0, 1),
        MetaCommand("views", ("\\dv",), "[PATTERN]", "list views", 0, 1),
        MetaCommand("schemas", ("\\dn",), "[PATTERN]", "list schemas", 0, 1),
        MetaCommand("catalogs", ("\\l", ".databases"), "", "list catalogs"),
        MetaCommand("functions", ("\\df",), "[PATTERN]", "list functions", 0, 1),
        MetaCommand("users", ("\\du",), "", "tell how users and tokens are listed"),
        MetaCommand("schema", (".schema",), "[NAME]", "show the SQL that creates tables", 0, 1),
    ),
    "Input and output": (
        MetaCommand("edit", ("\\e", ".edit"), "", "edit the statement in $EDITOR, then run it"),
        MetaCommand("print", ("\\p",), "", "show the last statement"),
        MetaCommand("again", ("\\g",), "", "run the statement, or the last one again"),
        MetaCommand("vertical_once", ("\\gx", "\\G"), "", "the same, with a line for each column"),
        MetaCommand("watch", ("\\watch",), "[S] [N]", "run it every S seconds, N times", 0, 2),
        MetaCommand("read", ("\\i", ".read"), "FILE", "run the statements of a file", 1),
        MetaCommand("output", ("\\o", ".output"), "[FILE]",
                    "send results to a file, or back", 0, 1),
    ),
    "Display": (
        MetaCommand("expanded", ("\\x",), "[on|off]", "print a line for each column", 0, 1),
        MetaCommand("mode", (".mode", "\\mode"), "[MODE]",
                    "print as table, vertical, csv, json or arrow", 0, 1),
        MetaCommand("timing", ("\\timing", ".timer"), "[on|off]", "print how long it took", 0, 1),
        MetaCommand("pager", ("\\pager",), "[on|off]", "show long results in $PAGER", 0, 1),
        MetaCommand("rows", (".maxrows",), "[N]", "print at most N rows of a table", 0, 1),
        MetaCommand("null", (".nullvalue",), "TEXT", "print TEXT for NULL", 1),
    ),
}  # fmt: skip
COMMANDS = {command.name: command for group in _GROUPS.values() for command in group}
SPELLINGS = {text: command for command in COMMANDS.values() for text in command.spellings}


def parse_command(text: str) -> Invocation:
    """The command of a line such as ``\\d trips``; raises UnknownCommand with the nearest name."""
    spelled, _, rest = text.rstrip(";").partition(" ")
    command, is_verbose = SPELLINGS.get(spelled), False
    if command is None and spelled.endswith("+"):
        command, is_verbose = SPELLINGS.get(spelled[:-1]), True
    if command is None:
        raise UnknownCommand(_unknown(spelled))
    arguments = _arguments(rest)
    if not command.required <= len(arguments) <= command.required + command.optional:
        raise InvalidRequest(f"Usage: {_usage(command, spelled)}")
    return Invocation(command, arguments, is_verbose)


def _arguments(text: str) -> tuple[str, ...]:
    """Words; quotes keep spaces together, and double quotes stay, as they belong to SQL names."""
    words = _ARGUMENT.findall(text)
    return tuple(word[1:-1] if word[:1] == word[-1:] == "'" != word else word for word in words)


def _unknown(spelled: str) -> str:
    nearest = get_close_matches(spelled, SPELLINGS, n=1, cutoff=0.0)
    # Of names this short, every other one is similar: prefer one that begins in the same way.
    alike = [name for name in SPELLINGS if len(spelled) > 1 and name.startswith(spelled[:2])]
    name = (get_close_matches(spelled, alike, n=1, cutoff=0.0) or nearest)[0]
    return f"There is no command {spelled}; the nearest is {name}. \\? lists all."


def _usage(command: MetaCommand, spelled: str) -> str:
    return f"{spelled} {command.arguments}".rstrip()


def help_lines() -> Iterator[str]:
    """The text of ``\\?``."""
    yield "End a statement with ; and press Enter. Tab completes, Up recalls, Ctrl-C cancels."
    for title, commands in _GROUPS.items():
        yield ""
        yield title
        for command in commands:
            names = " ".join(command.spellings)
            yield f"  {names:<24} {command.arguments:<10} {command.help}"
