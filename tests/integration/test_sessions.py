"""Sessions: identity, state, options, limits and expiry."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import Actions, messages
from tests.contenders import BackgroundCall
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess
from tests.waiting import eventually

Open = Callable[..., FlightSql]


def test_each_connection_has_its_own_session(flight_sql: Open) -> None:
    first, second = flight_sql(), flight_sql()
    first.query("CREATE TEMP TABLE private AS SELECT 1 AS i")
    assert first.query("FROM private").num_rows == 1
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        second.query("FROM private")


def test_named_session_is_shared_by_connections(flight_sql: Open) -> None:
    name = str(uuid.uuid4())
    flight_sql(x_swanlake_session_id=name).query("CREATE TEMP TABLE shared AS SELECT 7 AS i")
    again = flight_sql(x_swanlake_session_id=name, x_swanlake_session_resume="1")
    assert again.query("FROM shared")["i"].to_pylist() == [7]


def test_session_id_header_cannot_name_a_connections_session(
    server: ServerProcess, flight_sql: Open
) -> None:
    victim = flight_sql()
    victim.query("CREATE TEMP TABLE private AS SELECT 1 AS i")
    ports = {
        connection.laddr.port
        for connection in psutil.Process().net_connections(kind="tcp")
        if connection.raddr and connection.raddr.port == server.port
    }
    for port in ports:
        attacker = flight_sql(x_swanlake_session_id=f"127.0.0.1:{port}")
        with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
            attacker.query("FROM private")


def test_resuming_an_unknown_session_fails(flight_sql: Open) -> None:
    lost = flight_sql(x_swanlake_session_id=str(uuid.uuid4()), x_swanlake_session_resume="1")
    with pytest.raises(pa.ArrowKeyError, match="SESSION_LOST"):
        lost.query("SELECT 1")


def test_concurrent_first_requests_create_one_session(flight_sql: Open) -> None:
    before = flight_sql().status()["sessions"]["created"]
    name = str(uuid.uuid4())
    connections = [flight_sql(x_swanlake_session_id=name) for _ in range(8)]
    barrier = threading.Barrier(len(connections))
    failures: list[Exception] = []

    def use(connection: FlightSql) -> None:
        try:
            barrier.wait()
            connection.query("SELECT 1")
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=use, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert flight_sql().status()["sessions"]["created"] == before + 1


def test_close_session_drops_its_state(flight_sql: Open) -> None:
    connection = flight_sql(x_swanlake_session_id=str(uuid.uuid4()))
    connection.query("CREATE TEMP TABLE gone AS SELECT 1 AS i")
    connection.close_session()
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        connection.query("FROM gone")


def test_close_session_drops_its_results(flight_sql: Open) -> None:
    connection = flight_sql(x_swanlake_session_id=str(uuid.uuid4()))
    info = connection.execute("SELECT 1")
    connection.close_session()
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info).read_all()


def test_result_can_be_fetched_only_once(flight_sql: Open) -> None:
    connection = flight_sql()
    info = connection.execute("SELECT 1 AS i")
    assert connection.fetch(info).read_all()["i"].to_pylist() == [1]
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info).read_all()


def test_schema_settings_and_variables_are_per_session(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE SCHEMA IF NOT EXISTS session_schema")
    connection.query("USE swanlake.session_schema")
    connection.query("SET VARIABLE answer = 42")
    connection.query("SET SESSION default_null_order = 'nulls_first'")
    location = "SELECT current_schema() AS s, getvariable('answer') AS v"
    assert connection.query(location).to_pylist() == [{"s": "session_schema", "v": 42}]
    assert other.query(location).to_pylist() == [{"s": "main", "v": None}]


def test_session_limit_is_an_error_that_names_the_setting(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--max-sessions", "2")
    first, second, third = (flight_sql(server.url) for _ in range(3))
    first.query("SELECT 1")
    second.query("SELECT 1")
    with pytest.raises(
        flight.FlightUnavailableError, match=r"SESSION_LIMIT_REACHED.* 2 .*max_sessions"
    ):
        third.query("SELECT 1")
    first.close_session()
    assert third.query("SELECT 1").num_rows == 1


def test_session_limit_closes_sessions_of_closed_connections(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--max-sessions", "3")
    for _ in range(20):
        connection = FlightSql(server.url)
        connection.query("SELECT 1")
        connection.close()  # without CloseSession: the server only sees the disconnect
    status = flight_sql(server.url).status()["sessions"]
    assert status["created"] == 20
    assert status["active"] <= 3
    assert status["closed"]["disconnected"] >= 17


def test_idle_sessions_expire_and_busy_ones_do_not(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--session-timeout-seconds", "0.3", "--session-sweep-seconds", "0.1")
    observer, busy = flight_sql(server.url), flight_sql(server.url, x_swanlake_session_id="busy")
    running = BackgroundCall(lambda: busy.query(ENDLESS_QUERY, x_swanlake_query_id="endless"))
    eventually(lambda: observer.status()["statements_running"])
    # Sessions that were opened after the busy one expire, so the busy one has outlived its time.
    for number in (1, 2):
        idle = flight_sql(server.url, x_swanlake_session_id=f"idle{number}")
        idle.query("CREATE TEMP TABLE t AS SELECT 1")
        eventually(lambda: observer.status()["sessions"]["closed"] == {"idle": number})  # noqa: B023
        resumed = flight_sql(
            server.url, x_swanlake_session_id=f"idle{number}", x_swanlake_session_resume="1"
        )
        with pytest.raises(pa.ArrowKeyError, match="SESSION_LOST"):
            resumed.query("SELECT 1")
    assert observer.status()["sessions"]["active"] == 1
    request = messages.ActionCancelByQueryIdRequest(query_id="endless")
    observer.action(Actions.CANCEL_BY_QUERY_ID, request)
    assert "QUERY_CANCELLED" in str(running.join().error)


def test_status_counts_open_and_closed_sessions(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server()
    connection = flight_sql(server.url)
    connection.query("SELECT 1")
    status = connection.status()
    assert (status["sessions"]["active"], status["sessions"]["created"]) == (1, 1)
    connection.close_session()
    sessions = connection.status()["sessions"]
    assert sessions["active"] == 0
    assert sessions["closed"] == {"closed by client": 1}
    assert sessions["lifetime_seconds_max"] > 0


def set_options(connection: FlightSql, **options: Any) -> dict[str, int]:
    request = messages.SetSessionOptionsRequest()
    for name, value in options.items():
        field = {str: "string_value", bool: "bool_value", int: "int64_value", float: "double_value"}
        if value is None:
            request.session_options[name].CopyFrom(messages.SessionOptionValue())
        else:
            setattr(request.session_options[name], field[type(value)], value)
    (answer,) = connection.action("SetSessionOptions", request, bare=True)
    errors = messages.SetSessionOptionsResult.FromString(answer).errors
    return {name: error.value for name, error in errors.items()}


def get_options(connection: FlightSql) -> dict[str, Any]:
    request = messages.GetSessionOptionsRequest()
    (answer,) = connection.action("GetSessionOptions", request, bare=True)
    options = messages.GetSessionOptionsResult.FromString(answer).session_options
    return {
        name: getattr(option, option.WhichOneof("option_value") or "string_value")
        for name, option in options.items()
    }


def test_session_options_set_catalog_schema_and_settings(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("CREATE SCHEMA IF NOT EXISTS option_schema")
    assert set_options(connection, schema="option_schema", query_timeout_seconds=30.0) == {}
    assert set_options(connection, preserve_insertion_order=False) == {}
    assert get_options(connection) == {
        "catalog": "swanlake",
        "schema": "option_schema",
        "query_timeout_seconds": 30.0,
        "preserve_insertion_order": False,
    }
    assert set_options(connection, catalog="memory") == {}
    assert get_options(connection)["catalog"] == "memory"


def test_invalid_session_options_are_reported_and_valid_ones_set(flight_sql: Open) -> None:
    connection = flight_sql()
    result = messages.SetSessionOptionsResult
    errors = set_options(
        connection,
        no_such_setting="x",
        default_null_order="sideways",
        catalog="no_such_catalog",
        query_timeout_seconds=5,
    )
    assert errors == {
        "no_such_setting": result.INVALID_NAME,
        "default_null_order": result.INVALID_VALUE,
        "catalog": result.INVALID_VALUE,
    }
    assert get_options(connection)["query_timeout_seconds"] == 5.0
    assert get_options(connection)["catalog"] == "swanlake"


def test_stock_adbc_sets_catalog_and_schema(connect: Callable[..., Any]) -> None:
    connection = connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS adbc_schema")
        connection.adbc_current_db_schema = "adbc_schema"
        assert connection.adbc_current_catalog == "swanlake"
        cursor.execute("SELECT current_schema()")
        assert cursor.fetchone() == ("adbc_schema",)


def test_isolated_instances_share_only_the_lake(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--session-isolation", "instance", "--warm-instances", "1")
    first, second = flight_sql(server.url), flight_sql(server.url)
    first.query("CREATE TABLE lake_table AS SELECT 5 AS i")
    first.query("CREATE TABLE memory.main.own AS SELECT 6 AS i")
    assert second.query("FROM lake_table")["i"].to_pylist() == [5]
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        second.query("FROM memory.main.own")


def test_python_variables_of_the_server_are_not_tables(flight_sql: Open) -> None:
    for name in ("session", "run", "self", "batch", "settings"):
        with pytest.raises(pa.ArrowKeyError, match="does not exist"):
            flight_sql().query(f"SELECT * FROM {name}")


def test_session_cannot_detach_or_replace_the_lake(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    other.query("CREATE OR REPLACE TABLE in_lake AS SELECT 5 AS i")
    connection.query("USE memory")
    for sql in ("DETACH swanlake", 'DETACH "SwanLake"', "ATTACH OR REPLACE ':memory:' AS swanlake"):
        with pytest.raises(flight.FlightUnauthorizedError, match="CATALOG_IN_USE"):
            connection.query(sql)
    connection.query("ATTACH ':memory:' AS passing; DETACH passing")
    for session in (connection, other, flight_sql()):
        assert session.query("FROM swanlake.main.in_lake")["i"].to_pylist() == [5]
