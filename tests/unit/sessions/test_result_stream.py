"""A result raises for rows that it cannot deliver, and never ends early."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from swanlake._internal.memory_budget import MemoryBudget
from swanlake.errors import QueryCancelled, SwanLakeError
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.results.stream import ResultStream
from swanlake.sessions.run import Run, Watchdog

ROWS = 1_000_000


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture
def stream(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> Iterator[ResultStream]:
    watchdog, memory = Watchdog(), MemoryBudget(1 << 30).account("alice")
    connection.execute(f"SELECT range AS i FROM range({ROWS})")
    stream = ResultStream(
        Run(watchdog, SessionKey("alice", "s1")),
        connection,
        activity=lambda: None,
        report=lambda error: False,
        buffer=lambda schema: SpillBuffer(schema, 1 << 20, tmp_path, memory.open()),
    )
    yield stream
    stream.close()
    watchdog.close()


def nothing() -> None:
    pass


def test_settled_result_is_complete_after_another_statement(
    stream: ResultStream, connection: duckdb.DuckDBPyConnection
) -> None:
    stream.settle(nothing)
    connection.execute("SELECT 1")
    rows = 0
    while (batch := stream.read()) is not None:
        rows += batch.num_rows
    assert (rows, stream.total_rows) == (ROWS, ROWS)


def test_bug_while_settling_raises_instead_of_ending_the_rows(
    stream: ResultStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(batch: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr(stream._format, "convert", broken)
    stream.settle(nothing)
    assert not stream.live
    with pytest.raises(SwanLakeError, match="TypeError"):
        stream.read()


def test_cancelled_settle_leaves_the_result_complete(
    stream: ResultStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    convert = stream._format.convert

    def held(batch: Any) -> Any:
        assert go_on.wait(120)
        return convert(batch)

    def gave_up() -> None:
        raise QueryCancelled("no longer wanted")

    monkeypatch.setattr(stream._format, "convert", held)
    with pytest.raises(QueryCancelled):
        stream.settle(gave_up)
    go_on.set()
    stream.settle(nothing)
    rows = 0
    while (batch := stream.read()) is not None:
        rows += batch.num_rows
    assert rows == ROWS


def test_abandoned_result_frees_the_connection(
    stream: ResultStream, connection: duckdb.DuckDBPyConnection
) -> None:
    stream.abandon(QueryCancelled("cancelled"))
    assert not stream.live
    assert connection.execute("SELECT 7").fetchall() == [(7,)]
    with pytest.raises(QueryCancelled):
        stream.read()
