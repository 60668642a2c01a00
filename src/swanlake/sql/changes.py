"""What an UPDATE or a DELETE says, where it says no more than which rows and what they become."""

from __future__ import annotations

from dataclasses import dataclass

from duckdb import StatementType

from swanlake.sql.heads import Tokens
from swanlake.sql.insert import unquoted
from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token

#: In the place of a value these mean something else to a SELECT, or nothing to an UPDATE.
_NOT_VALUES = ("over", "unnest", "unlist", "columns", "default")
_VERBS = {StatementType.UPDATE: ("update",), StatementType.DELETE: ("delete", "from")}
_AFTER_THE_NAME = ("set", "where", "using", "returning")
_ENDS_OF_VALUES = (")", "]", "}")


@dataclass(frozen=True)
class ChangeHead:
    """The parts of an UPDATE or DELETE of one table, as they are written."""

    #: The parts of the table's name without their quotes.
    target: tuple[str, ...]
    #: What the statement calls the table, if not by its name.
    alias: str | None
    #: Columns without their quotes and what they become; None for a DELETE.
    assignments: tuple[tuple[str, str], ...] | None
    condition: str | None


def change_head(statement: Statement) -> ChangeHead | None:
    """The parts of a statement; None if it is no such statement, or has others.

    ``RETURNING``, other tables beside the one that changes, and a ``WITH`` are others.
    """
    verb = _VERBS.get(statement.type)
    if verb is None:
        return None
    text = statement.body.encode()
    tokens = Tokens([token for token in statement.tokens if token.start < len(text)])
    if not tokens.take(*verb):
        return None
    target, _, _ = tokens.name()
    alias = _alias(tokens)
    assignments = None
    if tokens.take("set"):
        assignments = _assignments(text, tokens)
        if assignments is None:
            return None
    if not tokens.rest:
        return ChangeHead(target, alias, assignments, None)
    if not tokens.take("where"):
        return None
    if any(token.depth == 0 and token.is_kw("returning") for token in tokens.rest):
        return None
    condition = text[tokens.rest[0].start :].decode()
    return ChangeHead(target, alias, assignments, condition)


def _alias(tokens: Tokens) -> str | None:
    if not tokens.take("as") and (not tokens.rest or tokens.rest[0].is_kw(*_AFTER_THE_NAME)):
        return None
    (alias, *_), _, _ = tokens.name()
    return alias


def _assignments(text: bytes, tokens: Tokens) -> tuple[tuple[str, str], ...] | None:
    """What stands between SET and WHERE; None if it is more than values for columns."""
    found: list[tuple[str, str]] = []
    while True:
        value: list[Token] = []
        rest = tokens.rest
        while rest and not (rest[0].depth == 0 and _ends_value(rest[0], value)):
            value.append(rest[0])
            rest = rest[1:]
        tokens.rest = rest
        if len(value) < 3 or value[0].is_operator or value[1].text != "=" or _is_more(value[2:]):
            return None
        # A token of several signs, as $1, is longer than the lexer says.
        end = rest[0].start if rest else len(text)
        found.append((unquoted(value[0].text), text[value[2].start : end].decode().rstrip()))
        if not (rest and rest[0].text == ","):
            return tuple(found)
        tokens.rest = rest[1:]


def _ends_value(token: Token, before: list[Token]) -> bool:
    if token.is_kw("from"):  # IS DISTINCT FROM is not the end
        return not (before and before[-1].is_kw("distinct"))
    return token.text == "," or token.is_kw("where", "returning")


def _is_more(value: list[Token]) -> bool:
    for place, token in enumerate(value):
        if token.is_word(*_NOT_VALUES):
            return True
        multiplies = place > 0 and (
            not value[place - 1].is_operator or value[place - 1].text in _ENDS_OF_VALUES
        )
        if token.text == "*" and token.is_operator and not multiplies:
            return True
    return False
