"""Classification and rewriting of statements."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.sql.hints import parameter_hints
from swanlake.sql.quoting import identifier, literal, qualified
from swanlake.sql.statement import Kind, Statement, parse
from swanlake.sql.tokens import find_parameters, substitute_parameters, tokenize

CONNECTION = duckdb.connect()


def one(sql: str) -> Statement:
    (statement,) = parse(CONNECTION, sql)
    return statement


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT 1", Kind.QUERY),
        ("FROM t", Kind.QUERY),
        ("VALUES (1)", Kind.QUERY),
        ("SHOW TABLES", Kind.QUERY),
        ("CALL f()", Kind.QUERY),
        ("EXPLAIN INSERT INTO t VALUES (1)", Kind.QUERY),
        ("INSERT INTO t VALUES (1)", Kind.CHANGE),
        ("INSERT INTO t VALUES ('returning')", Kind.CHANGE),
        ('INSERT INTO t SELECT "returning" FROM u', Kind.CHANGE),
        ("INSERT INTO t VALUES (1) -- returning *", Kind.CHANGE),
        ("INSERT INTO t VALUES (1) RETURNING *", Kind.QUERY),
        ("WITH a AS (SELECT 1) DELETE FROM t USING a RETURNING 1", Kind.QUERY),
        ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE", Kind.CHANGE),
        ("CREATE TABLE t AS SELECT 1", Kind.CHANGE),
        ("COPY t FROM 'x'", Kind.CHANGE),
        ("ALTER TABLE t ADD COLUMN x INTEGER", Kind.COMMAND),
        ("DROP TABLE t", Kind.COMMAND),
        ("SET threads = 2", Kind.COMMAND),
        ("USE x", Kind.COMMAND),
        ("BEGIN TRANSACTION", Kind.BEGIN),
        ("START TRANSACTION", Kind.BEGIN),
        ("COMMIT", Kind.COMMIT),
        ("END", Kind.COMMIT),
        ("/* why */ ROLLBACK", Kind.ROLLBACK),
        ("ABORT", Kind.ROLLBACK),
    ],
)
def test_kind_of_a_statement(sql: str, kind: Kind) -> None:
    assert one(sql).kind is kind


@pytest.mark.parametrize(
    ("sql", "may_write"),
    [
        ("SELECT 1", False),
        ("SET threads = 2", False),
        ("BEGIN", False),
        ("EXPLAIN INSERT INTO t VALUES (1)", False),
        ("EXPLAIN ANALYZE INSERT INTO t VALUES (1)", True),
        ("CREATE TEMP TABLE t (i INTEGER)", False),
        ("CREATE OR REPLACE TEMPORARY TABLE t AS SELECT 1", False),
        ("CREATE TABLE temp_like (i INTEGER)", True),
        ("CREATE TABLE readings (temp DOUBLE)", True),
        ("CREATE TABLE w AS SELECT temp FROM y", True),
        ("COPY t TO 'x.csv'", False),
        ("COPY (SELECT 1 FROM u) TO 'x.csv'", False),
        ("COPY t FROM 'x.csv'", True),
        ("INSERT INTO t VALUES (1)", True),
        ("WITH a AS (SELECT 1) INSERT INTO t FROM a", True),
        ("CALL ducklake_expire_snapshots('x')", True),
        ("EXECUTE p(1)", True),
        ("TRUNCATE t", True),
    ],
)
def test_may_write_of_a_statement(sql: str, may_write: bool) -> None:
    assert one(sql).may_write is may_write


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELECT 1", ()),
        ("SELECT ?, ?", ("1", "2")),
        ("SELECT $2, $1, $2", ("1", "2")),
        ("SELECT $b, $a", ("a", "b")),
        ("SELECT " + ", ".join(["?"] * 12), tuple(str(i) for i in range(1, 13))),
    ],
)
def test_parameters_in_order(sql: str, parameters: tuple[str, ...]) -> None:
    assert one(sql).parameters == parameters


@pytest.mark.parametrize(
    ("sql", "replaced"),
    [
        ("SELECT ?, 'a?b', \"c?\", ? -- ?", "SELECT <1>, 'a?b', \"c?\", <2> -- ?"),
        ("SELECT $name + $1 /* $2 */", "SELECT <name> + <1> /* $2 */"),
        ("SELECT 'é', ?", "SELECT 'é', <1>"),
        ("SELECT $$ ? $$, ?", "SELECT $$ ? $$, <1>"),
        ("SELECT j->>'$.a' FROM t WHERE x=$1", "SELECT j->>'$.a' FROM t WHERE x=<1>"),
    ],
)
def test_parameters_are_replaced_and_nothing_else(sql: str, replaced: str) -> None:
    assert substitute_parameters(sql, lambda name: f"<{name}>") == replaced


@pytest.mark.parametrize(
    ("sql", "rewritten"),
    [
        ("INSERT INTO t VALUES (?, now())", "INSERT INTO t SELECT b.c0, now()\nFROM b "),
        (
            "INSERT INTO t (x, y) VALUES (lower(?), $$)$$ || ?) ON CONFLICT DO NOTHING",
            "INSERT INTO t (x, y) SELECT lower(b.c0), $$)$$ || b.c1\nFROM b "
            " ON CONFLICT DO NOTHING",
        ),
        ("INSERT INTO t VALUES (?), (?)", None),
        ("INSERT INTO t VALUES (?, DEFAULT)", None),
        ("INSERT INTO t SELECT ?", None),
        ("INSERT INTO t VALUES (?) ON CONFLICT (a) DO UPDATE SET a = ?", None),
        ("UPDATE t SET a = ?", None),
        ("INSERT INTO t VALUES (?, (TABLE t))", None),
        ("INSERT INTO t VALUES (?, (FROM t))", None),
        ("INSERT INTO t VALUES (?, my_macro())", None),
        ("INSERT INTO t VALUES (?, lake.main.upper('x'))", None),
        (
            "INSERT INTO t VALUES (upper(?), CAST(? AS DECIMAL(3, 1)))",
            "INSERT INTO t SELECT upper(b.c0), CAST(b.c1 AS DECIMAL(3, 1))\nFROM b ",
        ),
    ],
)
def test_insert_of_one_row_becomes_an_insert_of_all_rows(sql: str, rewritten: str | None) -> None:
    assert one(sql).over_rows("b") == rewritten


def test_setting_name_is_what_the_statement_sets() -> None:
    assert one("SET threads = 1").setting_name == one("SET threads TO 2").setting_name == "threads"
    assert one("RESET threads").setting_name == "threads"
    assert one("SET VARIABLE x = 1").setting_name == "variable x"
    assert one("USE a.b").setting_name == one("USE c").setting_name


@given(st.text())
def test_any_text_is_parsed_or_refused(sql: str) -> None:
    try:
        statements = parse(CONNECTION, sql)
    except (duckdb.Error, UnicodeEncodeError):
        return
    for statement in statements:
        assert statement.kind in Kind
        assert isinstance(statement.may_write, bool)


WORDS = st.sampled_from(
    "SELECT INSERT INTO t VALUES ( ) , ; ? $1 $x 'a' \"b\" FROM WITH RETURNING * 1 + -- \n /* */ "
    "UPDATE SET = DELETE CREATE TEMP TABLE AS BEGIN COMMIT EXPLAIN ANALYZE DEFAULT é MERGE".split()
)


@given(st.lists(WORDS, max_size=14).map(" ".join))
def test_any_sequence_of_words_is_classified_or_refused(sql: str) -> None:
    try:
        statements = parse(CONNECTION, sql)
    except duckdb.Error:
        return
    for statement in statements:
        kind = statement.kind
        assert (kind is Kind.QUERY) or not statement.text.lstrip().upper().startswith("SELECT")
        statement.probe()
        statement.over_rows("b")
        found = {parameter.name for parameter in find_parameters(statement.text)}
        assert found == set(statement.parameters)


@given(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
def test_quoting_survives_the_round_trip(text: str) -> None:
    row = CONNECTION.execute(f"SELECT {literal(text)} AS {identifier(text)}")
    assert row.description[0][0] == text
    assert row.fetchone() == (text,)


def test_qualified_names_leave_out_what_is_missing() -> None:
    assert qualified("a", None, "b.c") == '"a"."b.c"'


def test_tokens_have_their_depth() -> None:
    depths = [(token.text, token.depth) for token in tokenize("a(b[c])")]
    assert depths == [("a", 0), ("(", 0), ("b", 1), ("[", 1), ("c", 2), ("]", 1), (")", 0)]


@pytest.mark.parametrize(
    ("sql", "by_place"),
    [
        ("INSERT INTO t VALUES (?, lower(?), ?)", {"1": 0, "3": 2}),
        ("INSERT INTO t VALUES (?), (?)", {"1": 0, "2": 0}),
        ("INSERT INTO t VALUES ($x, now(), $y) ON CONFLICT DO NOTHING", {"x": 0, "y": 2}),
        ("UPDATE t SET a = ?", {}),
    ],
)
def test_parameters_have_column_hints(sql: str, by_place: dict[str, int]) -> None:
    assert parameter_hints(one(sql)).by_place == by_place


def test_hints_have_the_column_list_of_an_insert() -> None:
    hints = parameter_hints(one('INSERT INTO s.t (a, "b c") VALUES (?, ?)'))
    assert hints.inserted == ["a", '"b c"']
    assert parameter_hints(one("INSERT INTO t VALUES (?)")).inserted is None


def test_probe_ends_where_its_statement_ends() -> None:
    probe = one("SELECT 2 AS x; -- done").probe()
    assert probe is not None
    assert CONNECTION.execute(probe).description[0][0] == "x"


@pytest.mark.parametrize(
    ("sql", "body"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1 ;; \n", "SELECT 1"),
        ("SELECT 1; -- a; b", "SELECT 1"),
        ("SELECT ';' /* x */", "SELECT ';' /* x */"),
        ("INSERT INTO t VALUES (';--'); /* ; */", "INSERT INTO t VALUES (';--')"),
    ],
)
def test_body_ends_before_the_semicolon(sql: str, body: str) -> None:
    assert one(sql).body == body
