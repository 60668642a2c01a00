"""Makes a text safe for DuckDB's lexer, in linear time.

The lexer holds the interpreter's lock. It takes quadratic time for nested or adjacent comments and
cubic time for a long run of plus signs: ten kilobytes would stop every session for minutes.
"""

from __future__ import annotations

import re

from swanlake.errors import Code, InvalidRequest

_OPEN, _CLOSE = "/*", "*/"
_OPERATOR = r"[-+*/<>=~!@\#%^&|`?]"
#: DuckDB's own operators have at most four characters.
_MAX_OPERATOR = 32
#: Texts without a match are safe as they are.
_SUSPECT = re.compile(rf"/\*|{_OPERATOR}{{{_MAX_OPERATOR + 1}}}")
#: Everything in which a comment or an operator cannot begin, and both of them. No quantifier can
#: backtrack, so the scan is linear.
_TOKEN = re.compile(
    rf"""
      [eE]'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'?      # with escapes
    | '[^']*+(?:''[^']*+)*+'?
    | "[^"]*+(?:""[^"]*+)*+"?
    | \$(?P<tag>(?:[^\W\d]\w*+)?)\$.*?(?:\$(?P=tag)\$|\Z)
    | [^\W\d][\w$]*+                               # a name: its dollar signs quote nothing
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
    InvalidRequest for an operator that DuckDB does not have.
    """
    if _SUSPECT.search(sql) is None:
        return sql
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
