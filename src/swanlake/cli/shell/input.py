"""Splits what was typed, or a script, into statements and commands of the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from swanlake.cli.shell.lexing import pieces

#: No statement begins like this.
_DOT_COMMAND = re.compile(r"\.[A-Za-z]")
_BARE_WORDS = {"exit": "\\q", "quit": "\\q", "help": "\\?"}


@dataclass(frozen=True)
class Statement:
    """SQL to run, without its semicolon, and the line of the script on which it begins."""

    text: str
    line: int = 1
    #: False for the last statement of a text if it has no semicolon.
    has_end: bool = True


@dataclass(frozen=True)
class Command:
    """A command of the shell, such as ``\\d trips``, and the SQL before it that did not end."""

    text: str
    line: int = 1
    buffer: str = ""


def split(text: str) -> Iterator[Statement | Command]:
    """The statements and commands of a text, in order."""
    word = text.strip().lower().removesuffix(";").rstrip()
    if word in _BARE_WORDS:
        yield Command(_BARE_WORDS[word])
        return
    position, line = 0, 1
    while position < len(text):
        item, end = _next_item(text, position, line)
        if item is not None:
            yield item
        line += text.count("\n", position, end)
        position = end


def is_complete(text: str) -> bool:
    """True if Enter runs the text: its last statement has an end, or its last line is a command."""
    last: Statement | Command | None = None
    for item in split(text):
        last = item
    return not isinstance(last, Statement) or last.has_end


def _next_item(text: str, position: int, line: int) -> tuple[Statement | Command | None, int]:
    """The first statement or command from a position on, if there is one, and its end."""
    start: int | None = None  # of the text of a statement, with the comments before it
    has_code = False
    for piece in pieces(text, position):
        if piece.text == "\\" or (not has_code and _DOT_COMMAND.match(text, piece.start)):
            end = text.find("\n", piece.start) + 1 or len(text)
            buffer = text[start : piece.start].rstrip() if has_code else ""
            at = line + text.count("\n", position, piece.start)
            return Command(text[piece.start : end].strip(), at, buffer), end
        if piece.text == ";":
            if start is None or not has_code:
                return None, piece.end
            at = line + text.count("\n", position, start)
            return Statement(text[start : piece.start].rstrip(), at), piece.end
        if start is None and not piece.text.isspace():
            start = piece.start
        has_code = has_code or piece.is_code
    if start is None or not has_code:
        return None, len(text)
    at = line + text.count("\n", position, start)
    return Statement(text[start:].rstrip(), at, has_end=False), len(text)
