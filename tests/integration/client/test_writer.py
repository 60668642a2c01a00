"""Writers against a real server: acknowledged rows are written, failures are reported."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import swanlake
from swanlake import FlightSQLClient
from swanlake.client import Acknowledged, AsyncWriter, Failure, Writer, WriterOptions
from swanlake.client.transport.address import Address
from swanlake.errors import (
    CommitConflict,
    ConnectionLost,
    InvalidStatement,
    NotFound,
    RowRefused,
    RowsNotWritten,
    ServerUnavailable,
    ServerUnreachable,
    WriterClosed,
    WriterTimeout,
)
from tests.integration.client.blocking import Blocking, EventLoopThread
from tests.integration.client.failing_server import BlockedConnections, FaultyConnections
from tests.server_process import ServerProcess
from tests.waiting import eventually, freeze

Make = Callable[..., Any]
Start = Callable[..., ServerProcess]
#: No server listens on this port.
NOWHERE = "grpc://127.0.0.1:9"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[FlightSQLClient]:
    with swanlake.connect(server.url) as client:
        yield client


@pytest.fixture
def swans(client: FlightSQLClient) -> str:
    name = f"swans_{uuid4().hex[:8]}"
    client.execute(f"CREATE TABLE {name} (id BIGINT, name VARCHAR, tag VARCHAR DEFAULT 'none')")
    return name


@pytest.fixture(params=["threads", "tasks"])
def writer_at(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes writers for a URL; the test runs once for threads and once for tasks."""
    if request.param == "threads":
        yield lambda url, table, **options: Writer(Address.parse(url), table, **options)
        return
    with closing(EventLoopThread()) as loop:
        yield lambda url, table, **options: Blocking(
            loop, loop.call(AsyncWriter, Address.parse(url), table, **options)
        )


@pytest.fixture
def writer(writer_at: Make, server: ServerProcess) -> Make:
    """Makes writers on the shared server."""
    return partial(writer_at, server.url)


def stored_rows(client: FlightSQLClient, table: str) -> list[tuple[Any, ...]]:
    """All rows of a table, in the lake and in the queue."""
    both = f"FROM (FROM {table} UNION ALL FROM duckling_queue.{table}) ORDER BY ALL"
    return [tuple(row.values()) for row in client.query(both).to_pylist()]


def ids(client: FlightSQLClient, table: str) -> list[int]:
    return [row[0] for row in stored_rows(client, table)]


@dataclass
class Swan:
    id: int
    name: str


# ---- writing -------------------------------------------------------------------------------------


def test_rows_of_all_kinds_are_written_at_block_end(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    with writer(swans) as w:
        w.write({"id": 1, "name": "dict"})
        w.write((2, "tuple", "t"))
        w.write(Swan(3, "dataclass"))
        w.write_many([{"id": 4}, {"id": 5, "name": None, "tag": None}])
        w.write_many(pa.table({"id": [6], "name": ["arrow"]}))
    assert stored_rows(client, swans) == [
        (1, "dict", "none"),
        (2, "tuple", "t"),
        (3, "dataclass", "none"),
        (4, None, "none"),
        (5, None, None),
        (6, "arrow", "none"),
    ]
    report = w.report()
    assert (report.rows_written, report.rows_acknowledged, report.rows_pending) == (6, 6, 0)
    assert report.batches_acknowledged == report.next_sequence == 2
    assert w.closed


def test_flush_waits_for_acknowledgements(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    heard: list[Acknowledged] = []
    with writer(swans, max_rows=10, max_delay=60, on_acknowledged=heard.append) as w:
        w.write_many({"id": number} for number in range(25))
        w.flush(timeout=120)
        assert ids(client, swans) == list(range(25))
        assert [(one.sequence, one.rows) for one in heard] == [(0, 10), (1, 10), (2, 5)]
        assert {one.producer for one in heard} == {w.producer}
        w.flush()


def test_few_rows_are_sent_after_max_delay(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    with writer(swans, max_delay=0.01) as w:
        w.write({"id": 1})
        eventually(lambda: ids(client, swans) == [1])


def test_writer_is_independent_of_transaction(client: FlightSQLClient, swans: str) -> None:
    with client.writer(swans, WriterOptions(columns=["name", "id"]), max_rows=5) as w:
        with client.transaction():
            w.write(("a", 1))
            w.flush()
            client.execute("SELECT 1")
            client.rollback()
            client.begin_transaction()
    assert ids(client, swans) == [1]


def test_writer_without_queue_commits_to_lake(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    with writer(swans, queue=False, schema="main") as w:
        w.write_many([{"id": 1}, {"id": 2}])
        w.flush()
        assert client.query(f"SELECT count(*) FROM {swans}").to_pylist() == [{"count_star()": 2}]


def test_writer_uses_the_catalog_option(writer: Make, client: FlightSQLClient) -> None:
    catalog = f"c_{uuid4().hex[:8]}"
    client.execute(f"CALL swanlake_create_catalog('{catalog}')")
    client.execute(f"CREATE TABLE {catalog}.main.t (id BIGINT)")
    with writer("t", catalog=catalog) as w:
        w.write({"id": 1})
    client.execute(f"USE {catalog}")
    assert ids(client, "t") == [1]


def test_many_threads_share_a_writer(client: FlightSQLClient, swans: str) -> None:
    with client.writer(swans, max_rows=50, max_pending_rows=200) as w:
        with ThreadPoolExecutor(8) as pool:
            for start in range(8):
                for number in range(start, 2000, 8):
                    pool.submit(w.write, {"id": number})
    assert ids(client, swans) == list(range(2000))


def test_many_tasks_share_a_writer(
    server: ServerProcess, client: FlightSQLClient, swans: str
) -> None:
    async def write() -> None:
        async with AsyncWriter(
            Address.parse(server.url), swans, max_rows=50, max_pending_rows=200
        ) as w:
            await asyncio.gather(*(w.write({"id": number}) for number in range(2000)))

    asyncio.run(write())
    assert ids(client, swans) == list(range(2000))


def test_continued_producer_duplicates_nothing(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    producer = f"sensor-{swans}"
    with writer(swans, producer=producer) as w:
        w.write({"id": 0})
        w.flush()
        w.write({"id": 1})
    # As if it died before it recorded that batch 1 was acknowledged.
    with writer(swans, producer=producer, first_sequence=1) as w:
        w.write({"id": 1})
        w.flush()
        w.write({"id": 2})
    assert ids(client, swans) == [0, 1, 2]
    assert w.report().next_sequence == 3


# ---- wrong rows and tables -----------------------------------------------------------------------


def test_bad_row_is_refused_and_others_are_written(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    with writer(swans) as w:
        w.write({"id": 1})
        with pytest.raises(RowRefused, match="'id' \\(int64\\) does not take 'x'"):
            w.write({"id": "x"})
        with pytest.raises(RowRefused, match="no column 'nix'") as refused:
            w.write_many([{"id": 2}, {"id": 3, "nix": 1}, {"id": 4}])
        assert refused.value.rows_taken == 1
        with pytest.raises(RowRefused, match="Arrow tables and data frames go to write_many"):
            w.write(pa.table({"id": [5]}))
    assert ids(client, swans) == [1, 2]


def test_new_column_is_detected(
    writer: Make, client: FlightSQLClient, swans: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swanlake.client.writer.sender._DESCRIBE_INTERVAL", 0.0)
    with writer(swans) as w:
        w.write({"id": 1})
        client.execute(f"ALTER TABLE {swans} ADD COLUMN age INTEGER")
        w.write({"id": 2, "age": 7})
    assert stored_rows(client, swans) == [(1, None, "none", None), (2, None, "none", 7)]


def test_missing_table_is_an_error(writer: Make, client: FlightSQLClient) -> None:
    name = f"later_{uuid4().hex[:8]}"
    with writer(name) as w:
        with pytest.raises(InvalidStatement, match=name):
            w.write({"id": 1})
        client.execute(f"CREATE TABLE {name} (id BIGINT)")
        w.write({"id": 1})
    assert ids(client, name) == [1]


def test_refused_batch_is_raised_by_next_call(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    with writer(swans) as w:
        w.write({"id": 1})
        w.flush()
        client.execute(f"DROP TABLE {swans}")
        w.write({"id": 2})
        with pytest.raises(RowsNotWritten, match="1 rows were not written") as lost:
            w.flush()
        [failure] = lost.value.failures
        assert (failure.sequence, failure.rows, failure.in_doubt) == (1, 1, False)
        assert failure.table.column("id").to_pylist() == [2]
        assert isinstance(failure.error, NotFound)
        client.execute(f"CREATE TABLE {swans} (id BIGINT, name VARCHAR)")
        w.write({"id": 3, "name": "goes on"})  # reported once; the table was described again
    assert stored_rows(client, swans) == [(3, "goes on")]
    assert (w.report().rows_acknowledged, w.report().rows_failed) == (2, 1)


def test_failed_batch_is_reported_to_on_error(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    heard: list[Failure] = []
    with writer(swans, on_error=heard.append) as w:
        w.write({"id": 1})
        w.flush()
        client.execute(f"DROP TABLE {swans}")
        w.write({"id": 2})
        w.flush()
        assert [failure.table.column("id").to_pylist() for failure in heard] == [[2]]


def test_failure_is_raised_if_on_error_raises(
    writer: Make, client: FlightSQLClient, swans: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(_: Failure) -> None:
        raise KeyError("in the callback")

    w = writer(swans, on_error=raises)
    w.write({"id": 1})
    w.flush()
    client.execute(f"DROP TABLE {swans}")
    w.write({"id": 2})
    with pytest.raises(RowsNotWritten):
        w.close()
    assert "a callback raised" in caplog.text


def test_error_in_block_is_raised_with_note(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    def fails_in_its_block() -> None:
        with writer(swans) as w:
            w.write({"id": 1})
            w.flush()
            client.execute(f"DROP TABLE {swans}")
            w.write({"id": 2})
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as raised:
        fails_in_its_block()
    assert any("1 rows were not written" in note for note in raised.value.__notes__)


# ---- missing servers -----------------------------------------------------------------------------


def test_back_pressure(writer: Make, client: FlightSQLClient, swans: str) -> None:
    held = BlockedConnections()
    with writer(swans, connect=held, max_rows=1, max_pending_rows=3) as w:
        w.write({"id": 0})
        assert held.reached.wait(120)
        with pytest.raises(WriterTimeout, match="3 pending rows") as full:
            w.write_many(({"id": number} for number in range(1, 9)), timeout=0.05)
        assert full.value.rows_taken == 2
        with pytest.raises(WriterTimeout):
            w.flush(timeout=0.05)
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(w.write, {"id": 3})
            with pytest.raises(TimeoutError):
                blocked.result(0.05)
            held.go_on.set()
            blocked.result(120)
    assert ids(client, swans) == [0, 1, 2, 3]


def test_cancelled_write_takes_no_row(
    server: ServerProcess, client: FlightSQLClient, swans: str
) -> None:
    held = BlockedConnections()

    async def write() -> None:
        address = Address.parse(server.url)
        async with AsyncWriter(address, swans, connect=held, max_rows=1, max_pending_rows=1) as w:
            await w.write({"id": 0})
            blocked = asyncio.create_task(w.write({"id": 1}))
            await asyncio.to_thread(held.reached.wait, 30)
            blocked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await blocked
            held.go_on.set()
            await w.write({"id": 2})

    asyncio.run(write())
    assert ids(client, swans) == [0, 2]


def test_writer_waits_for_server_to_start(writer_at: Make, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    server.stop()
    with writer_at(server.url, "t") as w:

        def time_out_after_an_attempt() -> bool:
            with pytest.raises(WriterTimeout) as late:
                w.write({"id": 0}, timeout=0.3)
            return "SERVER_UNREACHABLE" in str(late.value)

        eventually(time_out_after_an_attempt)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(w.write, {"id": 1})
            server = start_server("--port", str(server.port), home=server.home)
            waiting.result(60)
    with swanlake.connect(server.url) as client:
        assert ids(client, "t") == [1]


def test_writer_survives_server_restart(writer_at: Make, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    with writer_at(server.url, "t", max_rows=10) as w:
        w.write_many({"id": number} for number in range(100))
        w.flush()
        server.stop()
        w.write_many({"id": number} for number in range(100, 200))
        server = start_server("--port", str(server.port), home=server.home)
        w.flush(timeout=60)
        assert w.report().retries > 0
    with swanlake.connect(server.url) as client:
        assert ids(client, "t") == list(range(200))


def test_close_without_server_is_bounded(writer_at: Make, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    w = writer_at(server.url, "t", max_rows=10)
    w.write({"id": 0})
    w.flush()
    server.kill()
    w.write_many({"id": number} for number in range(1, 26))
    with pytest.raises(RowsNotWritten, match="25 rows were not written to t") as lost:
        w.close(timeout=0.5)
    kept = [number for one in lost.value.failures for number in one.table["id"].to_pylist()]
    assert kept == list(range(1, 26))
    assert isinstance(lost.value.failures[0].error, ServerUnavailable)
    assert w.report().rows_failed == 25
    w.close()  # idempotent
    with pytest.raises(WriterClosed):
        w.write({"id": 1})


def test_close_with_hung_server_is_bounded(writer_at: Make, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    w = writer_at(server.url, "t", max_rows=1)
    w.write({"id": 0})
    w.flush()
    freeze(server.process.pid)
    try:
        w.write_many([{"id": 1}, {"id": 2}])
        eventually(lambda: w._sender._batcher._sending)
        with pytest.raises(RowsNotWritten) as lost:
            w.close(timeout=0.2)
        assert [one.in_doubt for one in lost.value.failures] == [True, False]
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_interrupted_close_notes_lost_rows(
    client: FlightSQLClient, server: ServerProcess, swans: str
) -> None:
    held = BlockedConnections()
    w = Writer(Address.parse(server.url), swans, connect=held)
    w.write({"id": 1})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert held.reached.wait(120)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            w.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        held.go_on.set()
    assert "1 rows were not written" in interrupted.value.__notes__[0]


def test_batch_fails_after_retry_timeout(writer_at: Make, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    with writer_at(server.url, "t", retry_timeout=3) as w:
        w.write({"id": 0})
        w.flush()
        server.kill()
        w.write({"id": 1})
        with pytest.raises(RowsNotWritten) as lost:
            w.flush(timeout=240)
        assert lost.value.failures[0].attempts > 1


def test_unconnected_writer_can_be_closed(writer_at: Make) -> None:
    w = writer_at(NOWHERE, "t", retry_timeout=0.2)
    with pytest.raises(ServerUnreachable):
        w.write({"id": 1})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(w.write, {"id": 1})
        w.close()
        with pytest.raises((WriterClosed, ServerUnreachable)):
            waiting.result(120)


# ---- without the queue: batches have no name -----------------------------------------------------


@pytest.mark.parametrize("queue", [True, False])
def test_unnamed_batch_in_doubt_is_not_resent(
    writer: Make, client: FlightSQLClient, swans: str, queue: bool
) -> None:
    def lose_the_answer(send: Callable[[], Any], number: int) -> Any:
        answer = send()
        if number == 1:
            raise ConnectionLost("after the server had done it")
        return answer

    troubled = FaultyConnections(lose_the_answer)
    w = writer(swans, connect=troubled, queue=queue)
    w.write({"id": 1})
    if queue:
        w.close()
        assert w.report().retries == 1
    else:
        with pytest.raises(RowsNotWritten, match="1 of them may have been written"):
            w.close()
    assert troubled.attempts == (2 if queue else 1)
    assert ids(client, swans) == [1]


def test_unnamed_batch_is_resent_if_not_written(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    def conflict_once(send: Callable[[], Any], number: int) -> Any:
        if number == 1:
            raise CommitConflict("another writer was first")
        return send()

    with writer(swans, connect=FaultyConnections(conflict_once), queue=False) as w:
        w.write({"id": 1})
    assert ids(client, swans) == [1]


# ---- closing -------------------------------------------------------------------------------------


def test_program_without_close_loses_no_row(
    server: ServerProcess, client: FlightSQLClient, swans: str
) -> None:
    program = (
        "import swanlake\n"
        f"client = swanlake.connect({server.url!r})\n"
        f"writer = client.writer({swans!r}, max_delay=60)\n"
        "writer.write_many({'id': number} for number in range(100))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert ids(client, swans) == list(range(100))


def test_collected_writer_warns_and_sends(client: FlightSQLClient, swans: str) -> None:
    def forget_one() -> None:
        w = client.writer(swans, max_delay=60)
        w.write({"id": 1})
        del w
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget_one()
    eventually(lambda: ids(client, swans) == [1])


def test_writers_leak_no_thread(writer: Make, swans: str) -> None:
    before = threading.active_count()
    for number in range(10):
        with writer(swans) as w:
            w.write({"id": number})
    # A closed connection's thread ends soon after the call that closes it.
    eventually(lambda: threading.active_count() <= before)


def test_writer_repr_hides_secrets() -> None:
    address = Address.parse(NOWHERE, token="secret")
    with Writer(address, "t") as w:
        assert repr(w) == f"<Writer of t at {NOWHERE} open>"
