"""The head of an INSERT: its target, its columns, and where its rows begin.

Only as much of the text is looked at as the head is long, so an INSERT of megabytes costs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from swanlake.sql.quoting import unquoted
from swanlake.sql.tokens import IncompleteText, TokenReader, tokenize

_FIRST_LOOK = 1024
#: The head of most INSERTs: no quotes, comments or parameters before the first row.
_UP_TO_ROWS = re.compile(r"[^'\"$?/-]{0,1000}?\bVALUES\s*\(", re.IGNORECASE)
#: The keywords with which a query begins.
QUERY_WORDS = ("select", "values", "from", "with", "table", "pivot", "unpivot", "describe", "show")


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
    #: True for ``VALUES …`` and ``DEFAULT VALUES``.
    is_values: bool


def insert_head(text: str) -> InsertHead | None:
    """The head of an INSERT that DuckDB could parse; None if the text is none."""
    up_to_rows = _UP_TO_ROWS.match(text)
    head = None if up_to_rows is None else _head_before_rows(up_to_rows[0])
    if head is not None:
        return head
    return _remembered_head(text) if len(text) <= _FIRST_LOOK else _head(text)


@lru_cache(maxsize=1024)
def _head_before_rows(start: str) -> InsertHead | None:
    """The head of a text that begins so; None if the rest of the text matters.

    Literals make each text a new one, and its head is the same.
    """
    try:
        return _read(start, is_whole=False)
    except (IncompleteText, duckdb.Error):
        return None


def _head(text: str) -> InsertHead | None:
    size = _FIRST_LOOK
    while True:
        is_whole = size >= len(text)
        try:
            return _read(text[:size], is_whole)
        except (IncompleteText, duckdb.Error):
            if is_whole:
                return None
            size *= 16


#: The same short texts come again and again: prepared, or looked at from several sides.
_remembered_head = lru_cache(maxsize=1024)(_head)


def _lists_columns(reader: TokenReader) -> bool:
    """True if a parenthesis follows, with names of columns rather than a query in it."""
    if not reader.follows("("):
        return False
    token = reader.peek()
    if token.is_kw("values"):  # a column can have this name
        return reader.peek(2).text != "("
    return not (token.is_kw(*QUERY_WORDS) or token.is_operator)


def _read(text: str, is_whole: bool) -> InsertHead | None:
    reader = TokenReader(tokenize(text), is_cut_off=not is_whole)
    while not (reader.next.depth == 0 and reader.next.is_kw("insert")):
        reader.take()
    start = reader.take().start
    alternative = None
    if reader.skip("or"):
        alternative = reader.take().text.upper()
    if not reader.skip("into"):
        return None
    target, target_start, target_end = reader.take_name()
    if not target:
        return None
    if reader.skip("as"):
        reader.take()
    columns: list[str] | None = None
    if _lists_columns(reader):
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
        target,
        start,
        target_start,
        target_end,
        alternative,
        None if columns is None else tuple(columns),
        by_name,
        reader.next.start,
        reader.next.is_kw("values", "default"),
    )
