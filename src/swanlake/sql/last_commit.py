"""Finds and replaces the calls that ask for the last snapshot that was committed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from swanlake.sql.quoting import unquoted
from swanlake.sql.tokens import Token, tokenize

_FUNCTION = "ducklake_last_committed_snapshot"
_MACRO = "last_committed_snapshot"
#: Between several arguments, or after the name of one: the extension refuses both.
_NOT_ONE_VALUE = (",", "=", ":")
_MENTIONED = re.compile(_MACRO, re.IGNORECASE)


@dataclass(frozen=True)
class LastCommitCall:
    """A call, with the bytes of the text that it takes."""

    #: Where the macro is: catalog and schema, one of them, or neither.
    qualifiers: tuple[str, ...]
    start: int
    end: int
    #: The argument that gives the name of the catalog, if it is no literal.
    argument: str | None = None


def last_commit_calls(text: str) -> list[LastCommitCall]:
    """The calls in a text, of the function or of a catalog's macro."""
    if not _MENTIONED.search(text):
        return []
    tokens = tokenize(text)
    calls = []
    for place, token in enumerate(tokens):
        name = "" if token.is_operator else unquoted(token.text).lower()
        if name not in (_FUNCTION, _MACRO) or place + 1 == len(tokens):
            continue
        qualifiers = _qualifiers(tokens, place)
        start = tokens[place - 2 * len(qualifiers)].start
        inside, closing = _arguments(tokens, place + 1)
        if closing is None or bool(inside) is not (name == _FUNCTION):
            continue
        if any(t.depth == closing.depth + 1 and t.text in _NOT_ONE_VALUE for t in inside):
            continue
        argument = None
        if len(inside) == 1 and inside[0].text[:1] == "'":
            qualifiers = [inside[0].text[1:-1].replace("''", "'"), "main"]
        elif inside:
            argument = text.encode()[inside[0].start : closing.start].decode()
        calls.append(LastCommitCall(tuple(qualifiers), start, closing.end, argument))
    return calls


def _arguments(tokens: list[Token], opening: int) -> tuple[list[Token], Token | None]:
    """The tokens in parentheses and the closing one; None if there are no parentheses."""
    depth = tokens[opening].depth
    if tokens[opening].text != "(":
        return [], None
    inside = list(takewhile(lambda t: t.depth > depth or t.text != ")", tokens[opening + 1 :]))
    after = opening + 1 + len(inside)
    return inside, tokens[after] if after < len(tokens) else None


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
