"""Makes a text safe for DuckDB's lexer, in linear time.

The lexer and the parser hold the interpreter's lock. They take quadratic time for nested or
adjacent comments and for chains of AND or OR, and cubic time for a long run of plus signs: ten
kilobytes would stop every session for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from swanlake.errors import Code, InvalidRequest

_OPEN, _CLOSE = "/*", "*/"
_OPERATOR = r"[-+*/<>=~!@\#%^&|`?]"
#: DuckDB's own operators have at most four characters.
_MAX_OPERATOR = 32
#: Texts without a match are safe as they are.
_SUSPECT = re.compile(rf"/\*|{_OPERATOR}{{{_MAX_OPERATOR + 1}}}")
#: A chain of this length takes a tenth of a second; one of ten times the length takes ten.
_MAX_CONNECTIVES = 10_000
_CONNECTIVE = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
#: The shortest chain of that length: ``1or`` and a space for each.
_LONG_CHAIN_CHARACTERS = 4 * _MAX_CONNECTIVES
#: Everything in which a comment or an operator cannot begin, and both of them. No quantifier can
#: backtrack, so the scan is linear.
_TOKEN = re.compile(
    rf"""
      [eE]'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'?      # with escapes
    | '[^']*+(?:''[^']*+)*+'?
    | "[^"]*+(?:""[^"]*+)*+"?
    | \$(?P<tag>(?:[^\W\d]\w*+)?)\$.*?(?:\$(?P=tag)\$|\Z)
    | (?P<name>[^\W\d][\w$]*+)                    # its dollar signs quote nothing
    | --[^\n\r]*+
    | (?P<comment>/\*)
    | (?P<operator>(?:(?!--|/\*){_OPERATOR})++)
    """,
    re.DOTALL | re.VERBOSE,
)
_MARK = re.compile(r"/\*|\*/")
_VISIBLE = re.compile(r"[^\n\r]")


def safe_text(sql: str) -> str:
    """The text with spaces in place of some comments: every token stays where it is.

    A comment without an end is cut off after its opening, and DuckDB reports it. Raises
    InvalidRequest for too many ANDs and ORs, and for an operator that DuckDB does not have.
    """
    safe = sql if _SUSPECT.search(sql) is None else _with_safe_comments(sql)
    _check_connectives(safe)
    return safe


def check_size(sql: str, max_bytes: int) -> None:
    """Raises InvalidRequest for a text that is longer than the limit."""
    size = len(sql) if len(sql) > max_bytes or sql.isascii() else len(sql.encode())
    if size > max_bytes:
        raise InvalidRequest(
            f"The statement is longer than {max_bytes} bytes, the limit max_statement_bytes. "
            "Send many rows as parameters or by ingest instead of as text.",
            identifier="STATEMENT_TOO_LARGE",
        )


def _check_connectives(sql: str) -> None:
    if len(sql) < _LONG_CHAIN_CHARACTERS or not _has_more(_CONNECTIVE.finditer(sql)):
        return
    # Strings contain such words too.
    names = (token["name"] for token in _TOKEN.finditer(sql))
    if _has_more(name for name in names if name and _CONNECTIVE.fullmatch(name)):
        raise InvalidRequest(
            f"The statement has more than {_MAX_CONNECTIVES} ANDs and ORs. Use IN, or a join with "
            "a table of the values.",
            identifier="STATEMENT_TOO_LARGE",
        )


def _has_more(connectives: Iterator[object]) -> bool:
    return next(islice(connectives, _MAX_CONNECTIVES, None), None) is not None


def _with_safe_comments(sql: str) -> str:
    parts: list[str] = []
    done = 0
    token = _TOKEN.search(sql)
    while token is not None:
        end = token.end()
        if token["comment"] is not None:
            closed = _end_of_comment(sql, end)
            if closed is None:
                parts.append(sql[done:end])
                return "".join(parts)
            parts += sql[done : token.start()], _safe_comment(sql[token.start() : closed])
            done = end = closed
        elif token["operator"] is not None and end - token.start() > _MAX_OPERATOR:
            raise InvalidRequest(
                f"There is no operator of {end - token.start()} characters.",
                identifier="PARSER_ERROR",
                code=Code.INVALID_ARGUMENT,
            )
        token = _TOKEN.search(sql, end)
    parts.append(sql[done:])
    return "".join(parts)


def _end_of_comment(sql: str, start: int) -> int | None:
    depth = 1
    for mark in _MARK.finditer(sql, start):
        depth += 1 if mark[0] == _OPEN else -1
        if depth == 0:
            return mark.end()
    return None


def _safe_comment(comment: str) -> str:
    inside = comment[len(_OPEN) : -len(_CLOSE)]
    if not inside:
        return " " * len(comment)
    # The lexer reads on through what may be an operator, and does so again for the next comment.
    if _OPEN in inside or re.match(_OPERATOR, inside):
        return _OPEN + _VISIBLE.sub(" ", inside) + _CLOSE
    return comment
