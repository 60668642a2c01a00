"""Texts without their literals: to show statements, and to group those that differ in values only.

DuckDB's lexer finds the literals. What it cannot read is left out, so no value gets through.
"""

from __future__ import annotations

import re

from swanlake.errors import InvalidRequest
from swanlake.sql.safe_text import safe_text
from swanlake.sql.tokens import Token, tokenize

#: Stands for a literal, and for a parameter.
_VALUE = "?"
#: Stands for a text that DuckDB's lexer cannot read.
UNREADABLE = "(unreadable)"
_NAME = re.compile(r'"(?:[^"]|"")*"|[^\s"/-]+')
_OPERATOR = re.compile(r"(?:(?!--|/\*)[^\w\s'\"])+")
_NO_SPACE_BEFORE = frozenset(". , ) ] ; ::".split())
_NO_SPACE_AFTER = frozenset(". ( [ ::".split())
#: Only the beginning of a text is read: the lexer takes a quarter of a microsecond for a character.
MAX_CHARACTERS = 1000
_SIMPLE_LITERAL = re.compile(r"'[^']*'|\b\d[\w.]*")
_NEEDS_LEXER = re.compile(r"""["$\\]|--|/\*|''""")
#: The last row or list of a text that was cut off.
_CUT_LIST = re.compile(r"(?:,? ?[(\[][^()\[\]]*| ?\?,?) …$")
_SETTINGS = ("set", "pragma")
_PARAMETER = re.compile(rb"\$\w*")
#: Words after which a parenthesis begins a list, and a sign a number.
_BEFORE_LIST = frozenset(
    "in values as from join on and or not where select using exists over by set into with union "
    "all except intersect then else when between returning having".split()
) | frozenset("= < > <= >= <> != + - * / % ||".split())
#: ``in (?, ?)``, ``[?, ?]`` and ``values (?, 1), (?, 1)`` are the same however long they are.
_REPEATED = (
    (re.compile(r"\bin \(([^(),]+)(?:, \1)+\)"), r"in (\1)"),
    (re.compile(r"\[([^][,]+)(?:, \1)+\]"), r"[\1]"),
    (re.compile(r"\bvalues (\([^()]*\))(?:, \1)+"), r"values \1"),
)


def cache_key(sql: str) -> str:
    """The same for texts that mostly differ in their values, and cheap: to keep what was redacted.

    >>> cache_key("INSERT INTO t1 VALUES (1, 'a')")
    'INSERT INTO t1 VALUES (?, ?)'
    """
    head = sql[:MAX_CHARACTERS]
    return head if _NEEDS_LEXER.search(head) else _SIMPLE_LITERAL.sub(_VALUE, head)


def redacted(sql: str) -> str:
    """The text with ``?`` for each literal and parameter, without comments.

    >>> redacted("SELECT * FROM t WHERE name = 'Ann' -- a comment")
    'SELECT * FROM t WHERE name = ?'
    """
    try:
        safe = safe_text(sql[:MAX_CHARACTERS])
    except InvalidRequest:
        return UNREADABLE
    text = _join(_redact(tokenize(safe), safe.encode())) or UNREADABLE
    return f"{text} …" if len(sql) > MAX_CHARACTERS else text


def fingerprint(redacted_sql: str) -> str:
    """What statements that differ in values, letter case, and the length of lists have in common.

    >>> fingerprint("select * FROM T where a in (?, ?, ?);")
    'select * from t where a in (?)'
    """
    text = redacted_sql.lower().rstrip("; ")
    if text.endswith("…"):
        text = _CUT_LIST.sub("", text)
    for pattern, replacement in _REPEATED:
        text = pattern.sub(replacement, text)
    return text


def _redact(tokens: list[Token], text: bytes) -> list[str]:
    """The texts of the tokens, with ``?`` for what may be a value."""
    words: list[str] = []
    skipped_to = 0
    is_setting = is_secret = is_value = False
    for place, token in enumerate(tokens):
        if token.start < skipped_to:
            continue
        following = tokens[place + 1] if place + 1 < len(tokens) else None
        if not words or words[-1] == ";":
            is_setting = token.is_word(*_SETTINGS)
            is_secret = token.is_word("create") and any(
                other.is_word("secret") for other in tokens[place + 1 : place + 5]
            )
            is_value = False
        is_end = token.depth == 0 and token.text == ";"
        if is_value and not is_end and (is_setting or token.text not in (",", ")")):
            if words[-1] != _VALUE:  # of a value that has several tokens
                words.append(_VALUE)
            continue
        is_sign = token.is_operator and token.text in ("-", "+")
        if is_sign and _is_constant(following) and (not words or _expects_value(words[-1])):
            continue
        words.append(_shown(token, following, text))
        if token.is_operator and token.text == "$":
            parameter = _PARAMETER.match(text, token.start)
            skipped_to = parameter.end() if parameter else 0
        if is_setting:
            is_value = not is_end and (is_value or token.text == "=" or token.is_word("to"))
        elif is_secret:
            is_value = token.depth > 0 and token.text not in ("(", ",")
    return words


def _is_constant(token: Token | None) -> bool:
    return token is not None and not (token.is_operator or token.is_keyword or token.is_name)


def _expects_value(word: str) -> bool:
    """True if a sign after this word belongs to a number, and does not subtract it."""
    return word != _VALUE and (word.lower() in _BEFORE_LIST or word in ("(", "[", ",", "=>", ":="))


def _shown(token: Token, following: Token | None, text: bytes) -> str:
    if token.is_operator:
        if token.text in ("?", "$"):
            return _VALUE
        if token.text in "()[]{},;.":
            return token.text
        # The token has one character of the operator only.
        end = len(text) if following is None else following.start
        whole = _OPERATOR.match(text[token.start : end].decode(errors="ignore"))
        return token.text if whole is None else whole[0]
    if token.is_keyword:
        return token.text
    name = _NAME.match(token.text) if token.is_name else None  # a comment may follow
    return name[0] if name else _VALUE


def _join(words: list[str]) -> str:
    parts: list[str] = []
    before = "("
    for word in words:
        is_call = word == "(" and _is_called(before)
        if parts and word not in _NO_SPACE_BEFORE and before not in _NO_SPACE_AFTER and not is_call:
            parts.append(" ")
        parts.append(word)
        before = word
    return "".join(parts)


def _is_called(word: str) -> bool:
    is_name = word[-1] in '"_' or word[-1].isalnum()
    return is_name and word.lower() not in _BEFORE_LIST
