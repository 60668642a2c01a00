"""The server is killed while a client's Writer sends rows: every row is stored once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import swanlake
from swanlake.client import Writer, WriterReport
from swanlake.client.transport.address import Address
from swanlake.errors import ConnectionLost
from tests.integration.client.failing_server import FaultyConnections
from tests.server_process import ServerProcess
from tests.waiting import eventually

#: A kill and a restart take two seconds, or ten on a busy machine.
MANY_KILLS = 40


class RestartableServer:
    """A server that is killed and restarted, on the same home and port."""

    def __init__(self, home: Path) -> None:
        self._process = ServerProcess(home).start()
        self.url = self._process.url
        with swanlake.connect(self.url) as client:
            client.execute("CREATE TABLE t (id BIGINT, name VARCHAR)")

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        port = self.url.rsplit(":", 1)[1]
        self._process = ServerProcess(self._process.home, "--port", port).start()

    def flush_and_count(self) -> tuple[int, int]:
        """Flushes the queue; returns the numbers of rows and of distinct ids in the table."""
        with swanlake.connect(self.url) as client:
            client.execute("CALL duckling_queue_flush('main.t')")
            [counts] = client.query(
                "SELECT count(*) AS total, count(DISTINCT id) AS ids FROM t"
            ).to_pylist()
            queued = client.query("SELECT count(*) AS n FROM duckling_queue.t").to_pylist()
        assert queued == [{"n": 0}]
        return counts["total"], counts["ids"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartableServer]:
    server = RestartableServer(tmp_path / "home")
    yield server
    server.kill()


@pytest.mark.parametrize("flushed_before", [False, True])
def test_batch_accepted_before_the_kill_is_not_stored_twice(
    server: RestartableServer, flushed_before: bool
) -> None:
    def kill_before_the_answer(send: Callable[[], Any], number: int) -> Any:
        answer = send()
        if number == 1:
            if flushed_before:
                server.flush_and_count()
            server.kill()
            server.restart()
            raise ConnectionLost("the answer was lost with the server")
        return answer

    with Writer(
        Address.parse(server.url), "t", connect=FaultyConnections(kill_before_the_answer)
    ) as writer:
        writer.write_many((number, "once") for number in range(100))
    assert writer.report().retries == 1
    assert server.flush_and_count() == (100, 100)


def kill_under_load(server: RestartableServer, kills: int) -> None:
    """Writes rows continuously while the server is killed and restarted."""
    chance = random.Random(7)
    stop = threading.Event()
    writer = Writer(
        Address.parse(server.url), "t", max_rows=20, max_delay=0.002, max_pending_rows=2000
    )
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            writer.write((written, "a row"))
            written += 1

    def wait_for(count: Callable[[WriterReport], int], more: int) -> None:
        goal = count(writer.report()) + more
        eventually(lambda: count(writer.report()) >= goal, seconds=60)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(kills):
            wait_for(lambda report: report.rows_acknowledged, more=100)
            stop.wait(chance.uniform(0, 0.02))  # at a random step of a batch
            server.kill()
            wait_for(lambda report: report.retries, more=1)
            server.restart()
    finally:
        stop.set()
        thread.join()
    writer.close(timeout=60)
    report = writer.report()
    assert report.rows_written == report.rows_acknowledged == written
    assert server.flush_and_count() == (written, written)


def test_rows_are_stored_once_when_the_server_is_killed(server: RestartableServer) -> None:
    kill_under_load(server, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_are_stored_once_when_the_server_is_killed_many_times(
    server: RestartableServer,
) -> None:
    kill_under_load(server, kills=MANY_KILLS)
