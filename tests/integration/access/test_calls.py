"""Calls other than statements: ingestion, metadata, options, handles, cancellation, status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.integration.access.test_statements import CALLERS

ROWS = pa.table({"i": pa.array([5], pa.int32())})


@pytest.mark.parametrize("mode", ["append", "create", "replace", "create_append"])
@pytest.mark.parametrize(
    ("caller", "catalog", "is_allowed"),
    [
        ("writer", "sales", True),
        ("seller", "sales", True),
        ("reader", "sales", False),
        ("guest", "sales", False),
        ("seller", "swanlake", False),
        ("seller", "hr", False),
        ("seller", "__ducklake_metadata_sales", False),
        ("admin", "__ducklake_metadata_sales", False),
    ],
)
def test_ingestion_needs_the_privilege_to_write(
    connect_as: Callable[[str], Any], caller: str, catalog: str, is_allowed: bool, mode: str
) -> None:
    table = f"ingested_{caller}_{mode}"
    connection = connect_as(CALLERS[caller])
    options = {"catalog_name": catalog, "db_schema_name": "main"}
    with connection.cursor() as cursor:
        if is_allowed:
            first = "create" if mode in ("append", "replace") else mode
            assert cursor.adbc_ingest(table, ROWS, first, **options) == 1
            if mode != "create":
                assert cursor.adbc_ingest(table, ROWS, mode, **options) == 1
            return
        with pytest.raises(adbc.Error, match="ACCESS_DENIED"):
            cursor.adbc_ingest(table, ROWS, mode, **options)


def test_ingestion_into_the_queue_needs_the_privilege_to_write(
    connect_as: Callable[[str], Any],
) -> None:
    with (
        connect_as(CALLERS["seller"]).cursor() as cursor,
        pytest.raises(adbc.Error, match="ACCESS_DENIED"),
    ):
        cursor.adbc_ingest("t", ROWS, "append", catalog_name="duckling_queue")


def test_reader_ingests_into_temporary_tables(connect_as: Callable[[str], Any]) -> None:
    with connect_as("reader").cursor() as cursor:
        assert cursor.adbc_ingest("uploaded", ROWS, "create", temporary=True) == 1
        cursor.execute("FROM temp.uploaded")
        assert cursor.fetchall() == [(5,)]


def listed(connection: FlightSql) -> list[set[str]]:
    """The catalogs that the metadata commands name."""
    tables = connection.metadata(messages.CommandGetTables(include_schema=True))
    schemas = connection.metadata(messages.CommandGetDbSchemas())
    catalogs = connection.metadata(messages.CommandGetCatalogs())
    return [set(found["catalog_name"].to_pylist()) for found in (tables, schemas, catalogs)]


@pytest.mark.parametrize(
    ("caller", "hidden"),
    [
        ("admin", set[str]()),
        ("reader", set[str]()),
        ("seller", {"hr"}),
        ("guest", {"hr", "swanlake"}),
    ],
)
def test_metadata_shows_what_the_caller_may_read(
    flight_as: Callable[..., FlightSql], caller: str, hidden: set[str]
) -> None:
    all_catalogs = {"swanlake", "sales", "hr"}
    connection = flight_as(CALLERS[caller])
    for shown in listed(connection):
        assert shown & all_catalogs == all_catalogs - hidden
    of_one = messages.CommandGetTables(catalog="hr")
    assert bool(connection.metadata(of_one).num_rows) is ("hr" not in hidden)
    for sql in (
        "SELECT database_name FROM duckdb_tables()",
        "SELECT table_catalog FROM information_schema.columns",
        "SHOW ALL TABLES",
        "SHOW DATABASES",
    ):
        shown = set(connection.query(sql).column(0).to_pylist())
        assert not shown & hidden
        assert "sales" in shown
    named = connection.query("CALL swanlake_catalogs()")["catalog_name"].to_pylist()
    assert set(named) & all_catalogs == all_catalogs - hidden


def test_session_options_change_the_session_only(flight_as: Callable[..., FlightSql]) -> None:
    connection = flight_as("reader")

    def set_option(name: str, value: str) -> bool:
        request = messages.SetSessionOptionsRequest()
        request.session_options[name].string_value = value
        [answer] = connection.action("SetSessionOptions", request, bare=True)
        return not messages.SetSessionOptionsResult.FromString(answer).errors

    assert set_option("TimeZone", "UTC")
    assert set_option("catalog", "sales")
    assert set_option("catalog", "memory")
    assert not set_option("threads", "1")
    assert not set_option("memory_limit", "1GB")
    assert not set_option("enable_external_access", "false")
    assert not set_option("catalog", "__ducklake_metadata_sales")


def test_handles_belong_to_one_identity(flight_as: Callable[..., FlightSql]) -> None:
    owner = flight_as("admin", x_swanlake_session_id="same")
    other = flight_as("reader", x_swanlake_session_id="same")
    create = messages.ActionCreatePreparedStatementRequest(query="SELECT 1")
    prepared = owner.action_result("CreatePreparedStatement", create).prepared_statement_handle
    with pytest.raises(pa.ArrowKeyError, match="STATEMENT_NOT_FOUND"):
        other.info(messages.CommandPreparedStatementQuery(prepared_statement_handle=prepared))
    info = owner.execute("SELECT 1")
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        other.fetch(info)
    transaction = owner.begin()
    with pytest.raises(pa.ArrowKeyError, match="TRANSACTION_NOT_FOUND"):
        other.query("SELECT 1", transaction)
    with pytest.raises(pa.ArrowKeyError, match="TRANSACTION_NOT_FOUND"):
        other.end(transaction, commit=True)
    request = messages.CancelFlightInfoRequest(info=info.serialize())
    [answer] = other.action("CancelFlightInfo", request, bare=True)
    status = messages.CancelFlightInfoResult.FromString(answer).status
    assert status == messages.CancelFlightInfoResult.CANCEL_STATUS_NOT_CANCELLABLE
    owner.end(transaction, commit=False)
    assert owner.fetch(info).read_all().num_rows == 1


def test_status_of_other_callers_is_for_admins(flight_as: Callable[..., FlightSql]) -> None:
    status = flight_as("reader").status()
    assert set(status) == {"version", "state", "health"}
    assert not any("detail" in check for check in status["health"]["checks"])
    assert flight_as("admin").status().keys() >= {"version", "state", "sessions", "writers"}


def test_denied_statement_leaves_the_session_usable(flight_as: Callable[..., FlightSql]) -> None:
    connection = flight_as("reader", x_swanlake_session_id="after")
    transaction = connection.begin()
    with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
        connection.query("INSERT INTO sales.main.s VALUES (1)", transaction)
    assert connection.query("SELECT 1 AS one", transaction)["one"].to_pylist() == [1]
    connection.end(transaction, commit=True)
