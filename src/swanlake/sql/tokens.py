"""SQL text as DuckDB's own lexer sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

_WORD = re.compile(rb"\w+")
_PARAMETER = re.compile(rb"\$(\w+)|\?(\d*)")
# Numbers: to compare the members themselves takes longer than everything else about a token.
_KEYWORD = duckdb.token_type.keyword.value
_OPERATOR = duckdb.token_type.operator.value
_NAME = duckdb.token_type.identifier.value


class Token(NamedTuple):
    """One token: its first UTF-8 byte, its text, and how deep in parentheses it stands."""

    start: int
    text: str
    depth: int
    is_keyword: bool
    is_operator: bool
    #: True for what may be the name of a column: not a constant, an operator or a keyword.
    is_name: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text.encode())

    def is_word(self, *words: str) -> bool:
        """True for any of these words, as a keyword or as a plain name, in any case."""
        return not self.is_operator and self.text.lower() in words

    def is_kw(self, *words: str) -> bool:
        """True for any of these words, but only where the lexer calls it a keyword."""
        return self.is_keyword and self.text.lower() in words


def tokenize(sql: str) -> list[Token]:
    """All tokens of the text; comments and white space fall away."""
    return list(_tokens(sql.encode()))


def _tokens(text: bytes) -> Iterator[Token]:
    raw = duckdb.tokenize(text.decode())
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
        yield Token(start, token, depth, is_keyword, is_operator, is_name=kind == _NAME)
        if is_operator and token in ("(", "[", "{"):
            depth += 1


@dataclass(frozen=True)
class Parameter:
    """A parameter where it stands: its name, its bytes, and its place among the tokens."""

    name: str
    start: int
    end: int
    position: int


def find_parameters(sql: str) -> Iterator[Parameter]:
    """Every parameter of the text in order: ``?``, ``$2``, ``$name``.

    Question marks are named by position, as DuckDB does: the first is ``1``.
    """
    text = sql.encode()
    done = positional = 0
    for position, token in enumerate(_tokens(text)):
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


def substitute_parameters(sql: str, replacement: Callable[[str], str]) -> str:
    """The text with every parameter replaced by what ``replacement`` gives for its name."""
    text = sql.encode()
    pieces: list[bytes] = []
    done = 0
    for parameter in find_parameters(sql):
        pieces += [text[done : parameter.start], replacement(parameter.name).encode()]
        done = parameter.end
    return b"".join([*pieces, text[done:]]).decode()
