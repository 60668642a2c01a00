"""PEP 249 without a server: the module, its types, its errors, and rows on their way into Arrow."""

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
from swanlake.client.from_wire import error_from_wire
from swanlake.client.parameters import table_of
from swanlake.errors import InvalidRequest, QueryError, SwanLakeError


def test_the_module_says_what_it_is() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "qmark")
    assert swanlake.dbapi is dbapi
    for name in dbapi.__all__:
        assert hasattr(dbapi, name)


def test_there_is_one_tree_and_it_is_that_of_pep_249() -> None:
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
def test_an_error_from_the_wire_is_of_the_kind_that_pep_249_says(
    identifier: str, wire: Any, kind: type[SwanLakeError]
) -> None:
    error = error_from_wire(wire(f"{identifier}: It went wrong."))
    assert isinstance(error, kind)
    assert (error.identifier, error.message) == (identifier, "It went wrong.")


def test_what_the_engine_refuses_is_a_query_error_of_some_kind() -> None:
    for identifier in ("BINDER_ERROR", "CONSTRAINT_ERROR", "CONVERSION_ERROR", "IO_ERROR"):
        assert isinstance(error_from_wire(pa.ArrowInvalid(f"{identifier}: No.")), QueryError)


def test_errors_of_the_client_alone_are_interface_errors() -> None:
    for kind in (errors.ClientClosed, errors.ForkedProcess, errors.ConfigError):
        assert issubclass(kind, dbapi.InterfaceError)
    for lost in (errors.ServerUnreachable, errors.ConnectionLost, errors.PoolTimeout):
        assert issubclass(lost, dbapi.OperationalError)


def test_a_type_code_equals_the_type_object_of_its_family() -> None:
    families = {
        dbapi.STRING: [pa.string()],
        dbapi.BINARY: [pa.binary()],
        dbapi.NUMBER: [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(10, 2), pa.bool_()],
        dbapi.DATETIME: [pa.date32(), pa.time64("us"), pa.timestamp("us", "UTC")],
        dbapi.ROWID: [],
    }
    for family, kinds in families.items():
        for kind in kinds:
            assert [one for one in families if kind == one] == [family]
            assert [one for one in families if one == kind] == [family]
    assert dbapi.STRING != "STRING"


def test_the_constructors_make_what_a_parameter_can_be() -> None:
    moment = 1_600_000_000.5
    assert dbapi.Date(2020, 1, 2) == dt.date(2020, 1, 2)
    assert dbapi.Time(1, 2, 3) == dt.time(1, 2, 3)
    assert dbapi.Timestamp(2020, 1, 2, 3, 4, 5) == dt.datetime(2020, 1, 2, 3, 4, 5)
    assert dbapi.Binary(b"x") == b"x"
    here = dt.datetime.fromtimestamp(moment)
    assert dbapi.TimestampFromTicks(moment) == here
    assert dbapi.DateFromTicks(moment) == here.date()
    assert dbapi.TimeFromTicks(moment) == here.time()


def test_rows_of_values_are_one_table() -> None:
    name = uuid.uuid4()
    rows = [(1, Decimal("1.5"), name, None), (2**70, Decimal("2.25"), None, None)]
    table = table_of(rows)
    assert table is not None
    assert table.column_names == ["1", "2", "3", "4"]
    assert table.to_pylist()[0] == {"1": 1, "2": Decimal("1.50"), "3": str(name), "4": None}
    assert table["1"].to_pylist() == [1, 2**70]


def test_rows_of_names_may_be_in_any_order() -> None:
    table = table_of([{"a": 1, "b": "x"}, {"b": "y", "a": 2}])
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
def test_rows_that_make_no_table_are_a_programming_error(rows: list[Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        table_of(rows)


def test_rows_without_values_are_no_table() -> None:
    assert table_of([(), ()]) is None
