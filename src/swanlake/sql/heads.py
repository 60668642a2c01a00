"""What CREATE TABLE, CREATE SCHEMA, DROP and COPY FROM say, where they say no more than that."""

from __future__ import annotations

from dataclasses import dataclass

from duckdb import StatementType

from swanlake.sql.insert import unquoted
from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token

#: Words after which a column, or the table, has more than a name, a type and NOT NULL.
_MORE_THAN_COLUMNS = (
    "default primary unique check references foreign constraint generated collate using as like"
).split()


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


def create_head(statement: Statement) -> CreateHead | None:
    """A CREATE TABLE with a query, or with plain columns; None for all other statements."""
    if statement.type != StatementType.CREATE:
        return None
    tokens = Tokens(statement.tokens)
    tokens.take("create")
    or_replace = tokens.take("or", "replace")
    if not tokens.take("table"):
        return None
    if_not_exists = tokens.take("if", "not", "exists")
    target, _, _ = tokens.name()
    if not tokens.take("as"):
        columns = _plain_columns(statement.text, tokens.rest)
        if columns is None:
            return None
        return CreateHead(target, or_replace, if_not_exists, None, columns)
    rest = [token for token in tokens.rest if token.text != ";"]
    with_data = True
    for ending, has_data in ((("with", "no", "data"), False), (("with", "data"), True)):
        last = rest[-len(ending) :]
        if len(last) == len(ending) and all(map(_is_word, last, ending)):
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
    if any(token.depth == 1 and token.is_word(*_MORE_THAN_COLUMNS) for token in tokens):
        return None
    return text.encode()[tokens[0].start : tokens[-1].end].decode()


def copy_head(statement: Statement) -> CopyHead | None:
    """The head of a COPY that fills a table; None for all other statements."""
    if statement.type != StatementType.COPY or not statement.may_write:
        return None
    tokens = Tokens(statement.tokens)
    tokens.take("copy")
    target, start, end = tokens.name()
    return CopyHead(target, start, end) if target else None


class Tokens:
    """Tokens that are taken one after the other."""

    def __init__(self, tokens: list[Token]) -> None:
        self.rest = tokens

    def take(self, *words: str) -> bool:
        """Takes these words if they come next."""
        if len(self.rest) < len(words) or not all(map(_is_word, self.rest, words)):
            return False
        self.rest = self.rest[len(words) :]
        return True

    def name(self) -> tuple[tuple[str, ...], int, int]:
        """Takes a name with its dots: its parts, and where it begins and ends."""
        parts: list[str] = []
        start = end = self.rest[0].start if self.rest else 0
        while self.rest and not self.rest[0].is_operator:
            parts.append(unquoted(self.rest[0].text))
            end = self.rest[0].end
            self.rest = self.rest[1:]
            if not (self.rest and self.rest[0].text == "."):
                break
            self.rest = self.rest[1:]
        return tuple(parts), start, end


def _is_word(token: Token, word: str) -> bool:
    return token.is_word(word)
