"""kill -9 of the server under a writer: what it writes is in the lake once, all of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import swanlake
from swanlake.client import Writer, WriterReport
from swanlake.client.address import Address
from swanlake.errors import ConnectionLost
from tests.flight import eventually
from tests.integration.client.troubled import Troubled
from tests.server_process import ServerProcess

#: A death and a start take two seconds, or ten on a busy machine.
pytestmark = pytest.mark.timeout(300)
DEATHS = 40


class Mortal:
    """A server that is killed and started again, on the same home and port."""

    def __init__(self, home: Path) -> None:
        self._server = ServerProcess(home).start()
        self.url = self._server.url
        with swanlake.connect(self.url) as client:
            client.execute("CREATE TABLE t (id BIGINT, name VARCHAR)")

    def kill(self) -> None:
        self._server.kill()

    def rise(self) -> None:
        port = self.url.rsplit(":", 1)[1]
        self._server = ServerProcess(self._server.home, "--port", port).start()

    def flushed(self) -> tuple[int, int]:
        """How many rows are in the lake when nothing waits any more, and how many different."""
        with swanlake.connect(self.url) as client:
            client.execute("CALL duckling_queue_flush('main.t')")
            [found] = client.query(
                "SELECT count(*) AS total, count(DISTINCT id) AS ids FROM t"
            ).to_pylist()
            waiting = client.query("SELECT count(*) AS n FROM duckling_queue.t").to_pylist()
        assert waiting == [{"n": 0}]
        return found["total"], found["ids"]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    mortal = Mortal(tmp_path / "home")
    yield mortal
    mortal.kill()


@pytest.mark.parametrize("flushed_before", [False, True])
def test_a_batch_that_was_taken_before_the_death_is_not_taken_again(
    mortal: Mortal, flushed_before: bool
) -> None:
    def die_before_the_answer(send: Callable[[], Any], number: int) -> Any:
        answer = send()
        if number == 1:
            if flushed_before:
                mortal.flushed()
            mortal.kill()
            mortal.rise()
            raise ConnectionLost("the answer was lost with the server")
        return answer

    with Writer(Address.parse(mortal.url), "t", connect=Troubled(die_before_the_answer)) as writer:
        writer.write_many((number, "once") for number in range(100))
    assert writer.report().retries == 1
    assert mortal.flushed() == (100, 100)


def deaths_under_load(mortal: Mortal, deaths: int) -> None:
    """Rows are written without a pause while the server dies again and again."""
    chance = random.Random(7)
    stop = threading.Event()
    writer = Writer(
        Address.parse(mortal.url), "t", max_rows=20, max_delay=0.002, max_pending_rows=2000
    )
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            writer.write((written, "a row"))
            written += 1

    def now_at(count: Callable[[WriterReport], int], more: int) -> None:
        goal = count(writer.report()) + more
        eventually(lambda: count(writer.report()) >= goal, seconds=60)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(deaths):
            now_at(lambda report: report.rows_acknowledged, more=100)
            stop.wait(chance.uniform(0, 0.02))  # dies at any step of a batch
            mortal.kill()
            now_at(lambda report: report.retries, more=1)
            mortal.rise()
    finally:
        stop.set()
        thread.join()
    writer.close(timeout=60)
    report = writer.report()
    assert report.rows_written == report.rows_acknowledged == written
    assert mortal.flushed() == (written, written)


def test_deaths_under_load(mortal: Mortal) -> None:
    deaths_under_load(mortal, deaths=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_deaths_under_load(mortal: Mortal) -> None:
    deaths_under_load(mortal, deaths=DEATHS)
