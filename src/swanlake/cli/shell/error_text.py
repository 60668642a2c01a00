"""The one form in which the shell and ``swanlake sql`` print an error."""

from __future__ import annotations

import re
from collections.abc import Iterator

from swanlake.cli.table_layout import PLAIN, Style
from swanlake.errors import SwanLakeError

_KIND = re.compile(r"([A-Z][A-Za-z ]* Error): ")
_PLACE = re.compile(r"^LINE (\d+): ", re.MULTILINE)


def error_lines(
    error: SwanLakeError, *, where: str = "", first_line: int = 1, style: Style = PLAIN
) -> Iterator[str]:
    """``IDENTIFIER: message``, then the line of the statement with a caret below the place.

    ``first_line`` is the line of the script on which the statement begins.
    """
    before, mark, place = _split_place(_without_kind(error))
    first, *others = before.rstrip().split("\n")
    begin = f"{where}: " if where else ""
    yield f"{begin}{style.heading}{error.identifier}{style.reset}: {first}"
    yield from (line for line in others if line.strip())
    if mark:
        number = int(mark) + first_line - 1
        yield from _numbered(place, f"LINE {mark}: ", f"LINE {number}: ", style)


def _without_kind(error: SwanLakeError) -> str:
    """The message without DuckDB's name of the error, which the identifier repeats."""
    message = str(error)
    kind = _KIND.match(message)
    if kind and kind[1].upper().replace(" ", "_") == error.identifier:
        return message[kind.end() :]
    return message


def _split_place(message: str) -> tuple[str, str, str]:
    """The sentence, the number of the marked line if there is one, and its text with the caret."""
    places = list(_PLACE.finditer(message))
    if not places:
        return message, "", ""
    place = places[-1]
    return message[: place.start()], place[1], message[place.end() :]


def _numbered(place: str, written: str, label: str, style: Style) -> Iterator[str]:
    line, *carets = place.rstrip().split("\n")
    yield f"{style.faint}{label}{style.reset}{line}"
    for caret in carets:
        if caret.strip() == "^":
            space = len(caret) - 1 - len(written) + len(label)
            yield " " * space + f"{style.heading}^{style.reset}"
        elif caret.strip():
            yield caret
