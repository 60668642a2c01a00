"""Texts without their values: none gets through, and what differs in values only is the same."""

from __future__ import annotations

import pytest

from swanlake.sql.fingerprint import MAX_CHARACTERS, UNREADABLE, cache_key, fingerprint, redacted


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a, 'it''s' FROM t WHERE x >= 1.5e3", "SELECT a, ? FROM t WHERE x >= ?"),
        ("SELECT  a\n FROM t -- secret", "SELECT a FROM t"),
        (
            'SELECT foo /* secret */, "quoted name" /* b */ FROM t',
            'SELECT foo, "quoted name" FROM t',
        ),
        ("SELECT $$secret$$, x'ab', e'a\\'b', $1, $name, ?, ?2", "SELECT ?, ?, ?, ?, ?, ?, ?"),
        ("SELECT -1, a - 2, a -(+3), [-1]", "SELECT ?, a - ?, a - (?), [?]"),
        ("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO t VALUES (?, ?), (?, ?)"),
        ("SET s3_secret_access_key = abc; SELECT 1", "SET s3_secret_access_key = ?; SELECT ?"),
        ("SET x TO abc.def", "SET x TO ?"),
        (
            "CREATE SECRET s (TYPE s3, KEY_ID abc, SECRET 'def', SCOPE 's3://x')",
            "CREATE SECRET s(TYPE ?, KEY_ID ?, SECRET ?, SCOPE ?)",
        ),
        ("ATTACH 'postgres://u:secret@h' AS x (TYPE postgres)", "ATTACH ? AS x(TYPE postgres)"),
        ("CALL f(name => 'x', n := 3)", "CALL f(name => ?, n := ?)"),
        ("SELECT 'é' || ü FROM tä", "SELECT ? || ü FROM tä"),
        ("", UNREADABLE),
    ],
)
def test_values_are_replaced(sql: str, expected: str) -> None:
    assert redacted(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'a secret",
        "SELECT 1 /* secret",
        "SELECT $tag$ secret",
        'SELECT 1, "secret',
        "SELEC 'secret'",
        "SELECT U&'secret'",
        "SET a = 'secret' || secret",
        "SET VARIABLE a = (SELECT secret)",
        "CREATE OR REPLACE PERSISTENT SECRET (TYPE s3, KEY_ID secret)",
        "/*" * 40 + " secret",
    ],
)
def test_cut_off_and_faulty_texts_show_no_values(sql: str) -> None:
    assert "secret" not in redacted(sql).replace("PERSISTENT SECRET", "").lower()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT * FROM t WHERE i = 1", "select  *\nfrom T where I=-2;"),
        ("SELECT i IN (1, 2)", "SELECT i IN (1, 2, 3)"),
        ("SELECT d IN (DATE '2020-01-01')", "SELECT d IN (DATE '2020-01-01', DATE '2020-01-02')"),
        ("INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"),
        ("SELECT [1]", "SELECT [1, 2]"),
        ("SELECT ?", "SELECT $1"),
    ],
)
def test_statements_that_differ_in_values_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(redacted(one)) == fingerprint(redacted(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM t", "SELECT b FROM t"),
        ("SELECT f(1)", "SELECT f(1, 2)"),
        ("SELECT a FROM t WHERE x = 1", "SELECT a FROM t WHERE x > 1"),
    ],
)
def test_other_statements_have_another_fingerprint(one: str, other: str) -> None:
    assert fingerprint(redacted(one)) != fingerprint(redacted(other))


def test_only_the_beginning_of_a_text_is_read() -> None:
    rows = ", ".join(f"({number}, 'secret')" for number in range(1000))
    text = redacted(f"INSERT INTO t VALUES {rows}")
    assert text.endswith("…")
    assert len(text) < 2 * MAX_CHARACTERS
    assert fingerprint(text) == fingerprint(redacted("INSERT INTO t VALUES (1, 'x')"))


def test_cache_key_is_the_same_for_other_values_only() -> None:
    assert cache_key("SELECT 1, 'a' FROM t1") == cache_key("SELECT 25.5, 'bcd' FROM t1")
    assert cache_key("SELECT 1 FROM t1") != cache_key("SELECT 1 FROM t2")
    assert cache_key('SELECT "a 1"') != cache_key('SELECT "a 2"')
    assert cache_key("SELECT 1 -- it's") != cache_key("SELECT 2 -- it's")
