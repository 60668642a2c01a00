"""SQL text as DuckDB's own lexer sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import duckdb

from swanlake.sql.quoting import unquoted

_WORD = re.compile(rb"\w+")
_PARAMETER = re.compile(rb"\$(\w+)|\?(\d*)")
# Compared as numbers: comparing enum members would dominate the cost of a token.
_KEYWORD = duckdb.token_type.keyword.value
_OPERATOR = duckdb.token_type.operator.value
_NAME = duckdb.token_type.identifier.value
#: The parameters of longer texts are not cached.
_MAX_CACHED = 1024


class Token(NamedTuple):
    """One token: its first UTF-8 byte, its text, and its depth in parentheses."""

    start: int
    text: str
    depth: int
    is_keyword: bool
    is_operator: bool
    #: True if it may name a column: not a constant, operator or keyword.
    is_name: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text.encode())

    def is_word(self, *words: str) -> bool:
        """True for any of these words as a keyword or an unquoted name, in any letter case."""
        return not self.is_operator and self.text.lower() in words

    def is_kw(self, *words: str) -> bool:
        """True for any of these words if the lexer classifies it as a keyword."""
        return self.is_keyword and self.text.lower() in words


def tokenize(sql: str) -> list[Token]:
    """All tokens of the text, without comments and white space."""
    text = sql.encode()
    raw = duckdb.tokenize(sql)
    tokens: list[Token] = []
    depth = 0
    for position, (start, type_) in enumerate(raw):
        following = raw[position + 1][0] if position + 1 < len(raw) else len(text)
        kind = type_.value
        is_keyword, is_operator = kind == _KEYWORD, kind == _OPERATOR
        if is_keyword:
            word = _WORD.match(text, start)
            end = word.end() if word else following
        elif is_operator:
            end = start + 1
        else:
            end = following
        token = text[start:end].decode(errors="replace").rstrip()
        if is_operator and token in (")", "]", "}"):
            depth -= 1
        tokens.append(Token(start, token, depth, is_keyword, is_operator, kind == _NAME))
        if is_operator and token in ("(", "[", "{"):
            depth += 1
    return tokens


def find_keyword(tokens: list[Token], *words: str) -> int | None:
    """The position of the first of these keywords outside of parentheses."""
    return next((i for i, t in enumerate(tokens) if t.depth == 0 and t.is_kw(*words)), None)


class IncompleteText(Exception):
    """The text was cut off before the token to read."""


class TokenReader:
    """Reads tokens one after the other.

    The last token of a text that was cut off may be incomplete and is not read.
    """

    def __init__(self, tokens: list[Token], *, is_cut_off: bool = False) -> None:
        # The last token is the end of the text, or may be incomplete.
        self._tokens = tokens if is_cut_off else [*tokens, _END, _END]
        self._position = 0

    @property
    def rest(self) -> list[Token]:
        """The unread tokens of a text that was not cut off."""
        return self._tokens[self._position : -2]

    @property
    def next(self) -> Token:
        """The next token, without consuming it; its text is empty at the end."""
        return self.peek(0)

    def peek(self, distance: int = 1) -> Token:
        """The token at a distance; raises IncompleteText beyond the text."""
        if self._position + distance + 1 >= len(self._tokens):
            raise IncompleteText
        return self._tokens[self._position + distance]

    def take(self) -> Token:
        """Consumes and returns the next token."""
        token = self.next
        self._position += 1
        return token

    def skip(self, *words: str) -> bool:
        """Consumes these words if they come next, and tells whether they did."""
        for distance, word in enumerate(words):  # stops before the end of the text
            if not self.peek(distance).is_word(word):
                return False
        self._position += len(words)
        return True

    def follows(self, text: str) -> bool:
        """True if this operator comes next."""
        return self.next.is_operator and self.next.text == text

    def take_name(self) -> tuple[tuple[str, ...], int, int]:
        """Consumes a dotted name; gives its parts without quotes, its first byte and its end."""
        parts: list[str] = []
        start = end = self.next.start
        while self.next.text and not self.next.is_operator:
            token = self.take()
            parts.append(unquoted(token.text))
            end = token.end
            if not self.follows("."):
                break
            self.take()
        return tuple(parts), start, end


#: Follows the last token.
_END = Token(1 << 62, "", 0, is_keyword=False, is_operator=False, is_name=False)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a text: its name, its byte range, and its token position."""

    name: str
    start: int
    end: int
    position: int


def find_parameters(sql: str) -> tuple[Parameter, ...]:
    """Every parameter of the text in order: ``?``, ``$2``, ``$name``.

    Question marks are named by position, as DuckDB does: the first is ``1``.
    """
    if "?" not in sql and "$" not in sql:
        return ()
    return _cached_parameters(sql) if len(sql) <= _MAX_CACHED else tuple(_parameters(sql))


def _parameters(sql: str) -> Iterator[Parameter]:
    text = sql.encode()
    done = positional = 0
    for position, token in enumerate(tokenize(sql)):
        if not token.is_operator or token.start < done or token.text not in ("?", "$"):
            continue
        found = _PARAMETER.match(text, token.start)
        if found is None:
            continue
        name = (found[1] or found[2] or b"").decode()
        if not name:
            positional += 1
            name = str(positional)
        done = found.end()
        yield Parameter(name, token.start, done, position)


@lru_cache(maxsize=256)
def _cached_parameters(sql: str) -> tuple[Parameter, ...]:
    return tuple(_parameters(sql))


def number_parameters(sql: str) -> str:
    """The text with ``$1`` for the first ``?``, and so on."""
    return substitute_parameters(sql, lambda name: f"${name}") if "?" in sql else sql


def substitute_parameters(sql: str, replacement: Callable[[str], str]) -> str:
    """The text with every parameter replaced by ``replacement`` of its name."""
    text = sql.encode()
    pieces: list[bytes] = []
    done = 0
    for parameter in find_parameters(sql):
        pieces += [text[done : parameter.start], replacement(parameter.name).encode()]
        done = parameter.end
    return b"".join([*pieces, text[done:]]).decode()
