"""DuckDB's lexer gets no text for which it would need more than linear time."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.errors import InvalidRequest
from swanlake.sql.safe_text import check_size, safe_text

#: For most of these DuckDB alone takes minutes.
MANY = 50_000
LONG_TEXTS = {
    "nested": "/*" * MANY + "*/" * MANY + " SELECT 1",
    "nested in turn": ("/*" * 10 + "*/" * 10) * (MANY // 10) + " SELECT 1",
    "adjacent": "/**/" * MANY + " SELECT 1",
    "between operators": "SELECT 1" + "+/**/" * MANY + "1",
    "with operators": "/*+*/" * MANY + " SELECT 1",
    "without an end": "SELECT 1 " + "/*" * MANY,
    "in a string": "SELECT '" + "/*" * MANY + "' /* a */",
    "dollar signs": "SELECT /* a */ " + "$a" * MANY,
}


@pytest.mark.parametrize("subject", LONG_TEXTS)
def test_long_text_is_read_at_once(subject: str) -> None:
    duckdb.tokenize(safe_text(LONG_TEXTS[subject]))


@pytest.mark.parametrize("sign", ["+", "-+", "+/", "@"])
@pytest.mark.parametrize("text", ["SELECT {}1", "/* a */ SELECT {} 1"])
def test_long_operator_is_refused(sign: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match="no operator of 10000 characters"):
        safe_text(text.format(sign * (10_000 // len(sign))))


@pytest.mark.parametrize(
    "text", ["SELECT 1 WHERE 1=1" + " OR 1=2" * MANY, "SELECT true" + " AND/**/true" * MANY]
)
def test_long_chain_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="more than 10000 ANDs and ORs"):
        safe_text(text)


@pytest.mark.parametrize("text", ["SELECT '" + "this and that or " * MANY + "'", "VALUES (1)"])
def test_words_in_strings_are_no_chain(text: str) -> None:
    assert safe_text(text) == text


def test_size_is_counted_in_bytes() -> None:
    check_size("a" * 1024, 1024)
    check_size("é" * 512, 1024)
    for text in ("a" * 1025, "é" * 513, "é" * 2000):
        with pytest.raises(InvalidRequest, match="longer than 1024 bytes"):
            check_size(text, 1024)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 /* one */ + /* two */ 2",
        "SELECT '/* /* a' || \"b /*/*\" || $$/*/*$$ || $x$/*/* $$ $x$ /* c */",
        r"SELECT E'\'/*/*' /* a */",
        "SELECT a$b$c /* $b$ */",
        "-- /* /* a\nSELECT 1 /* b */",
        "SELECT 1 -- " + "+" * 100,
        "SELECT '" + "+" * 100 + "'",
        "SELECT 1 /* " + "=" * 100 + " */",
        "SELECT 1 -" + "-" * 100,
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert safe_text(text) == text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("SELECT /* a /* b */ */ 1", "SELECT /*           */ 1"),
        ("SELECT /* a\n/* é */\n */ 1", "SELECT /*  \n       \n */ 1"),
        ("SELECT 1/**/+1", "SELECT 1    +1"),
        ("SELECT /*+ a */ 1", "SELECT /*    */ 1"),
        ("SELECT /* a /* b */ 1", "SELECT /*"),
    ],
)
def test_comments_become_spaces(text: str, safe: str) -> None:
    assert safe_text(text) == safe


PIECES = [
    *("/*", "*/", "/*", "*/", "/", "*", "'", "''", '"', "\\", "$$", "$a$", "$1", "a", "e", "E'"),
    *("--", "\n", "\r", " ", "select", "1", "1e", "-", "+", "é", "(", ")", ";", "\\'", "a$b$"),
]


def statement_types(sql: str) -> list[str] | str:
    try:
        return [str(one.type) for one in duckdb.extract_statements(sql)]
    except duckdb.Error as error:
        return str(error).split(" at or near", maxsplit=1)[0]


# A text that contains "//" and then a comment is read by DuckDB as if it had no operator.
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join).filter(lambda s: "//" not in s))
def test_statements_are_those_of_the_text(text: str) -> None:
    safe = safe_text(text)
    if safe != text and "'" not in text:  # a comment prevents 'a' 'b' from being one string
        assert statement_types(safe) == statement_types(text)
