"""Readers and writers see and stop what is theirs; admins see and stop everything."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.contenders import BackgroundCall
from tests.flight import FlightSql
from tests.integration.access.test_statements import CALLERS
from tests.queries import ENDLESS_QUERY
from tests.waiting import eventually

FlightAs = Callable[..., FlightSql]

#: Each with the column that says whose the row is.
FUNCTIONS = (
    "swanlake_queries",
    "swanlake_recent_queries",
    "swanlake_errors",
    "swanlake_slow_queries",
    "swanlake_sessions",
)
SECRET = "SELECT 'the secret of the admin'"


def users(connection: FlightSql, sql: str) -> set[str]:
    return set(connection.query(sql)["user"].to_pylist())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("caller", ["reader", "writer", "seller", "guest"])
@pytest.mark.parametrize("form", ["CALL {}()", "SELECT * FROM {}()", "FROM {}() AS x"])
def test_others_are_not_shown(flight_as: FlightAs, caller: str, function: str, form: str) -> None:
    admin, other = flight_as("admin"), flight_as(CALLERS[caller])
    admin.query(SECRET)
    with pytest.raises(pa.ArrowException):
        admin.query("SELECT the_secret_of_the_admin")
    shown = other.query(form.format(function))
    assert set(shown["user"].to_pylist()) <= {CALLERS[caller]}
    assert "secret of the admin" not in str(shown.to_pydict())
    assert "admin" in users(admin, "FROM swanlake_recent_queries()")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TEMP TABLE stolen AS FROM swanlake_recent_queries()",
        "CREATE TEMP MACRO swanlake_queries() AS TABLE SELECT 1 AS i",
    ],
)
def test_temporary_objects_show_no_more(flight_as: FlightAs, sql: str) -> None:
    flight_as("admin").query(SECRET)
    reader = flight_as("reader", x_swanlake_session_id=f"temporary-{len(sql)}")
    reader.query(sql)
    assert "secret of the admin" not in str(reader.query("FROM swanlake_recent_queries()"))
    if "stolen" in sql:
        assert users(reader, "FROM stolen") <= {"reader"}


@pytest.mark.parametrize(
    "sql",
    [
        "FROM swanlake_settings()",
        "CALL swanlake_settings()",
        "SELECT (SELECT max(value) FROM swanlake_settings())",
    ],
)
@pytest.mark.parametrize("caller", ["reader", "writer", "guest"])
def test_settings_are_for_admins(flight_as: FlightAs, caller: str, sql: str) -> None:
    with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
        flight_as(CALLERS[caller]).query(sql)


@pytest.mark.parametrize("caller", ["reader", "writer", "guest"])
def test_statement_of_another_user_is_not_stopped(flight_as: FlightAs, caller: str) -> None:
    owner = flight_as("admin", x_swanlake_session_id="mine")
    attacker = flight_as(CALLERS[caller])
    name = f"endless-{caller}"
    call = BackgroundCall(lambda: owner.query(ENDLESS_QUERY, x_swanlake_query_id=name))
    listed = f"FROM swanlake_queries() WHERE query_id = '{name}'"
    eventually(lambda: owner_of(flight_as("admin"), listed))
    assert not owner_of(attacker, listed)
    for sql in (
        f"KILL QUERY '{name}'",
        f"CALL swanlake_kill_query('{name}')",
        "KILL SESSION 'mine'",
        "CALL swanlake_kill_session('mine', 'admin')",
        "CALL swanlake_kill_session(\"user\" => 'admin', id => 'mine')",
    ):
        with pytest.raises(pa.ArrowKeyError, match="NOT_FOUND"):
            attacker.query(sql)
    assert call.is_running
    flight_as("admin").query(f"KILL QUERY '{name}'")
    assert isinstance(call.join().error, flight.FlightCancelledError)


def owner_of(connection: FlightSql, sql: str) -> list[str]:
    owners: list[str] = connection.query(sql)["user"].to_pylist()
    return owners


def test_admin_stops_the_statement_and_the_session_of_a_reader(flight_as: FlightAs) -> None:
    reader = flight_as("reader", x_swanlake_session_id="of-a-reader")
    admin = flight_as("admin")
    call = BackgroundCall(lambda: reader.query(ENDLESS_QUERY, x_swanlake_query_id="of-reader"))
    eventually(lambda: owner_of(admin, "FROM swanlake_queries() WHERE query_id = 'of-reader'"))
    admin.query("KILL QUERY 'of-reader'")
    assert "cancelled by admin" in str(call.join().error)
    assert reader.query("SELECT 1 AS i")["i"].to_pylist() == [1]
    admin.query("KILL SESSION 'of-a-reader'")
    listed = "FROM swanlake_sessions() WHERE session_id = 'of-a-reader'"
    assert not owner_of(admin, listed)


def test_reader_stops_its_own_statement(flight_as: FlightAs) -> None:
    busy = flight_as("reader", x_swanlake_session_id="busy")
    other = flight_as("reader", x_swanlake_session_id="other")
    call = BackgroundCall(lambda: busy.query(ENDLESS_QUERY, x_swanlake_query_id="own"))
    eventually(lambda: owner_of(other, "FROM swanlake_queries() WHERE query_id = 'own'"))
    other.query("KILL QUERY 'own'")
    assert isinstance(call.join().error, flight.FlightCancelledError)


@pytest.mark.parametrize("caller", ["seller", "guest"])
def test_locks_and_flushes_of_hidden_catalogs_are_not_shown(
    flight_as: FlightAs, caller: str
) -> None:
    admin = flight_as("admin", x_swanlake_session_id="flusher")
    admin.query("INSERT INTO duckling_queue.t VALUES (1)")
    admin.query("CALL duckling_queue_flush()")
    assert "swanlake" in admin.query("FROM swanlake_flushes()")["catalog_name"].to_pylist()
    shown = flight_as(CALLERS[caller]).query("FROM swanlake_flushes()")
    assert "hr" not in shown["catalog_name"].to_pylist()
    if caller == "guest":
        assert "swanlake" not in shown["catalog_name"].to_pylist()
