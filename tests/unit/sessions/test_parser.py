"""The parser caches statements until a setting changes."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from swanlake.errors import InvalidRequest
from swanlake.sessions.execution.parser import StatementParser


class FakeSession:
    """A connection, the version of its settings, and the limits of its server."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.services = SimpleNamespace(max_statement_bytes=1 << 24)
        self.settings_version = (0, 0)


@pytest.fixture
def session() -> Any:
    return FakeSession()


def test_same_text_gives_the_same_statements(session: Any) -> None:
    parser = StatementParser(session)
    assert parser.parse_one("SELECT 1") is parser.parse_one("SELECT 1")


@pytest.mark.parametrize("version", [(1, 0), (0, 1)])
def test_changed_setting_clears_the_cache(session: Any, version: tuple[int, int]) -> None:
    parser = StatementParser(session)
    before = parser.parse_one("SELECT 1")
    session.settings_version = version
    assert parser.parse_one("SELECT 1") is not before


def test_syntax_error_is_raised_each_time(session: Any) -> None:
    parser = StatementParser(session)
    for _ in range(2):
        with pytest.raises(duckdb.ParserException):
            parser.parse("SELEC 1")


@pytest.mark.parametrize(
    "sql", ["PRAGMA duckling_queue.flush", "pragma Duckling_Queue . flush ( ) ;"]
)
def test_pragma_of_the_queue_is_a_call(session: Any, sql: str) -> None:
    call = StatementParser(session).parse_one(sql).call
    assert call is not None
    assert call.name == "duckling_queue_flush"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 /* " + "import " * 200_000 + "*/",
        "PRAGMA duckling_queue.flush" + " " * 200_000 + "1",
        "/*" * 200_000 + "*/" * 200_000 + "SELECT 1",
        "SELECT " + "+" * 200_000 + "1",
    ],
    ids=["imports", "pragma", "comments", "operators"],
)
def test_long_text_is_parsed_at_once(session: Any, text: str) -> None:
    with suppress(duckdb.Error, InvalidRequest):
        StatementParser(session).parse(text)
