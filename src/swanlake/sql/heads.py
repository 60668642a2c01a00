"""What CREATE TABLE, COPY FROM, UPDATE and DELETE say, where they say no more than that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from duckdb import StatementType

from swanlake.sql.quoting import unquoted
from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token, TokenReader, find_keyword

#: The keywords of types and of NOT NULL.
_TYPE_KEYWORDS = frozenset(
    "array bigint bit bool boolean char character date dec decimal double float int integer "
    "interval json list map national not null numeric precision real row smallint struct text time "
    "timestamp union uuid varchar varying with without year month day hour minute second zone "
    "to".split()
)
_VERBS = {StatementType.UPDATE: ("update",), StatementType.DELETE: ("delete", "from")}
_AFTER_THE_NAME = ("set", "where", "using", "returning")


@dataclass(frozen=True)
class CreateHead:
    """What a CREATE TABLE says around its query, or around its columns."""

    #: The parts of the name without their quotes.
    target: tuple[str, ...]
    or_replace: bool
    if_not_exists: bool
    #: The query of a CREATE TABLE AS.
    query: str | None
    #: Names, types and NOT NULL of the columns, in their parentheses.
    columns: str | None = None
    #: False for WITH NO DATA, and without a query.
    with_data: bool = False


@dataclass(frozen=True)
class CopyHead:
    """What a COPY FROM says before its file; places are bytes of the UTF-8 text."""

    target: tuple[str, ...]
    target_start: int
    target_end: int


@dataclass(frozen=True)
class ChangeHead:
    """An UPDATE or DELETE of one table, in the words of its text."""

    #: The parts of the table's name without their quotes.
    target: tuple[str, ...]
    alias: str | None
    #: Columns without their quotes, and their new values; None for a DELETE.
    assignments: tuple[tuple[str, str], ...] | None
    condition: str | None


def create_head(statement: Statement) -> CreateHead | None:
    """A CREATE TABLE with a query, or with plain columns; None for all other statements."""
    if statement.type != StatementType.CREATE:
        return None
    tokens = TokenReader(statement.tokens)
    tokens.skip("create")
    or_replace = tokens.skip("or", "replace")
    if not tokens.skip("table"):
        return None
    if_not_exists = tokens.skip("if", "not", "exists")
    target, _, _ = tokens.take_name()
    if not tokens.skip("as"):
        columns = _plain_columns(statement.text, tokens.rest)
        if columns is None:
            return None
        return CreateHead(target, or_replace, if_not_exists, None, columns)
    rest = [token for token in tokens.rest if token.text != ";"]
    with_data = True
    for ending, has_data in ((("with", "no", "data"), False), (("with", "data"), True)):
        last = rest[-len(ending) :]
        if len(last) == len(ending) and all(map(Token.is_word, last, ending)):
            rest, with_data = rest[: -len(ending)], has_data
            break
    if not rest:
        return None
    query = statement.text.encode()[rest[0].start : rest[-1].end].decode()
    return CreateHead(target, or_replace, if_not_exists, query, with_data=with_data)


def _plain_columns(text: str, tokens: list[Token]) -> str | None:
    """Columns in parentheses, if nothing is said of them but names, types and NOT NULL."""
    tokens = [token for token in tokens if token.text != ";"]
    if not tokens or tokens[0].text != "(" or tokens[-1].text != ")":
        return None
    if any(token.depth == 0 for token in tokens[1:-1]):
        return None
    for before, token in pairwise(tokens):
        if token.depth != 1:
            continue
        if before.text in ("(", ","):  # the name of a column, or LIKE
            if token.is_kw("like"):
                return None
        elif token.is_keyword and token.text.lower() not in _TYPE_KEYWORDS:
            return None
        if token.text == "(" and before.is_kw("unique", "check"):
            return None
    return text.encode()[tokens[0].start : tokens[-1].end].decode()


def copy_head(statement: Statement) -> CopyHead | None:
    """The head of a COPY that fills a table; None for all other statements."""
    if statement.type != StatementType.COPY or not statement.may_write:
        return None
    tokens = TokenReader(statement.tokens)
    tokens.skip("copy")
    target, start, end = tokens.take_name()
    return CopyHead(target, start, end) if target else None


def change_head(statement: Statement) -> ChangeHead | None:
    """The parts of a statement; None if it is no such statement, or has other parts.

    Other parts are RETURNING, FROM, USING and WITH.
    """
    verb = _VERBS.get(statement.type)
    if verb is None:
        return None
    text = statement.body.encode()
    tokens = TokenReader([token for token in statement.tokens if token.start < len(text)])
    if not tokens.skip(*verb):
        return None
    target, _, _ = tokens.take_name()
    alias = _alias(tokens)
    assignments = None
    if tokens.skip("set"):
        assignments = _assignments(text, tokens)
        if assignments is None:
            return None
    if not tokens.rest:
        return ChangeHead(target, alias, assignments, None)
    if not tokens.skip("where"):
        return None
    if find_keyword(tokens.rest, "returning") is not None:
        return None
    condition = text[tokens.rest[0].start :].decode()
    return ChangeHead(target, alias, assignments, condition)


def _alias(tokens: TokenReader) -> str | None:
    if not tokens.skip("as") and (not tokens.rest or tokens.next.is_kw(*_AFTER_THE_NAME)):
        return None
    (alias, *_), _, _ = tokens.take_name()
    return alias


def _assignments(text: bytes, tokens: TokenReader) -> tuple[tuple[str, str], ...] | None:
    """The columns and values after SET; None if there is anything else."""
    assignments: list[tuple[str, str]] = []
    while True:
        value: list[Token] = []
        while tokens.rest and not (tokens.next.depth == 0 and _ends_value(tokens.next, value)):
            value.append(tokens.take())
        if len(value) < 3 or value[0].is_operator or value[1].text != "=":
            return None
        # A token of several signs, as $1, is longer than the lexer says.
        end = tokens.next.start if tokens.rest else len(text)
        assignments.append((unquoted(value[0].text), text[value[2].start : end].decode().rstrip()))
        if not tokens.follows(","):
            return tuple(assignments)
        tokens.take()


def _ends_value(token: Token, before: list[Token]) -> bool:
    if token.is_kw("from"):  # the FROM of IS DISTINCT FROM is part of the value
        return not (before and before[-1].is_kw("distinct"))
    return token.text == "," or token.is_kw("where", "returning")
