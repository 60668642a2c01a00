"""Writers against a real server: what is acknowledged is there, what is not is told."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import swanlake
from swanlake import FlightSQLClient
from swanlake.client import Acknowledged, AsyncWriter, Failure, Writer, WriterOptions
from swanlake.client.address import Address
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
from tests.flight import eventually
from tests.integration.client.troubled import Held, Troubled
from tests.integration.client.twins import twin
from tests.server_process import ServerProcess

Make = Callable[..., Any]
Start = Callable[..., ServerProcess]
#: Nobody listens there.
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
def maker(request: pytest.FixtureRequest) -> Iterator[Any]:
    with twin(request.param) as maker:
        yield maker


@pytest.fixture
def writer(maker: Any, server: ServerProcess) -> Make:
    """Makes writers on the shared server, of either kind."""

    def make(table: str, **options: Any) -> Any:
        return maker.writer(server.url, table, **options)

    return make


def rows(client: FlightSQLClient, table: str) -> list[tuple[Any, ...]]:
    """All rows, wherever they are."""
    both = f"FROM (FROM {table} UNION ALL FROM duckling_queue.{table}) ORDER BY ALL"
    return [tuple(row.values()) for row in client.query(both).to_pylist()]


def ids(client: FlightSQLClient, table: str) -> list[int]:
    return [row[0] for row in rows(client, table)]


@dataclass
class Swan:
    id: int
    name: str


# ---- rows in, rows there -------------------------------------------------------------------------


def test_rows_of_all_kinds_are_there_when_the_block_ends(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    with writer(swans) as w:
        w.write({"id": 1, "name": "dict"})
        w.write((2, "tuple", "t"))
        w.write(Swan(3, "dataclass"))
        w.write_many([{"id": 4}, {"id": 5, "name": None, "tag": None}])
        w.write_many(pa.table({"id": [6], "name": ["arrow"]}))
    assert rows(client, swans) == [
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


def test_a_flush_returns_when_all_is_acknowledged(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    heard: list[Acknowledged] = []
    with writer(swans, max_rows=10, max_delay=60, on_acknowledged=heard.append) as w:
        w.write_many({"id": number} for number in range(25))
        w.flush(timeout=30)
        assert ids(client, swans) == list(range(25))
        assert [(one.sequence, one.rows) for one in heard] == [(0, 10), (1, 10), (2, 5)]
        assert {one.producer for one in heard} == {w.producer}
        w.flush()


def test_a_few_rows_do_not_wait_for_more(writer: Make, client: FlightSQLClient, swans: str) -> None:
    with writer(swans, max_delay=0.01) as w:
        w.write({"id": 1})
        eventually(lambda: ids(client, swans) == [1])


def test_a_writer_of_a_client_is_no_part_of_its_transaction(
    client: FlightSQLClient, swans: str
) -> None:
    with client.writer(swans, WriterOptions(columns=["name", "id"]), max_rows=5) as w:
        with client.transaction():
            w.write(("a", 1))
            w.flush()
            client.execute("SELECT 1")
            client.rollback()
            client.begin_transaction()
    assert ids(client, swans) == [1]


def test_straight_to_the_lake(writer: Make, client: FlightSQLClient, swans: str) -> None:
    with writer(swans, queue=False, schema="main") as w:
        w.write_many([{"id": 1}, {"id": 2}])
        w.flush()
        assert client.query(f"SELECT count(*) FROM {swans}").to_pylist() == [{"count_star()": 2}]


def test_a_catalog_of_ones_choice(writer: Make, client: FlightSQLClient) -> None:
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


def test_a_producer_that_goes_on_takes_nothing_twice(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    producer = f"sensor-{swans}"
    with writer(swans, producer=producer) as w:
        w.write({"id": 0})
        w.flush()
        w.write({"id": 1})
    # It died before it could note that batch 1 was acknowledged.
    with writer(swans, producer=producer, first_sequence=1) as w:
        w.write({"id": 1})
        w.flush()
        w.write({"id": 2})
    assert ids(client, swans) == [0, 1, 2]
    assert w.report().next_sequence == 3


# ---- rows and tables that are wrong --------------------------------------------------------------


def test_a_bad_row_is_refused_at_once_and_others_are_not(
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


def test_a_new_column_is_noticed(
    writer: Make, client: FlightSQLClient, swans: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swanlake.client.outbox._ASK_AGAIN", 0.0)
    with writer(swans) as w:
        w.write({"id": 1})
        client.execute(f"ALTER TABLE {swans} ADD COLUMN age INTEGER")
        w.write({"id": 2, "age": 7})
    assert rows(client, swans) == [(1, None, "none", None), (2, None, "none", 7)]


def test_a_table_that_is_not_there(writer: Make, client: FlightSQLClient) -> None:
    name = f"later_{uuid4().hex[:8]}"
    with writer(name) as w:
        with pytest.raises(InvalidStatement, match=name):
            w.write({"id": 1})
        client.execute(f"CREATE TABLE {name} (id BIGINT)")
        w.write({"id": 1})
    assert ids(client, name) == [1]


def test_what_the_server_refuses_is_raised_by_the_next_call(
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
        w.write({"id": 3, "name": "goes on"})  # told once; and the table was asked for again
    assert rows(client, swans) == [(3, "goes on")]
    assert (w.report().rows_acknowledged, w.report().rows_failed) == (2, 1)


def test_what_is_given_up_goes_to_on_error(
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


def test_an_on_error_that_raises_hides_nothing(
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


def test_an_error_in_the_block_is_not_hidden(
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


# ---- servers that are not there ------------------------------------------------------------------


def test_back_pressure(writer: Make, client: FlightSQLClient, swans: str) -> None:
    held = Held()
    with writer(swans, connect=held, max_rows=1, max_pending_rows=3) as w:
        w.write({"id": 0})
        assert held.reached.wait(30)
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
            blocked.result(30)
    assert ids(client, swans) == [0, 1, 2, 3]


def test_a_cancelled_write_takes_nothing(
    server: ServerProcess, client: FlightSQLClient, swans: str
) -> None:
    held = Held()

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


def test_a_server_that_comes_later(maker: Any, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    server.stop()
    with maker.writer(server.url, "t") as w:
        with pytest.raises(WriterTimeout, match="SERVER_UNREACHABLE"):
            w.write({"id": 0}, timeout=0.3)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(w.write, {"id": 1})
            server = start_server("--port", str(server.port), home=server.home)
            waiting.result(60)
    with swanlake.connect(server.url) as client:
        assert ids(client, "t") == [1]


def test_a_server_that_is_restarted(maker: Any, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    with maker.writer(server.url, "t", max_rows=10) as w:
        w.write_many({"id": number} for number in range(100))
        w.flush()
        server.stop()
        w.write_many({"id": number} for number in range(100, 200))
        server = start_server("--port", str(server.port), home=server.home)
        w.flush(timeout=60)
        assert w.report().retries > 0
    with swanlake.connect(server.url) as client:
        assert ids(client, "t") == list(range(200))


def test_an_end_without_a_server_is_bounded_and_tells(maker: Any, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    w = maker.writer(server.url, "t", max_rows=10)
    w.write({"id": 0})
    w.flush()
    server.kill()
    w.write_many({"id": number} for number in range(1, 26))
    began = time.monotonic()
    with pytest.raises(RowsNotWritten, match="25 rows were not written to t") as lost:
        w.close(timeout=0.5)
    assert time.monotonic() - began < 10
    kept = [number for one in lost.value.failures for number in one.table["id"].to_pylist()]
    assert kept == list(range(1, 26))
    assert isinstance(lost.value.failures[0].error, ServerUnavailable)
    assert w.report().rows_failed == 25
    w.close()  # can be called again
    with pytest.raises(WriterClosed):
        w.write({"id": 1})


def test_an_end_with_a_server_that_hangs_is_bounded_and_tells(
    maker: Any, start_server: Start
) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    w = maker.writer(server.url, "t", max_rows=1)
    w.write({"id": 0})
    w.flush()
    server.process.send_signal(signal.SIGSTOP)
    os.waitpid(server.process.pid, os.WUNTRACED)  # until then it may answer
    try:
        w.write_many([{"id": 1}, {"id": 2}])
        began = time.monotonic()
        with pytest.raises(RowsNotWritten) as lost:
            w.close(timeout=0.2)
        assert time.monotonic() - began < 10
        assert [one.in_doubt for one in lost.value.failures] == [True, False]
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_an_end_that_is_interrupted_tells_what_was_lost(
    client: FlightSQLClient, server: ServerProcess, swans: str
) -> None:
    held = Held()
    w = Writer(Address.parse(server.url), swans, connect=held)
    w.write({"id": 1})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert held.reached.wait(30)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            w.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        held.go_on.set()
    assert "1 rows were not written" in interrupted.value.__notes__[0]


def test_a_batch_is_given_up_when_its_time_is_over(maker: Any, start_server: Start) -> None:
    server = start_server()
    with swanlake.connect(server.url) as client:
        client.execute("CREATE TABLE t (id BIGINT)")
    with maker.writer(server.url, "t", retry_timeout=0.3) as w:
        w.write({"id": 0})
        w.flush()
        server.kill()
        w.write({"id": 1})
        with pytest.raises(RowsNotWritten) as lost:
            w.flush(timeout=30)
        assert lost.value.failures[0].attempts > 1


def test_a_writer_to_nowhere_can_be_closed(maker: Any) -> None:
    w = maker.writer(NOWHERE, "t", retry_timeout=0.2)
    with pytest.raises(ServerUnreachable):
        w.write({"id": 1})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(w.write, {"id": 1})
        w.close()
        with pytest.raises((WriterClosed, ServerUnreachable)):
            waiting.result(30)


# ---- straight to the lake, where nothing has a name ----------------------------------------------


@pytest.mark.parametrize("queue", [True, False])
def test_only_what_has_a_name_is_sent_again_in_doubt(
    writer: Make, client: FlightSQLClient, swans: str, queue: bool
) -> None:
    def lose_the_answer(send: Callable[[], Any], number: int) -> Any:
        answer = send()
        if number == 1:
            raise ConnectionLost("after the server had done it")
        return answer

    troubled = Troubled(lose_the_answer)
    w = writer(swans, connect=troubled, queue=queue)
    w.write({"id": 1})
    if queue:
        w.close()
        assert w.report().retries == 1
    else:
        with pytest.raises(RowsNotWritten, match="1 of them may have been all the same"):
            w.close()
    assert troubled.attempts == (2 if queue else 1)
    assert ids(client, swans) == [1]


def test_without_a_name_too_what_was_not_done_is_sent_again(
    writer: Make, client: FlightSQLClient, swans: str
) -> None:
    def conflict_once(send: Callable[[], Any], number: int) -> Any:
        if number == 1:
            raise CommitConflict("somebody else was first")
        return send()

    with writer(swans, connect=Troubled(conflict_once), queue=False) as w:
        w.write({"id": 1})
    assert ids(client, swans) == [1]


# ---- the end of things ---------------------------------------------------------------------------


def test_a_program_that_forgets_to_close_loses_nothing(
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


def test_a_writer_that_is_dropped_warns_and_sends(client: FlightSQLClient, swans: str) -> None:
    def forget_one() -> None:
        w = client.writer(swans, max_delay=60)
        w.write({"id": 1})
        del w
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget_one()
    eventually(lambda: ids(client, swans) == [1])


def test_writers_leave_no_thread_behind(writer: Make, swans: str) -> None:
    before = threading.active_count()
    for number in range(10):
        with writer(swans) as w:
            w.write({"id": number})
    assert threading.active_count() <= before


def test_a_writer_shows_no_secrets() -> None:
    address = Address.parse(NOWHERE, token="secret")
    with Writer(address, "t") as w:
        assert repr(w) == f"<Writer of t at {NOWHERE} open>"
