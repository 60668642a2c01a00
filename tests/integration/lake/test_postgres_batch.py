"""Statements that go to PostgreSQL together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, bindparam, func, literal, select, text

from swanlake.lake import postgres_batch
from swanlake.lake.postgres import postgres_engine
from swanlake.lake.postgres_batch import Batch

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


def test_answers_are_those_of_their_statements(connection: Connection) -> None:
    batch = Batch(connection)
    batch.command(b"BEGIN")
    first = batch.add(TWICE, [{"n": 4}])
    batch.once(select(literal("it's 5 %").label("word")))
    second = batch.add(TWICE, [{"n": 1}, {"n": 70_000}])
    batch.command(b"COMMIT")
    answer = batch.run()
    assert answer(first) == [(8, 3)]
    assert answer(second) == [(140_000, 3)]
    assert answer(second)[0].twice == 140_000
    assert answer(second - 2) == [("it's 5 %",)]
    assert prepared(connection) == 1


def test_a_reader_that_rolls_back_leaves_them_prepared(connection: Connection) -> None:
    for n in range(8):
        batch = Batch(connection)
        place = batch.add(TWICE, [{"n": n}])
        assert batch.run()(place) == [(2 * n, 3)]
        for _ in range(8):
            connection.execute(text("SELECT 1"))
        connection.rollback()
    assert prepared(connection) == 1


def test_only_so_many_are_kept(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_batch, "_MOST_PREPARED", 3)
    statements: list[Any] = [select((bindparam("n", 0) + n).label(f"plus_{n}")) for n in range(5)]
    for round_ in (1, 2):
        batch = Batch(connection)
        places = [batch.add(statement, [{"n": round_}]) for statement in (*statements, TWICE)]
        answer = batch.run()
        assert [answer(place)[0][0] for place in places] == [round_ + n for n in range(5)] + [
            2 * round_
        ]
    assert prepared(connection) == 3


def test_the_first_error_is_the_one_that_is_raised(connection: Connection) -> None:
    batch = Batch(connection)
    batch.command(b"BEGIN")
    batch.add(TWICE, [{"n": 1}])
    batch.command(b"SELECT 1 / 0")
    batch.command(b"SELECT * FROM nowhere")
    batch.command(b"COMMIT")
    with pytest.raises(psycopg.errors.DivisionByZero):
        batch.run()


def test_more_than_the_network_takes_at_once(connection: Connection) -> None:
    """Neither side may wait for the other to read."""
    statement: Any = select(bindparam("t", "").label("same"))
    batch = Batch(connection)
    rows = [{"t": f"{n}" * 100_000} for n in range(100)]
    places = [batch.add(statement, [row]) for row in rows]
    answer = batch.run()
    assert [answer(place)[0].same for place in places] == [row["t"] for row in rows]
