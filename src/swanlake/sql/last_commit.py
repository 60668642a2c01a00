"""Finds and replaces the calls that ask for the last snapshot that was committed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from swanlake.sql.quoting import unquoted
from swanlake.sql.tokens import Token, tokenize

_FUNCTION = "ducklake_last_committed_snapshot"
_MACRO = "last_committed_snapshot"
_MENTIONED = re.compile(_MACRO, re.IGNORECASE)


@dataclass(frozen=True)
class LastCommitCall:
    """A call, with the bytes of the text that it takes."""

    #: Where the macro is: catalog and schema, one of them, or neither.
    qualifiers: tuple[str, ...]
    start: int
    end: int


def last_commit_calls(text: str) -> list[LastCommitCall]:
    """The calls in a text, of the function with a literal or of a catalog's macro."""
    if not _MENTIONED.search(text):
        return []
    tokens = tokenize(text)
    calls = []
    for place, token in enumerate(tokens):
        after = [other.text for other in tokens[place + 1 : place + 4]]
        name = "" if token.is_operator else unquoted(token.text).lower()
        qualifiers = _qualifiers(tokens, place)
        first = tokens[place - 2 * len(qualifiers)]
        if name == _MACRO and after[:2] == ["(", ")"]:
            end = tokens[place + 2].end
        elif name == _FUNCTION and after[:1] + after[2:] == ["(", ")"] and after[1][:1] == "'":
            qualifiers = [after[1][1:-1].replace("''", "'"), "main"]
            end = tokens[place + 3].end
        else:
            continue
        calls.append(LastCommitCall(tuple(qualifiers), first.start, end))
    return calls


def replace_calls(text: str, answer: Callable[[LastCommitCall], str | None]) -> str:
    """The text with a query in place of each call for which there is an answer.

    A ``CALL`` becomes a query.
    """
    content = text.encode()
    for call in reversed(last_commit_calls(text)):
        query = answer(call)
        if query is not None:
            before = re.sub(rb"\A\s*CALL\s+\Z", b"FROM ", content[: call.start], flags=re.I)
            content = before + f"({query})".encode() + content[call.end :]
    return content.decode()


def _qualifiers(tokens: list[Token], place: int) -> list[str]:
    """The parts of a dotted name before its last one."""
    parts: list[str] = []
    while place >= 2 and tokens[place - 1].text == "." and not tokens[place - 2].is_operator:
        place -= 2
        parts.insert(0, unquoted(tokens[place].text))
    return parts
