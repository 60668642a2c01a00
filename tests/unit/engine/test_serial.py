"""The engine for small queries."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from swanlake.engine.serial import SerialEngine

#: A sort of 128 MB.
LARGE = "SELECT count(*) FROM (SELECT range AS r FROM range(16_000_000) ORDER BY r DESC OFFSET 1)"


@pytest.fixture
def engine() -> Iterator[SerialEngine]:
    engine = SerialEngine()
    yield engine
    engine.close()


def test_callers_are_its_only_threads(engine: SerialEngine) -> None:
    with engine.connection() as connection:
        assert connection.execute("SELECT current_setting('threads')").fetchall() == [(1,)]


def test_query_that_needs_much_memory_is_refused(engine: SerialEngine) -> None:
    with pytest.raises(duckdb.OutOfMemoryException), engine.connection() as connection:
        connection.execute(LARGE)
    with engine.connection() as connection:
        assert connection.execute("SELECT 42").fetchall() == [(42,)]


def test_connection_after_close_is_of_another_instance(engine: SerialEngine) -> None:
    with engine.connection() as connection:
        connection.execute("CREATE TABLE memory.main.t (id BIGINT)")
    engine.close()
    with engine.connection() as connection:
        assert connection.execute("SHOW TABLES").fetchall() == []
