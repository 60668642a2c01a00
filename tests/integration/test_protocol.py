"""Malformed and unsupported requests get an error each, and the server survives them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from google.protobuf.message import Message

from swanlake.protocol import decode, encode, messages
from tests.flight import FlightSql

Open = Callable[..., FlightSql]

COMMANDS: list[Message] = [
    messages.CommandStatementQuery(query="SELECT 1", transaction_id=b"t"),
    messages.CommandStatementUpdate(query="SELECT 1"),
    messages.CommandPreparedStatementQuery(prepared_statement_handle=b"h"),
    messages.CommandPreparedStatementUpdate(prepared_statement_handle=b"h"),
    messages.CommandStatementIngest(table="t", schema="s", catalog="c"),
    messages.CommandGetTables(catalog="c", table_name_filter_pattern="%", include_schema=True),
    messages.CommandGetDbSchemas(catalog="swanlake"),
    messages.CommandGetSqlInfo(info=[1, 2, 3]),
    messages.CommandGetXdbcTypeInfo(data_type=12),
    messages.CommandGetCrossReference(pk_table="a", fk_table="b"),
    messages.TicketStatementQuery(statement_handle=b"0123456789abcdef"),
    messages.ActionCreatePreparedStatementRequest(query="SELECT 1"),
    messages.ActionEndTransactionRequest(transaction_id=b"t"),
    messages.ActionCancelQueryRequest(info=b"info"),
    messages.SetSessionOptionsRequest(
        session_options={"catalog": messages.SessionOptionValue(string_value="swanlake")}
    ),
]

CLEAN_ERRORS = (flight.FlightError, pa.ArrowException)


def test_commands_survive_encoding_and_decoding() -> None:
    for command in COMMANDS:
        assert decode(encode(command)) == command


def test_list_actions_names_every_action(flight_sql: Open) -> None:
    connection = flight_sql()
    names = {action.type for action in connection.client.list_actions(connection.options())}
    assert {
        "CreatePreparedStatement",
        "ClosePreparedStatement",
        "BeginTransaction",
        "EndTransaction",
        "CancelFlightInfo",
        "CancelQuery",
        "SetSessionOptions",
        "GetSessionOptions",
        "CloseSession",
        "swanlake.CancelByQueryId",
        "swanlake.Status",
        "swanlake.StatementTickets",
    } == names


@pytest.mark.parametrize(
    "name", ["NoSuchAction", "BeginSavepoint", "CreatePreparedSubstraitPlan", ""]
)
def test_unknown_action_is_refused(flight_sql: Open, name: str) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="NOT_SUPPORTED"):
        flight_sql().action(name)


def test_path_descriptor_is_refused(flight_sql: Open) -> None:
    connection = flight_sql()
    path = flight.FlightDescriptor.for_path("a", "b")
    with pytest.raises(pa.ArrowInvalid, match="INVALID_REQUEST"):
        connection.client.get_flight_info(path, connection.options())


def test_command_for_another_method_is_refused(flight_sql: Open) -> None:
    connection = flight_sql()
    with pytest.raises(pa.ArrowNotImplementedError, match="NOT_SUPPORTED"):
        connection.info(messages.CommandStatementUpdate(query="SELECT 1"))
    with pytest.raises(pa.ArrowNotImplementedError, match="NOT_SUPPORTED"):
        connection.put(messages.CommandGetCatalogs())
    ticket = flight.Ticket(encode(messages.ActionBeginTransactionRequest()))
    with pytest.raises(pa.ArrowNotImplementedError, match="NOT_SUPPORTED"):
        connection.client.do_get(ticket, connection.options()).read_all()


def test_overlong_session_id_is_refused(flight_sql: Open) -> None:
    with pytest.raises(pa.ArrowInvalid, match="INVALID_REQUEST"):
        flight_sql(x_swanlake_session_id="x" * 1000).query("SELECT 1")


def garbage(generator: random.Random) -> bytes:
    """A message that is random, truncated, mutated or has trailing bytes."""
    whole = encode(generator.choice(COMMANDS))
    match generator.randrange(4):
        case 0:
            return generator.randbytes(generator.randrange(64))
        case 1:
            return whole[: generator.randrange(len(whole))]
        case 2:
            position = generator.randrange(len(whole))
            return whole[:position] + generator.randbytes(1) + whole[position + 1 :]
        case _:
            return whole + generator.randbytes(generator.randrange(1, 8))


def send(connection: FlightSql, generator: random.Random) -> None:
    data = garbage(generator)
    options = connection.options(seconds=30)
    match generator.randrange(5):
        case 0:
            connection.client.get_flight_info(flight.FlightDescriptor.for_command(data), options)
        case 1:
            connection.client.do_get(flight.Ticket(data), options).read_all()
        case 2:
            name = generator.choice(["CreatePreparedStatement", "ClosePreparedStatement",
                                     "EndTransaction", "CancelQuery", "CancelFlightInfo",
                                     "SetSessionOptions", "CloseSession", "GetSessionOptions",
                                     "swanlake.CancelByQueryId"])  # fmt: skip
            list(connection.client.do_action(flight.Action(name, data), options))
        case 3:
            connection.client.get_schema(flight.FlightDescriptor.for_command(data), options)
        case _:
            descriptor = flight.FlightDescriptor.for_command(data)
            writer, reader = connection.client.do_put(descriptor, pa.schema([]), options)
            with writer:
                writer.done_writing()
                reader.read()


def fuzz(connection: FlightSql, seed: int, count: int) -> Iterator[str]:
    generator = random.Random(seed)
    for _ in range(count):
        try:
            send(connection, generator)
        except CLEAN_ERRORS as error:
            yield str(error)


def check_fuzz(connection: FlightSql, seed: int, count: int) -> None:
    print(f"seed {seed}")  # noqa: T201
    for message in fuzz(connection, seed, count):
        assert "Traceback" not in message
        assert "INTERNAL_ERROR" not in message
    assert connection.query("SELECT 42 AS i")["i"].to_pylist() == [42]


def test_server_survives_garbage(flight_sql: Open) -> None:
    check_fuzz(flight_sql(), seed=20260101, count=1000)


@pytest.mark.slow
def test_server_survives_ten_thousand_garbage_messages(flight_sql: Open) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    check_fuzz(flight_sql(), seed, count=10_000)
