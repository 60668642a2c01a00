"""What a small statement does not do: plan a text twice, change threads, run a query for a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from swanlake.config import Settings
from swanlake.protocol import messages
from swanlake.server import results
from swanlake.server.app import Server
from swanlake.sessions.execution import executor, prepared
from swanlake.sessions.queue.enqueue import EnqueueExecutor
from tests.flight import FlightSql


class Calls:
    """Counts the calls of a function, which does its work as before."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.count = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        return self._function(*arguments, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in this process."""
    home = tmp_path_factory.mktemp("small") / "home"
    server = Server(Settings(home=home, port=0, status="off", pipeline="inline", maintenance="off"))
    yield server
    server.stop(grace=0)


@pytest.fixture
def flight_sql(server: Server) -> Iterator[FlightSql]:
    connection = FlightSql(server.url)
    yield connection
    connection.close()


def run_prepared(connection: FlightSql, sql: str, bound: pa.Table | None = None) -> Any:
    """Prepares a text, executes it once and closes it, as stock ADBC does."""
    statement = connection.action_result(
        "CreatePreparedStatement", messages.ActionCreatePreparedStatementRequest(query=sql)
    )
    handle = statement.prepared_statement_handle
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    if bound is not None:
        connection.put(command, bound)
    found = connection.fetch(connection.info(command)).read_all()
    connection.action(
        "ClosePreparedStatement",
        messages.ActionClosePreparedStatementRequest(prepared_statement_handle=handle),
    )
    return found


@pytest.mark.parametrize("sql", ["SELECT 42 AS answer", "SELECT CAST(? AS INTEGER) AS answer"])
def test_repeated_text_is_planned_once(
    flight_sql: FlightSql, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    described = Calls(prepared.describe)
    monkeypatch.setattr(executor, "describe", described)
    monkeypatch.setattr(results, "_ANSWER_SECONDS", 60.0)
    bound = pa.table({"1": pa.array([42], pa.int32())}) if "?" in sql else None
    assert run_prepared(flight_sql, sql, bound).to_pylist() == [{"answer": 42}]
    first = described.count
    assert run_prepared(flight_sql, sql, bound).to_pylist() == [{"answer": 42}]
    assert described.count == first


@pytest.mark.parametrize(
    ("sql", "background"),
    [("SELECT CAST(? AS INTEGER) AS plain", 1), ("SELECT count(*) FROM range(CAST(? AS INT))", 2)],
)
def test_quick_values_say_nothing_of_other_values(
    server: Server,
    flight_sql: FlightSql,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    background: int,
) -> None:
    """A driver can cancel a query that takes longer with other values than with the last."""
    started = Calls(server.registry.start)
    monkeypatch.setattr(server.registry, "start", started)
    monkeypatch.setattr(results, "_ANSWER_SECONDS", 60.0)
    for value in (1, 2):
        run_prepared(flight_sql, sql, pa.table({"1": pa.array([value], pa.int32())}))
    assert started.count == background


def test_text_that_was_quick_is_executed_by_its_call(
    server: Server, flight_sql: FlightSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Calls(server.registry.start)
    monkeypatch.setattr(server.registry, "start", started)
    for limit, background in ((60.0, 1), (60.0, 1), (0.0, 1), (60.0, 2), (60.0, 2)):
        monkeypatch.setattr(results, "_ANSWER_SECONDS", limit)
        run_prepared(flight_sql, "SELECT 'executed by its call' AS a")
        assert started.count == background


def test_insert_of_literals_into_the_queue_runs_no_query(
    flight_sql: FlightSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight_sql.query("CREATE TABLE literals (id BIGINT, note VARCHAR)")
    executed = Calls(EnqueueExecutor._execute)
    monkeypatch.setattr(EnqueueExecutor, "_execute", lambda *arguments: executed(*arguments))
    run_prepared(flight_sql, "INSERT INTO duckling_queue.literals VALUES (1, 'a'), (2, NULL)")
    assert executed.count == 0
    run_prepared(flight_sql, "INSERT INTO duckling_queue.literals VALUES (1 + 2, 'c')")
    assert executed.count == 1
    found = flight_sql.query("FROM duckling_queue.literals ORDER BY id")
    assert [tuple(row.values()) for row in found.to_pylist()] == [(1, "a"), (2, None), (3, "c")]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT 1 AS i, 2 AS i, 3 AS I", ["i", "i", "I"]),
        ("SELECT 1 AS i, 2 AS i, 3 AS i_1", ["i", "i", "i_1"]),
        ("SELECT 1 AS i, 2 AS i_1;", ["i", "i_1"]),
        ("SELECT ?::INT AS i, ?::INT AS i", ["i", "i"]),
    ],
)
def test_columns_of_one_name_are_announced_as_they_are(
    flight_sql: FlightSql, monkeypatch: pytest.MonkeyPatch, sql: str, names: list[str]
) -> None:
    monkeypatch.setattr(results, "_ANSWER_SECONDS", 0.0)
    values = pa.array([7], pa.int32())
    bound = pa.table([values] * sql.count("?"), names=["1", "2"]) if "?" in sql else None
    assert run_prepared(flight_sql, sql, bound).schema.names == names


def test_time_zone_of_a_write_does_not_change_later_queries(
    server: Server, flight_sql: FlightSql
) -> None:
    """Writes and plain queries of all sessions share connections."""
    flight_sql.query("CREATE TABLE zoned (t TIMESTAMPTZ)")
    flight_sql.query("SET TimeZone = 'America/New_York'")
    flight_sql.query("INSERT INTO zoned VALUES ('2024-01-01 00:00:00+00')")
    flight_sql.query("SET TimeZone = 'UTC'")
    flight_sql.query("INSERT INTO zoned VALUES ('2024-01-01 00:00:00+00')")
    flight_sql.query("DROP TABLE zoned")
    other = FlightSql(server.url)
    try:
        schema = run_prepared(other, "SELECT NULL::TIMESTAMPTZ AS t WHERE false").schema
        assert schema.field("t").type.tz == "UTC"
    finally:
        other.close_session()
        other.close()
