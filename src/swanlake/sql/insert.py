"""The head of an INSERT: its target, its columns, and where its rows begin.

Only as much of the text is looked at as the head is long, so an INSERT of megabytes costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from swanlake.sql.tokens import Token, tokenize

_FIRST_LOOK = 1024
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_PLAIN = re.compile(r"[A-Za-z0-9_$\x80-\U0010ffff]+")
_QUERY_WORDS = ("select", "values", "from", "with", "table", "pivot", "unpivot", "describe", "show")


@dataclass(frozen=True)
class InsertHead:
    """What an INSERT says before its rows; places are bytes of the UTF-8 text."""

    #: The parts of the name without their quotes: ``("swanlake", "main", "t")``.
    target: tuple[str, ...]
    #: Where ``INSERT`` itself begins; before it can stand a WITH.
    start: int
    target_start: int
    target_end: int
    #: ``REPLACE`` or ``IGNORE`` in ``INSERT OR …``.
    alternative: str | None
    columns: tuple[str, ...] | None
    by_name: bool
    #: Where ``VALUES``, ``SELECT``, ``FROM``, … begins.
    body: int


class _Incomplete(Exception):
    """The head does not end in the part of the text that was looked at."""


def insert_head(text: str) -> InsertHead | None:
    """The head of an INSERT that DuckDB could parse; None if the text is none."""
    return _remembered_head(text) if len(text) <= _FIRST_LOOK else _head(text)


def _head(text: str) -> InsertHead | None:
    size = _FIRST_LOOK
    while True:
        is_whole = size >= len(text)
        try:
            return _read(text[:size], is_whole)
        except (_Incomplete, duckdb.Error):
            if is_whole:
                return None
            size *= 16


#: The same short texts come again and again: prepared, or looked at from several sides.
_remembered_head = lru_cache(maxsize=1024)(_head)


def unquoted(name: str) -> str:
    """A name as it is meant: ``"a""b"`` is ``a"b``; a comment behind it is no part of it."""
    if quoted := _QUOTED.match(name):
        return quoted[1].replace('""', '"')
    plain = _PLAIN.match(name)
    return plain[0] if plain else name


class _Reader:
    """The tokens one after the other; the last may be cut off, so it is never trusted."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def next(self) -> Token:
        if self._place + 1 >= len(self._tokens):
            raise _Incomplete
        return self._tokens[self._place]

    def take(self) -> Token:
        token = self.next
        self._place += 1
        return token

    def take_word(self, *words: str) -> bool:
        if not self.next.is_word(*words):
            return False
        self._place += 1
        return True

    def follows(self, text: str) -> bool:
        return self.next.is_operator and self.next.text == text

    def peek(self, beyond: int = 1) -> Token:
        """The token after the next, or one further on."""
        if self._place + beyond + 1 >= len(self._tokens):
            raise _Incomplete
        return self._tokens[self._place + beyond]

    def lists_columns(self) -> bool:
        """True if a parenthesis follows, and in it names of columns rather than a query."""
        if not self.follows("("):
            return False
        token = self.peek()
        if token.is_kw("values"):  # a column can be called so
            return self.peek(2).text != "("
        return not (token.is_kw(*_QUERY_WORDS) or token.is_operator)


def _read(text: str, is_whole: bool) -> InsertHead | None:
    tokens = tokenize(text)
    reader = _Reader([*tokens, _END] if is_whole else tokens)
    while not (reader.next.depth == 0 and reader.next.is_kw("insert")):
        reader.take()
    start = reader.take().start
    alternative = None
    if reader.take_word("or"):
        alternative = reader.take().text.upper()
    if not reader.take_word("into"):
        return None
    first = last = reader.take()
    target = [unquoted(first.text)]
    while reader.follows("."):
        reader.take()
        last = reader.take()
        target.append(unquoted(last.text))
    if reader.take_word("as"):
        reader.take()
    columns: list[str] | None = None
    if reader.lists_columns():
        columns = []
        while not reader.follows(")"):
            token = reader.take()
            if not token.is_operator:
                columns.append(unquoted(token.text))
        reader.take()
    by_name = False
    if reader.next.is_word("by") and reader.peek().is_word("name", "position"):
        reader.take()
        by_name = reader.take().is_word("name")
    return InsertHead(
        tuple(target),
        start,
        first.start,
        last.end,
        alternative,
        None if columns is None else tuple(columns),
        by_name,
        reader.next.start,
    )


_END = Token(1 << 62, "", 0, is_keyword=False, is_operator=False, is_name=False)
