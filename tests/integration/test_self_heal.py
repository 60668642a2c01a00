"""After a fatal DuckDB error the server opens a new engine; only running statements fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.config import Settings
from swanlake.engine import instance
from swanlake.engine.database import open_database
from swanlake.protocol import messages
from swanlake.server.app import Server
from tests.contenders import BackgroundCall
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY, waiting_query
from tests.stock_duckdb import stock_duckdb
from tests.waiting import eventually

Open = Callable[..., FlightSql]

#: DuckDB's debug option for a failing checkpoint. It invalidates the instance, but only on the
#: database the instance was opened with, so the first engine is opened on a file.
FATAL = "SET debug_checkpoint_abort = 'before_truncate'; FORCE CHECKPOINT breakable"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in this process whose first engine can be broken by SQL."""
    in_memory = open_database

    def breakable(*limits: object) -> duckdb.DuckDBPyConnection:
        monkeypatch.setattr(instance, "open_database", in_memory)
        return stock_duckdb(tmp_path / "breakable.db")

    monkeypatch.setattr(instance, "open_database", breakable)
    server = Server(Settings(home=tmp_path / "home", port=0, status="off", pipeline="inline"))
    yield server
    server.stop(grace=0)


@pytest.fixture
def open_flight(server: Server) -> Iterator[Open]:
    opened: list[FlightSql] = []

    def open_flight(**headers: str) -> FlightSql:
        opened.append(FlightSql(server.url, **headers))
        return opened[-1]

    yield open_flight
    for connection in opened:
        connection.close()


def break_engine(connection: FlightSql) -> None:
    connection.query("CREATE TABLE breakable.main.t AS SELECT 1 AS i")
    with pytest.raises(flight.FlightInternalError, match="FATAL_ERROR"):
        connection.query(FATAL)


def test_sessions_keep_their_settings(open_flight: Open) -> None:
    breaker, idle = open_flight(), open_flight()
    idle.query("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 1 AS i; USE swanlake.s")
    idle.query("SET VARIABLE answer = 42")
    break_engine(breaker)
    rows = idle.query("SELECT i, getvariable('answer') AS v FROM t")
    assert rows.to_pylist() == [{"i": 1, "v": 42}]
    assert breaker.query("SELECT 1").num_rows == 1


def test_sessions_keep_their_current_catalog(open_flight: Open) -> None:
    breaker, idle = open_flight(), open_flight()
    idle.query("CALL swanlake_create_catalog('other')")
    idle.query("USE other; CREATE TABLE t AS SELECT 1 AS i")
    break_engine(breaker)
    assert idle.query("FROM t").num_rows == 1


def test_session_that_lost_state_gets_one_error(open_flight: Open) -> None:
    breaker, temporary, transaction = open_flight(), open_flight(), open_flight()
    temporary.query("CREATE TEMP TABLE t AS SELECT 1 AS i")
    transaction.query("CREATE TABLE in_tx (i INTEGER)")
    transaction.query("BEGIN; INSERT INTO in_tx VALUES (1)")
    break_engine(breaker)
    with pytest.raises(pa.ArrowKeyError, match=r"SESSION_LOST.*temporary objects"):
        temporary.query("SELECT 1")
    assert temporary.query("SELECT 1").num_rows == 1
    with pytest.raises(pa.ArrowKeyError, match=r"SESSION_LOST.*transaction"):
        transaction.query("COMMIT")
    assert transaction.query("FROM in_tx").num_rows == 0


def test_running_statement_fails_and_its_session_recovers(
    open_flight: Open, server: Server, tmp_path: Path
) -> None:
    breaker, running = open_flight(), open_flight()
    pipe = tmp_path / "pipe"
    sql = waiting_query(pipe)
    statement = BackgroundCall(lambda: running.query(sql))
    eventually(lambda: server.registry.watchdog.running())
    break_engine(breaker)
    pipe.write_text("1\n")
    assert "FATAL_ERROR" in str(statement.join().error)
    assert running.query("SELECT 1").num_rows == 1


def test_endless_statement_on_the_broken_engine_is_stopped(
    open_flight: Open, server: Server
) -> None:
    breaker, running = open_flight(), open_flight()
    statement = BackgroundCall(lambda: running.query(ENDLESS_QUERY))
    eventually(lambda: server.registry.watchdog.running())
    break_engine(breaker)
    assert "FATAL_ERROR" in str(statement.join().error)
    assert running.query("SELECT 1").num_rows == 1


def test_result_of_the_broken_engine_ends_with_an_error(open_flight: Open) -> None:
    breaker, reading = open_flight(), open_flight()
    command = messages.CommandStatementQuery(query="FROM range(100_000_000)")
    result = reading.fetch(reading.info(command))
    break_engine(breaker)
    with pytest.raises(flight.FlightInternalError, match="FATAL_ERROR"):
        result.read_all()


def test_prepared_statement_survives_the_engine(open_flight: Open) -> None:
    breaker, connection = open_flight(), open_flight()
    request = messages.ActionCreatePreparedStatementRequest(query="SELECT 7 AS i")
    handle = connection.action_result("CreatePreparedStatement", request).prepared_statement_handle
    break_engine(breaker)
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    assert connection.fetch(connection.info(command)).read_all()["i"].to_pylist() == [7]


def test_session_in_a_lost_database_gets_an_error(open_flight: Open) -> None:
    breaker, connection = open_flight(), open_flight()
    connection.query("ATTACH ':memory:' AS passing; USE passing")
    break_engine(breaker)
    with pytest.raises(pa.ArrowKeyError, match=r"SESSION_LOST.*attached databases.*use"):
        connection.query("SELECT 1")
    current = connection.query("SELECT current_catalog() AS c")
    assert current["c"].to_pylist() == ["swanlake"]
