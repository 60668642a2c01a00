"""SQL text in pieces, also while it is being typed: for colours, completion and splitting.

DuckDB's own lexer drops an unfinished string with all that follows it, and gives no comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache


class Kind(Enum):
    """What a piece of text is."""

    KEYWORD = "keyword"
    NAME = "name"
    QUOTED_NAME = "quoted name"
    STRING = "string"
    NUMBER = "number"
    COMMENT = "comment"
    OPERATOR = "operator"
    SPACE = "space"


@dataclass(frozen=True)
class Piece:
    """A piece of a text, in characters; ``is_open`` if its closing mark is missing."""

    kind: Kind
    start: int
    text: str
    is_open: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def is_code(self) -> bool:
        """False for white space and comments."""
        return self.kind not in (Kind.SPACE, Kind.COMMENT)


# No quantifier can backtrack, so reading is linear.
_PIECE = re.compile(
    r"""
      (?P<space>\s++)
    | (?P<line_comment>--[^\n\r]*+)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+(?P<escaped_end>')?)
    | (?P<string>'[^']*+(?:''[^']*+)*+(?P<string_end>')?)
    | (?P<quoted>"[^"]*+(?:""[^"]*+)*+(?P<quoted_end>")?)
    | (?P<dollar>\$(?P<tag>(?:[^\W\d]\w*+)?)\$)
    | (?P<number>\d[\d_]*+(?:\.\d*+)?(?:[eE][-+]?\d++)?)
    | (?P<word>[^\W\d][\w$]*+)
    | (?P<operator>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_MARK = re.compile(r"/\*|\*/")


def pieces(text: str, position: int = 0) -> Iterator[Piece]:
    """All pieces of a text from a position on, without gaps."""
    while position < len(text):
        piece = _piece_at(text, position)
        yield piece
        position = piece.end


def _piece_at(text: str, start: int) -> Piece:
    match = _PIECE.match(text, start)
    assert match is not None  # some operator matches any character
    word = match[0]
    match match.lastgroup:
        case "space":
            return Piece(Kind.SPACE, start, word)
        case "line_comment":
            return Piece(Kind.COMMENT, start, word)
        case "comment":
            end = _end_of_comment(text, match.end())
            return Piece(Kind.COMMENT, start, text[start:end], is_open=end is None)
        case "dollar":
            found = text.find(word, match.end())
            end = None if found < 0 else found + len(word)
            return Piece(Kind.STRING, start, text[start:end], is_open=end is None)
        case "number":
            return Piece(Kind.NUMBER, start, word)
        case "word":
            kind = Kind.KEYWORD if word.lower() in keywords() else Kind.NAME
            return Piece(kind, start, word)
        case "operator":
            return Piece(Kind.OPERATOR, start, word)
    is_open = not (match["escaped_end"] or match["string_end"] or match["quoted_end"])
    kind = Kind.QUOTED_NAME if word.startswith('"') else Kind.STRING
    return Piece(kind, start, word, is_open)


def _end_of_comment(text: str, start: int) -> int | None:
    """Comments nest."""
    depth = 1
    for mark in _MARK.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return None


@cache
def keywords() -> frozenset[str]:
    """DuckDB's keywords, in lower case."""
    return frozenset(word for word, _ in _keyword_rows())


@cache
def reserved_keywords() -> frozenset[str]:
    """The keywords that are names only in quotes."""
    return frozenset(word for word, category in _keyword_rows() if category == "reserved")


@cache
def _keyword_rows() -> list[tuple[str, str]]:
    import duckdb

    with duckdb.connect() as connection:
        query = "SELECT keyword_name, keyword_category FROM duckdb_keywords()"
        return connection.execute(query).fetchall()
