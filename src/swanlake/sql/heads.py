"""The heads of CREATE TABLE AS and COPY FROM: their targets, and where their rows begin."""

from __future__ import annotations

from dataclasses import dataclass

from duckdb import StatementType

from swanlake.sql.insert import unquoted
from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token


@dataclass(frozen=True)
class CreateHead:
    """What a CREATE TABLE AS says around its query."""

    #: The parts of the name without their quotes.
    target: tuple[str, ...]
    or_replace: bool
    if_not_exists: bool
    query: str
    #: False for WITH NO DATA.
    with_data: bool


@dataclass(frozen=True)
class CopyHead:
    """What a COPY FROM says before its file; places are bytes of the UTF-8 text."""

    target: tuple[str, ...]
    target_start: int
    target_end: int


def create_head(statement: Statement) -> CreateHead | None:
    """The head of a CREATE TABLE AS that says nothing more; None for all other statements."""
    if statement.type != StatementType.CREATE:
        return None
    tokens = _Tokens(statement.tokens)
    tokens.take("create")
    or_replace = tokens.take("or", "replace")
    if not tokens.take("table"):
        return None
    if_not_exists = tokens.take("if", "not", "exists")
    target, _, _ = tokens.name()
    if not tokens.take("as"):
        return None
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
    return CreateHead(target, or_replace, if_not_exists, query, with_data)


def copy_head(statement: Statement) -> CopyHead | None:
    """The head of a COPY that fills a table; None for all other statements."""
    if statement.type != StatementType.COPY or not statement.may_write:
        return None
    tokens = _Tokens(statement.tokens)
    tokens.take("copy")
    target, start, end = tokens.name()
    return CopyHead(target, start, end) if target else None


class _Tokens:
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
