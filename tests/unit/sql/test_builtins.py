"""DuckDB's functions get their full names; other text is unchanged."""

from __future__ import annotations

import pytest

from swanlake.sql.builtins import with_builtins


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("VALUES (1, now())", "VALUES (1, system.main.now())"),
        ("VALUES (UUID( ), 'now()')", "VALUES (system.main.UUID( ), 'now()')"),
        ("VALUES ('é', now(), now())", "VALUES ('é', system.main.now(), system.main.now())"),
        ("SELECT other.now(), now FROM now", "SELECT other.now(), now FROM now"),
        ("VALUES (now(1))", "VALUES (now(1))"),
        ("VALUES (1) -- now()", "VALUES (1) -- now()"),
    ],
)
def test_functions_without_arguments_get_their_full_name(sql: str, named: str) -> None:
    assert with_builtins(sql) == named


def test_long_text_is_unchanged() -> None:
    sql = f"VALUES (now(), '{'x' * 5000}')"
    assert with_builtins(sql) == sql
