"""What callers make a server keep in memory is bounded, and given back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import encode, messages
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.waiting import eventually

MEGABYTE = 1_000_000
LIMIT = 40 * MEGABYTE
#: Alone, a caller gets these parts of the limit for results, and for all.
RESULT_SHARE, SHARE = LIMIT // 2, LIMIT * 4 // 5
#: A result of 24 MB.
QUERY = "SELECT range AS i, range * 2 AS j, range * 3 AS k FROM range(1_000_000)"
RESULTS = 30
ZEROS = pa.record_batch({"i": pa.array([0] * 1_000_000, pa.int64())})
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")

Open = Callable[..., FlightSql]


class FreshServer(ServerProcess):
    """A server that is not forked: its Arrow has a limit, which is set before it is loaded."""

    popen = staticmethod(subprocess.Popen)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with FreshServer(
        tmp_path_factory.mktemp("memory") / "home", "--caller-memory-bytes", str(LIMIT)
    ) as server:
        yield server


@contextmanager
def growth_below(server: ServerProcess, limit: int) -> Iterator[None]:
    """Asserts that the peak of the server's memory during the block is not far above its start."""
    reset_peak = f"/proc/{server.process.pid}/clear_refs"
    with open(reset_peak, "w") as file:
        file.write("5")
    before = psutil.Process(server.process.pid).memory_info().rss
    yield
    with open(f"/proc/{server.process.pid}/status") as file:
        [peak] = [int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")]
    assert peak - before < limit, f"{(peak - before) // MEGABYTE} MB"


def held_bytes(connection: FlightSql) -> int:
    """The bytes that are charged to all callers."""
    held: dict[str, int] = connection.status()["memory"]["caller_bytes"]
    return sum(held.values())


def prepare(connection: FlightSql, sql: str) -> bytes:
    request = messages.ActionCreatePreparedStatementRequest(query=sql)
    answer = connection.action_result("CreatePreparedStatement", request)
    handle: bytes = answer.prepared_statement_handle
    return handle


def put(connection: FlightSql, command: Any, batches: Iterator[Any]) -> None:
    """Sends batches compressed; raises the server's error."""
    descriptor = flight.FlightDescriptor.for_command(encode(command))
    writer, reader = connection.client.do_put(
        descriptor, ZEROS.schema, connection.options(write_options=ZSTD)
    )
    try:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        reader.read()
    finally:
        writer.close()


def bind(connection: FlightSql, handle: bytes, batches: Iterator[Any]) -> None:
    put(
        connection,
        messages.CommandPreparedStatementQuery(prepared_statement_handle=handle),
        batches,
    )


def test_unread_results_go_to_disk_and_stay_complete(
    server: ServerProcess, flight_sql: Open
) -> None:
    connection = flight_sql()
    connection.query(QUERY)
    with growth_below(server, 250 * MEGABYTE):  # the results have 720 MB
        infos = [connection.execute(QUERY) for _ in range(RESULTS)]
        assert 0 < held_bytes(connection) <= RESULT_SHARE
        for info in infos:
            assert connection.fetch(info).read_all().num_rows == 1_000_000
    assert held_bytes(connection) == 0


def test_unread_results_of_a_stock_client_stay_within_its_share(
    server: ServerProcess, connect: Callable[..., Any], flight_sql: Open
) -> None:
    with ExitStack() as stack, growth_below(server, 300 * MEGABYTE):
        connection = connect()
        cursors = [stack.enter_context(connection.cursor()) for _ in range(RESULTS)]
        for cursor in cursors:
            cursor.execute(QUERY)
        assert held_bytes(flight_sql()) <= RESULT_SHARE
        for cursor in cursors:
            assert cursor.fetch_arrow_table().num_rows == 1_000_000


def test_closed_session_gives_its_memory_back(flight_sql: Open) -> None:
    greedy, other = flight_sql(x_swanlake_session_id="greedy"), flight_sql()
    for _ in range(3):
        greedy.execute(QUERY)
    handle = prepare(greedy, "SELECT sum(?::BIGINT)")
    bind(greedy, handle, iter([ZEROS]))
    reading = greedy.fetch(greedy.execute(QUERY))
    reading.read_chunk()
    greedy.query("SELECT 1")  # moves the rest of the result that is being read into a buffer
    assert held_bytes(other) > MEGABYTE
    greedy.close_session()
    assert eventually(lambda: held_bytes(other) == 0)


def test_statement_that_is_closed_gives_its_parameters_back(flight_sql: Open) -> None:
    connection = flight_sql()
    handle = prepare(connection, "SELECT sum(?::BIGINT)")
    bind(connection, handle, iter([ZEROS]))
    bind(connection, handle, iter([ZEROS, ZEROS]))
    assert held_bytes(connection) == 16 * MEGABYTE
    close = messages.ActionClosePreparedStatementRequest(prepared_statement_handle=handle)
    connection.action("ClosePreparedStatement", close)
    assert held_bytes(connection) == 0


def test_parameters_beyond_the_share_end_their_stream(
    server: ServerProcess, flight_sql: Open
) -> None:
    connection = flight_sql()
    handle = prepare(connection, "SELECT sum(?::BIGINT)")
    sent = 0

    def endless() -> Iterator[Any]:
        nonlocal sent
        while True:
            sent += 1
            yield ZEROS

    with (
        growth_below(server, 200 * MEGABYTE),
        pytest.raises((pa.ArrowException, flight.FlightError), match="CALLER_MEMORY_EXHAUSTED"),
    ):
        bind(connection, handle, endless())
    assert sent > SHARE // ZEROS.nbytes
    assert held_bytes(connection) == 0
    assert connection.query("SELECT 1 AS i")["i"].to_pylist() == [1]


def large_batch() -> Any:
    """A batch of 1.6 GB of zeros, which is sent as a few kilobytes."""
    zeros = pa.py_buffer(bytearray(1_600_000_000))
    column = pa.Array.from_buffers(pa.int64(), 200_000_000, [None, zeros])
    return pa.record_batch({"i": column})


@pytest.mark.parametrize("command", ["bind", "update", "ingest"])
def test_compressed_batch_that_is_too_large_is_not_decoded(
    command: str, server: ServerProcess, flight_sql: Open
) -> None:
    connection = flight_sql()
    connection.query("CREATE TEMP TABLE bombs (i BIGINT)")
    handle = prepare(connection, "INSERT INTO temp.main.bombs VALUES (?)")
    options = messages.CommandStatementIngest.TableDefinitionOptions
    commands = {
        "bind": messages.CommandPreparedStatementQuery(prepared_statement_handle=handle),
        "update": messages.CommandPreparedStatementUpdate(prepared_statement_handle=handle),
        "ingest": messages.CommandStatementIngest(
            table="bombs",
            temporary=True,
            table_definition_options=options(if_exists=options.TABLE_EXISTS_OPTION_APPEND),
        ),
    }
    with (
        growth_below(server, 200 * MEGABYTE),
        pytest.raises(pa.ArrowInvalid, match=r"CALLER_MEMORY_EXHAUSTED: .*Send smaller batches"),
    ):
        put(connection, commands[command], iter([large_batch()]))
    assert connection.query("SELECT count(*) AS n FROM bombs")["n"].to_pylist() == [0]


def test_parameters_of_a_ticket_are_measured_before_they_are_decoded(
    server: ServerProcess, flight_sql: Open
) -> None:
    connection = flight_sql()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ZEROS.schema, options=ZSTD) as writer:
        for _ in range(100):
            writer.write_batch(ZEROS)
    ticket = messages.TicketBoundStatement(
        query="SELECT sum(?::BIGINT)", parameters=sink.getvalue().to_pybytes()
    )
    assert len(ticket.parameters) < MEGABYTE
    with (
        growth_below(server, 50 * MEGABYTE),
        pytest.raises(pa.ArrowInvalid, match=r"CALLER_MEMORY_EXHAUSTED: .*800,000,"),
    ):
        connection.client.do_get(flight.Ticket(encode(ticket)), connection.options()).read_all()
    assert held_bytes(connection) == 0


def test_caller_that_takes_its_share_leaves_room_for_others(flight_sql: Open) -> None:
    greedy = flight_sql(authorization="Basic Z3JlZWR5Og==")
    other = flight_sql()
    for _ in range(5):
        greedy.execute(QUERY)
    held = other.status()["memory"]["caller_bytes"]
    assert held == {"greedy": max(held.values())}
    assert held["greedy"] <= RESULT_SHARE
    handle = prepare(other, "SELECT sum(?::BIGINT)")
    bind(other, handle, iter([ZEROS]))
    assert other.status()["memory"]["caller_bytes"].keys() == {"greedy", "anonymous"}
    greedy.close_session()


def test_oldest_unfetched_results_are_dropped(flight_sql: Open) -> None:
    connection = flight_sql()
    infos = [connection.execute("SELECT 1 AS i") for _ in range(258)]
    with pytest.raises(KeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(infos[1]).read_all()
    assert connection.fetch(infos[2]).read_all()["i"].to_pylist() == [1]


def test_children_do_not_inherit_the_limit_of_arrow(
    server: ServerProcess, flight_sql: Open
) -> None:
    flight_sql().query("CREATE TABLE starts_the_sqlite_worker (i INTEGER)")
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert children
    for child in children:
        assert not any(name.startswith("MIMALLOC") for name in child.environ())
