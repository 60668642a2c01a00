"""Scripts are read as written, and a record notices every kind of wrong outcome."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.sqllogic.runner import unexpected
from tests.sqllogic.script import Record, ScriptError, parse
from tests.sqllogic.sides import Outcome

_ROWS = Outcome.of_table(pa.table({"a": [2, 1], "b": ["x", None]}))


def _record(text: str) -> Record:
    (record,) = parse(text)
    return record


def test_records_have_their_statement_session_and_place() -> None:
    first, second = parse(
        "# comment\n\nstatement ok\nSELECT\n1\n\nstatement count 3 @b\nDELETE", "x"
    )
    assert (first.sql, first.session, first.place) == ("SELECT\n1", "", "x:3")
    assert (second.count, second.session, second.place) == (3, "b", "x:7")


def test_directives_hold_where_all_their_words_apply() -> None:
    record = _record("skipif sqlite: why\nstock differs if inlined native: why\nstatement ok\nX")
    assert not record.applies(frozenset({"sqlite", "files"}))
    assert record.applies(frozenset({"postgres"}))
    assert record.differing(frozenset({"postgres", "inlined", "native"})) == "stock"
    assert record.differing(frozenset({"postgres", "inlined", "extension"})) is None


@pytest.mark.parametrize(
    "text",
    [
        "statement maybe\nX",
        "statement count many\nX",
        "statement ok\nX\n----\n1",
        "query XY\nX",
        "query I sorted\nX",
        "SELECT 1",
        "skipif oracle: why\nstatement ok\nX",
        "skipif sqlite\nstatement ok\nX",
        "history t",
    ],
)
def test_malformed_records_are_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        list(parse(text))


@pytest.mark.parametrize(
    ("text", "outcome", "is_expected"),
    [
        ("statement ok\nX", Outcome(count=1), True),
        ("statement ok\nX", Outcome("PARSER_ERROR"), False),
        ("statement\nX", Outcome("PARSER_ERROR"), True),
        ("statement error PARSER_ERROR\nX", Outcome("PARSER_ERROR"), True),
        ("statement error PARSER_ERROR\nX", Outcome("BINDER_ERROR"), False),
        ("statement error PARSER_ERROR\nX", Outcome(), False),
        ("statement count 1\nX", Outcome(count=2), False),
        ("query IT\nX", _ROWS, True),
        ("query II\nX", _ROWS, False),
        ("query IT\nX\n----\n1\tNULL\n2\tx", _ROWS, True),
        ("query IT\nX ORDER BY a\n----\n1\tNULL\n2\tx", _ROWS, False),
        ("query IT rowsort\nX ORDER BY a\n----\n1\tNULL\n2\tx", _ROWS, True),
        ("query IT nosort\nX\n----\n1\tNULL\n2\tx", _ROWS, False),
        ("query IT\nX\n----\n2\tx", _ROWS, False),
        ("query IT\nX\n----", _ROWS, False),
    ],
)
def test_outcome_is_checked(text: str, outcome: Outcome, is_expected: bool) -> None:
    assert (unexpected(_record(text), outcome) == "") == is_expected


def test_outcomes_differ_by_error_count_names_types_and_rows() -> None:
    same = _ROWS.comparable(is_ordered=False)
    for other in (
        Outcome("PARSER_ERROR"),
        Outcome(count=2),
        Outcome.of_table(pa.table({"A": [2, 1], "b": ["x", None]})),
        Outcome.of_table(pa.table({"a": pa.array([2, 1], pa.int32()), "b": ["x", None]})),
        Outcome.of_table(pa.table({"a": [2, 2, 1], "b": ["x", "x", None]})),
    ):
        assert other.comparable(is_ordered=False) != same
