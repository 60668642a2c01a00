"""Finds the calls of some table functions in a text, and puts tables in their places."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from swanlake.sql.quoting import identifier
from swanlake.sql.statement import Call, read_call
from swanlake.sql.tokens import Token, tokenize

#: The words that begin the parts of a query; tables stand in that of FROM.
_CLAUSES = (
    "select from where by having limit offset qualify returning set values window sample using on"
).split()
_BEFORE_TABLE = ("from", "join", "lateral", "using")


@dataclass(frozen=True)
class FunctionCall:
    """A call of a table function, and its first byte."""

    start: int
    call: Call


def find_calls(sql: str, names: Collection[str]) -> list[FunctionCall]:
    """The calls of these functions where a query names its tables, in their order."""
    lowered = sql.lower()
    if not any(name in lowered for name in names):
        return []
    text, tokens = sql.encode(), tokenize(sql)
    found: list[FunctionCall] = []
    for place, token in enumerate(tokens):
        if token.text.strip('"').lower() in names and _is_table(tokens[:place], token.depth):
            call = read_call(text, tokens[place:])
            if call is not None:
                found.append(FunctionCall(token.start, call))
    return found


def with_tables(
    sql: str,
    calls: Collection[FunctionCall],
    table: Callable[[int], str],
    is_sql: Callable[[str], bool],
) -> str:
    """The text with ``table`` of its number in place of each call.

    A call without an alias gets the function's name as alias, so that column references stay valid.
    The parser decides whether it has one: two aliases in a row are not SQL.
    """
    content = sql.encode()
    for number, call in reversed(list(enumerate(calls))):
        before, after = content[: call.start], content[call.call.end :]
        named = f"{table(number)} AS {identifier(call.call.name)}".encode()
        candidate = before + named + after
        if not is_sql(candidate.decode()):
            candidate = before + table(number).encode() + after
        content = candidate
    return content.decode()


def _is_table(before: list[Token], depth: int) -> bool:
    """True if a table may follow these tokens."""
    while before and before[-1].text == "(":
        depth = before[-1].depth
        before = before[:-1]
    if not before:
        return False
    if before[-1].text != ",":
        return before[-1].is_word(*_BEFORE_TABLE)
    clause = next(
        (token for token in reversed(before) if token.depth == depth and token.is_kw(*_CLAUSES)),
        None,
    )
    return clause is not None and clause.is_word("from", "using", "on")
