"""Results: streamed in bounded memory, complete when interleaved, cancelled on request."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import adbc_driver_manager
import psutil
import pyarrow as pa
import pyarrow.compute
import pyarrow.flight as flight
import pytest

from swanlake.protocol import Actions, encode, messages
from swanlake.sessions.results.stream import rows_per_batch
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY, rows
from tests.server_process import ServerProcess
from tests.waiting import eventually

Open = Callable[..., FlightSql]

LARGE = "SELECT x, x * 2 AS y, 'row ' || x AS s FROM range(3000000) r(x)"


#: DuckDB reports about one such error in a hundred as an interrupt of its other threads.
FAILED_LATE = (pa.ArrowInvalid, flight.FlightInternalError)
LATE = r"INVALID_INPUT_ERROR: .*late|INTERRUPT_ERROR"


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in which several threads of DuckDB make a result."""
    with ServerProcess(tmp_path_factory.mktemp("results"), SWANLAKE_DUCKDB_THREADS="2") as server:
        yield server


def test_two_cursors_of_one_connection_keep_all_their_rows(connect: Callable[..., Any]) -> None:
    connection = connect()
    with connection.cursor() as first, connection.cursor() as second:
        first.execute("SELECT x FROM range(1000000) r(x)")
        reader = first.fetch_record_batch()
        head = reader.read_next_batch()
        second.execute("SELECT x FROM range(500000) r(x)")
        other = second.fetch_record_batch()
        other_head = other.read_next_batch()
        rest = sum(batch.num_rows for batch in reader)
        other_rest = sum(batch.num_rows for batch in other)
    assert head.num_rows + rest == 1_000_000
    assert other_head.num_rows + other_rest == 500_000


def test_interleaved_results_spill_to_disk_and_stay_complete(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--result-buffer-bytes", "100000")
    connection = flight_sql(server.url)
    infos = [connection.execute(f"SELECT x + {i} AS x FROM range(700000) r(x)") for i in range(4)]
    for i, info in reversed(list(enumerate(infos))):
        column = connection.fetch(info).read_all()["x"]
        assert len(column) == 700_000
        assert pa.compute.sum(column).as_py() == 699_999 * 700_000 // 2 + i * 700_000
    assert list((server.home / "tmp").glob("result-*")) == []


def test_result_is_unaffected_by_later_statements(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("CREATE TEMP TABLE changing AS SELECT x FROM range(800000) r(x)")
    info = connection.execute("FROM changing")
    connection.query("DELETE FROM changing")
    assert connection.fetch(info).read_all().num_rows == 800_000


def test_open_result_survives_rollback(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("BEGIN; CREATE TEMP TABLE inside AS SELECT x FROM range(600000) r(x)")
    info = connection.execute("FROM inside")
    connection.query("ROLLBACK")
    assert connection.fetch(info).read_all().num_rows == 600_000


def test_large_result_is_streamed_in_bounded_memory(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server()
    connection = flight_sql(server.url)
    connection.query("SELECT 1")
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    reader = connection.fetch(
        connection.execute("SELECT x, x AS y, x AS z FROM range(40000000) r(x)")
    )
    rows = peak = 0
    for chunk in reader:
        rows += chunk.data.num_rows
        peak = max(peak, process.memory_info().rss)
    assert rows == 40_000_000  # almost a gigabyte
    assert peak - before < 200 * 1024 * 1024


def test_error_while_streaming_reaches_the_client(flight_sql: Open) -> None:
    connection = flight_sql()
    sql = "SELECT CASE WHEN x = 2900000 THEN error('late') ELSE x END FROM range(3000000) r(x)"
    info = connection.execute(sql)
    with pytest.raises(FAILED_LATE, match=LATE):
        connection.fetch(info).read_all()
    assert connection.query("SELECT 1").num_rows == 1


def is_idle(observer: FlightSql) -> bool:
    return bool(observer.status()["statements_running"] == 0)


class BackgroundExecution:
    """Executes a statement in a thread and records its error."""

    def __init__(self, execute: Callable[[str], Any], sql: str) -> None:
        self._execute = execute
        self._sql = sql
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._execute(self._sql)
        except (flight.FlightError, pa.ArrowException, adbc_driver_manager.Error) as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


def test_cancel_from_another_thread_ends_the_statement(
    connect: Callable[..., Any], flight_sql: Open
) -> None:
    connection, observer = connect(), flight_sql()
    with connection.cursor() as cursor:
        executing = BackgroundExecution(lambda sql: rows(cursor, sql), ENDLESS_QUERY)
        eventually(lambda: observer.status()["statements_running"] == 1)

        def is_cancelled() -> bool:
            # Repeated: the driver prepares first, and a cancellation may come between the calls.
            with suppress(adbc_driver_manager.Error):
                cursor.adbc_cancel()
            return not executing.is_running

        eventually(is_cancelled)
        assert executing.error is not None
    eventually(lambda: is_idle(observer))
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_query_of_a_disconnected_client_is_stopped(flight_sql: Open, server: ServerProcess) -> None:
    observer = flight_sql()
    client = FlightSql(server.url)
    with pytest.raises(flight.FlightTimedOutError):
        client.client.get_flight_info(
            flight.FlightDescriptor.for_command(
                encode(messages.CommandStatementQuery(query=ENDLESS_QUERY))
            ),
            client.options(seconds=0.5),
        )
    client.close()
    eventually(lambda: is_idle(observer))


class BackgroundRead:
    """Reads a result to its end in a thread and records its error."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.rows = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:  # not read_all(), which turns a cancellation into KeyboardInterrupt
                self.rows += self._reader.read_chunk().data.num_rows
        except (flight.FlightError, pa.ArrowException) as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


#: The first megabytes come at once; the last row never.
UNFINISHED = "SELECT x FROM range(100000000000) r(x) WHERE x < 3000000 OR x = 99999999999"
#: The rows that a client gets: the full batches, but the last arrives only with the batch after
#: it, on which DuckDB works until it is interrupted.
UNFINISHED_ROWS = (3_000_000 // rows_per_batch(1) - 1) * rows_per_batch(1)


def test_query_of_a_cancelled_fetch_is_stopped(flight_sql: Open) -> None:
    observer, connection = flight_sql(), flight_sql()
    reader = connection.fetch(connection.execute(UNFINISHED))
    reading = BackgroundRead(reader)
    eventually(lambda: observer.status()["statements_running"] == 1)
    reader.cancel()
    eventually(lambda: is_idle(observer))
    reading.join()


def cancel_result(connection: FlightSql, info: Any) -> int:
    request = messages.CancelFlightInfoRequest(info=info.serialize())
    (answer,) = connection.action("CancelFlightInfo", request, bare=True)
    return int(messages.CancelFlightInfoResult.FromString(answer).status)


def test_cancel_flight_info_works_from_another_connection(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    info = connection.execute(LARGE)
    status = messages.CancelFlightInfoResult
    assert cancel_result(other, info) == status.CANCEL_STATUS_CANCELLED
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info).read_all()
    assert cancel_result(other, info) == status.CANCEL_STATUS_NOT_CANCELLABLE
    assert connection.query("SELECT 1").num_rows == 1


def test_cancel_query_stops_a_running_fetch(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    info = connection.execute(UNFINISHED)
    reading = BackgroundRead(connection.fetch(info))
    eventually(lambda: other.status()["statements_running"] == 1)
    request = messages.ActionCancelQueryRequest(info=info.serialize())
    refused = messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
    assert other.action_result("CancelQuery", request).result != refused
    reading.join()
    assert isinstance(reading.error, flight.FlightCancelledError)
    assert "QUERY_CANCELLED" in str(reading.error)


def test_cancel_stops_a_result_between_two_batches(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    info = connection.execute("SELECT x, 'some text ' || x AS s FROM range(20000000) r(x)")
    reader = connection.fetch(info)
    reader.read_chunk()
    eventually(lambda: is_idle(other))  # the client does not read, so the server does not fetch
    refused = messages.CancelFlightInfoResult.CANCEL_STATUS_NOT_CANCELLABLE
    assert cancel_result(other, info) != refused
    reading = BackgroundRead(reader)
    reading.join()
    assert "QUERY_CANCELLED" in str(reading.error)


def test_cancel_by_query_id_stops_an_executing_statement(flight_sql: Open) -> None:
    query_id = str(uuid.uuid4())
    connection, other = flight_sql(x_swanlake_query_id=query_id), flight_sql()
    executing = BackgroundExecution(connection.execute, ENDLESS_QUERY)
    request = messages.ActionCancelByQueryIdRequest(query_id=query_id)
    refused = messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
    eventually(lambda: other.action_result(Actions.CANCEL_BY_QUERY_ID, request).result != refused)
    executing.join()
    assert isinstance(executing.error, flight.FlightCancelledError)
    assert "QUERY_CANCELLED" in str(executing.error)


# ---- reads that take long ------------------------------------------------------------------------


def prepare(connection: FlightSql, sql: str) -> bytes:
    """The handle of a prepared statement."""
    request = messages.ActionCreatePreparedStatementRequest(query=sql)
    answer = connection.action_result("CreatePreparedStatement", request)
    handle: bytes = answer.prepared_statement_handle
    return handle


def execute_prepared(connection: FlightSql, sql: str, **headers: str) -> Any:
    """The FlightInfo of a prepared statement, which is how the ADBC and JDBC drivers execute."""
    handle = prepare(connection, sql)
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    return connection.info(command, **headers)


def test_flight_info_does_not_wait_for_a_long_read(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    info = execute_prepared(connection, ENDLESS_QUERY)
    assert info.schema.names == ["count_star()"]
    assert other.status()["statements_running"] == 1
    refused = messages.CancelFlightInfoResult.CANCEL_STATUS_NOT_CANCELLABLE
    assert cancel_result(other, info) != refused
    eventually(lambda: is_idle(other))
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info)
    assert connection.query("SELECT 1").num_rows == 1


def test_long_read_is_delivered_by_its_fetch(flight_sql: Open) -> None:
    connection = flight_sql()
    info = execute_prepared(
        connection, "SELECT count(*) AS n FROM range(200_000_000) r(x) WHERE x % 7 = 3"
    )
    assert connection.fetch(info).read_all() == pa.table({"n": [28_571_429]}, info.schema)
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info)


def test_error_of_a_long_read_is_raised_by_its_fetch(flight_sql: Open) -> None:
    connection = flight_sql()
    info = execute_prepared(connection, ENDLESS_QUERY, x_swanlake_query_timeout_seconds="0.3")
    with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
        connection.fetch(info)


def test_long_read_stops_when_the_client_of_its_fetch_is_gone(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    ticket = execute_prepared(connection, ENDLESS_QUERY).endpoints[0].ticket
    with pytest.raises(flight.FlightTimedOutError):
        connection.client.do_get(ticket, connection.options(seconds=0.2))
    eventually(lambda: is_idle(other))


def test_closing_the_session_stops_a_long_read(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    execute_prepared(connection, ENDLESS_QUERY)
    connection.close_session()
    eventually(lambda: is_idle(other))


@pytest.mark.parametrize("value", [1, "text"])
def test_long_read_announces_the_types_of_its_parameters(flight_sql: Open, value: Any) -> None:
    connection = flight_sql()
    slow = "SELECT ? AS v, count(*) AS n FROM range(100_000_000) r(x) WHERE x % 7 = 3"
    handle = prepare(connection, slow)
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    connection.put(command, pa.table({"v": [value]}))
    for _ in range(2):
        info = connection.info(command)
        result = connection.fetch(info).read_all()
        assert result.schema == info.schema
        assert result["v"].to_pylist() == [value]


def test_long_read_follows_changes_of_its_table(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("CREATE TEMP TABLE growing AS SELECT 1 AS a")
    slow = "FROM growing, (SELECT count(*) AS n FROM range(100_000_000) r(x) WHERE x % 7 = 3)"
    handle = prepare(connection, slow)
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    assert connection.fetch(connection.info(command)).read_all().column_names == ["a", "n"]
    connection.query("ALTER TABLE growing ADD COLUMN b INTEGER")
    assert connection.fetch(connection.info(command)).read_all().column_names == ["a", "b", "n"]


def test_closing_the_statement_stops_a_long_read_that_is_not_fetched(
    connect: Callable[..., Any], flight_sql: Open
) -> None:
    connection, observer = connect(), flight_sql()
    with connection.cursor() as cursor:
        cursor.execute(ENDLESS_QUERY)
        assert observer.status()["statements_running"] == 1
    with connection.cursor() as cursor:
        assert rows(cursor, "SELECT 1") == [(1,)]


def test_long_read_that_is_not_fetched_expires(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--result-ttl-seconds", "1", "--session-sweep-seconds", "0.1")
    connection = flight_sql(server.url)
    execute_prepared(connection, ENDLESS_QUERY)
    eventually(lambda: is_idle(connection))


def test_next_statement_waits_for_a_long_read(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    info = execute_prepared(connection, ENDLESS_QUERY)
    with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
        connection.query("SELECT 1", x_swanlake_query_timeout_seconds="0.2")
    cancel_result(other, info)
    assert connection.query("SELECT 1").num_rows == 1


def test_cancelled_long_read_aborts_its_transaction(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("BEGIN")
    cancel_result(other, execute_prepared(connection, ENDLESS_QUERY))
    with pytest.raises(pa.ArrowInvalid, match="TRANSACTION_ABORTED"):
        connection.query("SELECT 1")
    connection.query("ROLLBACK")


def test_flight_info_of_a_write_waits_for_it(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE TABLE late_sums (n BIGINT)")
    slow = "SELECT count(*) FROM range(200_000_000) r(x) WHERE x % 7 = 3"
    execute_prepared(connection, f"INSERT INTO late_sums {slow} RETURNING n")  # is not fetched
    assert other.query("FROM late_sums")["n"].to_pylist() == [28_571_429]


@pytest.mark.parametrize("way", ["setting", "option", "header"])
def test_query_timeout_is_enforced(
    way: str, start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    flags = ["--query-timeout-seconds", "0.3"] if way == "setting" else []
    server = start_server(*flags)
    headers = {"x_swanlake_query_timeout_seconds": "0.3"} if way == "header" else {}
    connection = flight_sql(server.url, **headers)
    if way == "option":
        request = messages.SetSessionOptionsRequest()
        request.session_options["query_timeout_seconds"].double_value = 0.3
        connection.action("SetSessionOptions", request, bare=True)
    with pytest.raises(flight.FlightTimedOutError, match=r"QUERY_TIMEOUT: .*0\.3 s"):
        connection.query(ENDLESS_QUERY)
    assert connection.query("SELECT 1").num_rows == 1


def test_timed_out_statement_aborts_its_transaction(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("BEGIN")
    with pytest.raises(flight.FlightTimedOutError):
        connection.query(ENDLESS_QUERY, x_swanlake_query_timeout_seconds="0.2")
    with pytest.raises(pa.ArrowInvalid, match="TRANSACTION_ABORTED"):
        connection.query("SELECT 1")
    connection.query("ROLLBACK")


def test_invalid_timeout_header_is_refused(flight_sql: Open) -> None:
    for value in ("soon", "-1", "nan", "inf"):
        with pytest.raises(pa.ArrowInvalid, match="INVALID_REQUEST"):
            flight_sql().query("SELECT 1", x_swanlake_query_timeout_seconds=value)


def test_unread_results_expire(
    start_server: Callable[..., ServerProcess], flight_sql: Open
) -> None:
    server = start_server("--result-ttl-seconds", "1", "--session-sweep-seconds", "0.1")
    connection = flight_sql(server.url)
    info = connection.execute("SELECT 1")
    eventually(lambda: connection.status()["results_waiting"] == 0)
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info).read_all()


#: The first batches come at once; every later one takes seconds.
SLOW = """SELECT CASE WHEN i < 400000 THEN i ELSE list_sum(range(50000 + i % 2))::BIGINT END AS x
FROM range(3000000) r(i)"""
LATE_ERROR = "SELECT CASE WHEN i = 900000 THEN error('late') ELSE i END FROM range(1000000) r(i)"


@pytest.mark.parametrize(
    "way", ["fetched", "not fetched", "timeout", "cancelled", "cancelled unread", "abandoned"]
)
def test_result_that_fails_while_fetched_aborts_the_transaction(flight_sql: Open, way: str) -> None:
    """DuckDB rolls back but reports COMMIT as successful: acknowledged rows would be lost."""
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE OR REPLACE TABLE late (i INTEGER)")
    connection.query("BEGIN; INSERT INTO late VALUES (1)")
    match way:
        case "fetched":
            info = connection.execute(LATE_ERROR)
            with pytest.raises(FAILED_LATE, match=LATE):
                connection.fetch(info).read_all()
        case "not fetched":
            connection.execute(LATE_ERROR)
        case "timeout":
            info = connection.execute(SLOW, x_swanlake_query_timeout_seconds="0.5")
            with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
                connection.fetch(info).read_all()
        case "cancelled":
            info = connection.execute(SLOW)
            reading = BackgroundRead(connection.fetch(info))
            eventually(lambda: other.status()["statements_running"] == 1)
            cancel_result(other, info)
            reading.join()
        case "cancelled unread":  # DuckDB works for no batch and is not interrupted
            cancel_result(other, connection.execute(LARGE))
        case "abandoned":
            reader = connection.fetch(connection.execute(UNFINISHED))
            reading = BackgroundRead(reader)
            eventually(lambda: reading.rows == UNFINISHED_ROWS)
            reader.cancel()
            reading.join()
            eventually(lambda: is_idle(other))
    with pytest.raises(pa.ArrowInvalid, match="TRANSACTION_ABORTED"):
        connection.query("COMMIT")
    connection.query("ROLLBACK")
    assert connection.query("FROM late").num_rows == 0


def test_result_abandoned_between_two_batches_keeps_the_transaction(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE OR REPLACE TABLE abandoned (i INTEGER)")
    connection.query("BEGIN; INSERT INTO abandoned VALUES (1)")
    reader = connection.fetch(connection.execute(LARGE))
    reader.read_chunk()
    eventually(lambda: is_idle(other))  # the client does not read, so the server does not fetch
    reader.cancel()
    connection.query("COMMIT")
    assert other.query("FROM abandoned").num_rows == 1


def test_statement_queued_behind_a_slow_result_times_out(flight_sql: Open) -> None:
    connection = flight_sql()
    info = connection.execute(UNFINISHED)
    with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
        connection.query("SELECT 1", x_swanlake_query_timeout_seconds="0.5")
    refused = messages.CancelFlightInfoResult.CANCEL_STATUS_NOT_CANCELLABLE
    assert cancel_result(flight_sql(), info) != refused
    assert connection.query("SELECT 1").num_rows == 1


def test_closing_a_session_does_not_wait_for_a_result_without_end(flight_sql: Open) -> None:
    connection, other = flight_sql(x_swanlake_session_id=str(uuid.uuid4())), flight_sql()
    connection.execute(UNFINISHED)
    connection.close_session()
    eventually(lambda: is_idle(other))


def test_cancel_stops_a_statement_queued_in_its_session(flight_sql: Open) -> None:
    name, query_id = str(uuid.uuid4()), str(uuid.uuid4())
    running = flight_sql(x_swanlake_session_id=name)
    waiting = flight_sql(x_swanlake_session_id=name, x_swanlake_query_id=query_id)
    other = flight_sql()
    endless = BackgroundExecution(running.execute, ENDLESS_QUERY)
    eventually(lambda: other.status()["statements_running"] == 1)
    queued = BackgroundExecution(waiting.execute, "CREATE TABLE never_made AS SELECT 1")
    request = messages.ActionCancelByQueryIdRequest(query_id=query_id)
    done = messages.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED
    eventually(lambda: other.action_result(Actions.CANCEL_BY_QUERY_ID, request).result == done)
    queued.join()
    assert "QUERY_CANCELLED" in str(queued.error)
    running.close_session()
    endless.join()
    with pytest.raises(pa.ArrowKeyError):
        other.query("FROM never_made")


def test_cancel_stops_a_result_that_is_already_buffered(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    info = connection.execute("SELECT i, 'text ' || i AS s FROM range(6000000) r(i)")
    connection.query("SELECT 1")  # makes the server buffer the rest of the result
    reader = connection.fetch(info)
    reader.read_chunk()
    cancel_result(other, info)
    reading = BackgroundRead(reader)
    reading.join()
    assert "QUERY_CANCELLED" in str(reading.error)


def test_error_in_an_earlier_statement_is_reported(flight_sql: Open) -> None:
    with pytest.raises(FAILED_LATE, match=LATE):
        flight_sql().query(LATE_ERROR + "; SELECT 2")
