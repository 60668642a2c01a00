"""The DB-API without a server: module globals, types, errors and parameters."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import swanlake
from swanlake import dbapi, errors
from swanlake.client.transport.errors import error_from_wire
from swanlake.client.transport.parameters import table_from_rows
from swanlake.errors import InvalidRequest, QueryError, SwanLakeError


def test_module_globals_of_pep_249() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "qmark")
    assert swanlake.dbapi is dbapi
    for name in dbapi.__all__:
        assert hasattr(dbapi, name)


def test_exceptions_form_the_pep_249_tree() -> None:
    assert dbapi.Error is SwanLakeError
    assert issubclass(dbapi.InterfaceError, dbapi.Error)
    assert not issubclass(dbapi.InterfaceError, dbapi.DatabaseError)
    for kind in (
        dbapi.DataError,
        dbapi.OperationalError,
        dbapi.IntegrityError,
        dbapi.InternalError,
        dbapi.ProgrammingError,
        dbapi.NotSupportedError,
    ):
        assert issubclass(kind, dbapi.DatabaseError)


@pytest.mark.parametrize(
    ("identifier", "wire", "kind"),
    [
        ("PARSER_ERROR", pa.ArrowInvalid, dbapi.ProgrammingError),
        ("BINDER_ERROR", pa.ArrowInvalid, dbapi.ProgrammingError),
        ("CATALOG_ERROR", pa.ArrowKeyError, dbapi.ProgrammingError),
        ("TABLE_NOT_FOUND", pa.ArrowKeyError, dbapi.ProgrammingError),
        ("SCHEMA_NOT_EMPTY", pa.ArrowInvalid, dbapi.ProgrammingError),
        ("CATALOG_IN_USE", flight.FlightUnauthorizedError, dbapi.ProgrammingError),
        ("ALREADY_EXISTS", pa.ArrowInvalid, dbapi.ProgrammingError),
        ("CONSTRAINT_ERROR", pa.ArrowInvalid, dbapi.IntegrityError),
        ("CONVERSION_ERROR", pa.ArrowInvalid, dbapi.DataError),
        ("OUT_OF_RANGE_ERROR", pa.ArrowInvalid, dbapi.DataError),
        ("NOT_IMPLEMENTED_ERROR", pa.ArrowNotImplementedError, dbapi.NotSupportedError),
        ("NOT_SUPPORTED", pa.ArrowNotImplementedError, dbapi.NotSupportedError),
        ("INTERNAL_ERROR", flight.FlightInternalError, dbapi.InternalError),
        ("TRANSACTION_ABORTED", pa.ArrowInvalid, dbapi.InternalError),
        ("IO_ERROR", flight.FlightInternalError, dbapi.OperationalError),
        ("QUERY_CANCELLED", flight.FlightCancelledError, dbapi.OperationalError),
        ("QUERY_TIMEOUT", flight.FlightTimedOutError, dbapi.OperationalError),
        ("SESSION_LOST", pa.ArrowKeyError, dbapi.OperationalError),
        ("COMMIT_CONFLICT", flight.FlightUnavailableError, dbapi.OperationalError),
        ("SERVER_DRAINING", flight.FlightUnavailableError, dbapi.OperationalError),
        ("UNAUTHENTICATED", flight.FlightUnauthenticatedError, dbapi.OperationalError),
        ("SOMETHING_NEW", flight.FlightInternalError, dbapi.DatabaseError),
    ],
)
def test_wire_error_has_pep_249_class(
    identifier: str, wire: Any, kind: type[SwanLakeError]
) -> None:
    error = error_from_wire(wire(f"{identifier}: It went wrong."))
    assert isinstance(error, kind)
    assert (error.identifier, error.message) == (identifier, "It went wrong.")


def test_engine_errors_are_query_errors() -> None:
    for identifier in ("BINDER_ERROR", "CONSTRAINT_ERROR", "CONVERSION_ERROR", "IO_ERROR"):
        assert isinstance(error_from_wire(pa.ArrowInvalid(f"{identifier}: No.")), QueryError)


def test_client_errors_are_interface_errors() -> None:
    for kind in (errors.ClientClosed, errors.ForkedProcess, errors.ConfigError):
        assert issubclass(kind, dbapi.InterfaceError)
    for lost in (errors.ServerUnreachable, errors.ConnectionLost, errors.PoolTimeout):
        assert issubclass(lost, dbapi.OperationalError)


def test_type_code_equals_its_type_object() -> None:
    families = {
        dbapi.STRING: [pa.string()],
        dbapi.BINARY: [pa.binary()],
        dbapi.NUMBER: [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(10, 2), pa.bool_()],
        dbapi.DATETIME: [pa.date32(), pa.time64("us"), pa.timestamp("us", "UTC")],
        dbapi.ROWID: [],
    }
    for family, kinds in families.items():
        for kind in kinds:
            assert [member for member in families if kind == member] == [family]
            assert [member for member in families if member == kind] == [family]
    assert dbapi.STRING != "STRING"


def test_constructors_make_parameter_values() -> None:
    moment = 1_600_000_000.5
    assert dbapi.Date(2020, 1, 2) == dt.date(2020, 1, 2)
    assert dbapi.Time(1, 2, 3) == dt.time(1, 2, 3)
    assert dbapi.Timestamp(2020, 1, 2, 3, 4, 5) == dt.datetime(2020, 1, 2, 3, 4, 5)
    assert dbapi.Binary(b"x") == b"x"
    here = dt.datetime.fromtimestamp(moment)
    assert dbapi.TimestampFromTicks(moment) == here
    assert dbapi.DateFromTicks(moment) == here.date()
    assert dbapi.TimeFromTicks(moment) == here.time()


def test_table_from_sequences() -> None:
    name = uuid.uuid4()
    rows = [(1, Decimal("1.5"), name, None), (2**70, Decimal("2.25"), None, None)]
    table = table_from_rows(rows)
    assert table is not None
    assert table.column_names == ["1", "2", "3", "4"]
    assert table.to_pylist()[0] == {"1": 1, "2": Decimal("1.50"), "3": str(name), "4": None}
    assert table["1"].to_pylist() == [1, 2**70]


def test_floats_next_to_decimals_keep_their_digits() -> None:
    table = table_from_rows([(Decimal("0.25"),), (0.1,), (3,), (None,)])
    assert table is not None
    assert table["1"].to_pylist() == [Decimal("0.25"), Decimal("0.10"), Decimal("3.00"), None]


def test_days_of_a_timedelta_are_apart_from_its_time() -> None:
    table = table_from_rows([(dt.timedelta(days=103, microseconds=4),), (None,)])
    assert table is not None
    assert table["1"].to_pylist() == [pa.MonthDayNano([0, 103, 4_000]), None]


def test_table_from_dicts_ignores_key_order() -> None:
    table = table_from_rows([{"a": 1, "b": "x"}, {"b": "y", "a": 2}])
    assert table is not None
    assert table.to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(1, 2), (3,)], "not all of one length"),
        ([{"a": 1}, {"b": 1}], r"\$a"),
        ([{"a": 1}, (1,)], r"\$a"),
        ([(1,), {"a": 1}], "not dict"),
        (["text"], "put a single value in a list"),
        ([5], "not int"),
        ([(1,), ("x",)], r"parameter 1 \(int, str\)"),
        ([(object(),)], r"parameter 1 \(object\)"),
    ],
)
def test_uneven_rows_are_refused(rows: list[Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        table_from_rows(rows)


def test_rows_without_columns_give_no_table() -> None:
    assert table_from_rows([(), ()]) is None
