"""What Tab offers, from the text and the names of a lake."""

from __future__ import annotations

import pytest

from swanlake.cli.shell.completion import Names, Place, Table, complete

NAMES = Names(
    catalogs=("swanlake", "trial"),
    schemas=(("swanlake", "main"), ("swanlake", "sales"), ("trial", "main")),
    tables=(
        Table("temp", "main", "tmp", ("t",)),
        Table("swanlake", "main", "trips", ("city", "km")),
        Table("swanlake", "main", "Odd Name", ("x",)),
        Table("swanlake", "main", "order", ("x",)),
        Table("swanlake", "sales", "orders", ("id", "price")),
        Table("trial", "main", "forked", ("city",)),
    ),
    functions=("date_trunc", "sum"),
    table_functions=("range", "read_parquet"),
)
PLACE = Place("swanlake", "main")


def offered(text: str) -> list[str]:
    """The texts for the cursor at ``|``, or at the end."""
    before, _, after = text.partition("|")
    return [found.text for found in complete(before, after, NAMES, PLACE)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM tr", ["trips", "trial"]),
        ("FROM tm", ["tmp"]),
        ("FROM range", ["range"]),
        ("INSERT INTO tr", ["trips", "trial"]),
        ("FROM sales.", ["orders"]),
        ("FROM swanlake.sales.o", ["orders"]),
        ("FROM trial.", ["forked", "main"]),
        ("FROM trial.main.", ["forked"]),
        ("SELECT ci| FROM trips", ["city"]),
        ("SELECT t.| FROM trips t", ["city", "km"]),
        ("SELECT trips.c", ["city"]),
        ("SELECT o.p| FROM trips t JOIN sales.orders AS o ON true", ["price"]),
        ("FROM trips WHERE k", ["km", "key"]),
        ("SELECT date_tr", ["date_trunc"]),
        ("USE tr", ["trial"]),
        ("SELECT 1; FROM for", []),
        ("\\d tri", ["trips"]),
        ("\\c t", ["trial"]),
        (".mode j", ["json"]),
        (".mod", [".mode"]),
        ("\\wat", ["\\watch"]),
    ],
)
def test_names_that_fit_the_place_are_offered(text: str, expected: list[str]) -> None:
    assert offered(text)[: len(expected)] == expected
    if not expected:
        assert offered(text) == []


@pytest.mark.parametrize("text", ["SELECT 'tr", "SELECT 1 -- tr", "SELECT /* tr", "SELECT $$tr"])
def test_nothing_is_offered_in_strings_and_comments(text: str) -> None:
    assert offered(text) == []


def test_keywords_are_written_as_the_user_writes() -> None:
    assert "SELECT" in offered("SEL")
    assert "select" in offered("sel")


def test_names_are_quoted_where_sql_needs_it() -> None:
    assert offered("FROM Od") == ['"Odd Name"']
    assert offered('FROM "Od') == ['"Odd Name"']
    assert '"order"' in offered("FROM ord")


def test_word_before_the_cursor_is_replaced() -> None:
    [found] = complete("FROM trip", "", NAMES, PLACE)
    assert found.replaced == len("trip")
