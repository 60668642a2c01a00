"""Batches of statements sent to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, bindparam, func, literal, select, text

from swanlake.lake.metastore import postgres_batch
from swanlake.lake.metastore.postgres import postgres_engine
from swanlake.lake.metastore.postgres_batch import StatementPipeline

TWICE: Any = select((bindparam("n", type_=literal(1).type) * 2).label("twice"), func.length("a%s"))


@pytest.fixture
def connection(postgres: str) -> Iterator[Connection]:
    engine = postgres_engine(postgres)
    with engine.connect() as connected:
        yield connected
        connected.invalidate()
    engine.dispose()


def prepared(connection: Connection) -> int:
    found = connection.execute(text("SELECT count(*) FROM pg_prepared_statements"))
    return int(found.scalar_one())


def test_each_statement_gets_its_own_result(connection: Connection) -> None:
    batch = StatementPipeline(connection)
    batch.add_command(b"BEGIN")
    first = batch.add(TWICE, [{"n": 4}])
    batch.add_once(select(literal("it's 5 %").label("word")))
    second = batch.add(TWICE, [{"n": 1}, {"n": 70_000}])
    batch.add_command(b"COMMIT")
    answer = batch.run()
    assert answer(first) == [(8, 3)]
    assert answer(second) == [(140_000, 3)]
    assert answer(second)[0].twice == 140_000
    assert answer(second - 2) == [("it's 5 %",)]
    assert prepared(connection) == 1


def test_rollback_leaves_statements_prepared(connection: Connection) -> None:
    for n in range(8):
        batch = StatementPipeline(connection)
        place = batch.add(TWICE, [{"n": n}])
        assert batch.run()(place) == [(2 * n, 3)]
        for _ in range(8):
            connection.execute(text("SELECT 1"))
        connection.rollback()
    assert prepared(connection) == 1


def test_number_of_prepared_statements_is_limited(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_batch, "_MOST_PREPARED", 3)
    statements: list[Any] = [select((bindparam("n", 0) + n).label(f"plus_{n}")) for n in range(5)]
    for round_ in (1, 2):
        batch = StatementPipeline(connection)
        places = [batch.add(statement, [{"n": round_}]) for statement in (*statements, TWICE)]
        answer = batch.run()
        assert [answer(place)[0][0] for place in places] == [round_ + n for n in range(5)] + [
            2 * round_
        ]
    assert prepared(connection) == 3


def test_first_error_is_raised(connection: Connection) -> None:
    batch = StatementPipeline(connection)
    batch.add_command(b"BEGIN")
    batch.add(TWICE, [{"n": 1}])
    batch.add_command(b"SELECT 1 / 0")
    batch.add_command(b"SELECT * FROM nowhere")
    batch.add_command(b"COMMIT")
    with pytest.raises(psycopg.errors.DivisionByZero):
        batch.run()


def test_batch_larger_than_the_network_buffers_does_not_deadlock(connection: Connection) -> None:
    """Client and server must not both wait for the other to read."""
    statement: Any = select(bindparam("t", "").label("same"))
    batch = StatementPipeline(connection)
    rows = [{"t": f"{n}" * 100_000} for n in range(100)]
    places = [batch.add(statement, [row]) for row in rows]
    answer = batch.run()
    assert [answer(place)[0].same for place in places] == [row["t"] for row in rows]
