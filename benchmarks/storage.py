"""Statements on a lake in an object store that takes 10 ms longer for each request.

``python benchmarks/storage.py [--quick]``; the baseline is the same lake in a directory, or the
first read of the same rows. Needs Go for the S3 server.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_most, p50, print_table
from benchmarks.small import DEFAULT_THREADS
from swanlake.client import FlightSQLClient
from tests.object_store import S3Server, gateway_program
from tests.server_process import ServerProcess

DELAY_SECONDS = 0.01
FILES = 20
POINT = "SELECT h FROM t WHERE i = 123"
SCAN = "SELECT sum(h) FROM t"


class SlowStore:
    """Forwards HTTP connections to a store, and holds back the first bytes of each request."""

    def __init__(self, port: int) -> None:
        self._store_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        #: Requests so far.
        self.requests = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            store = socket.create_connection(("127.0.0.1", self._store_port))
            for end in (client, store):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            is_idle = threading.Event()
            is_idle.set()
            for pump in (self._send, self._receive):
                ends = (client, store, is_idle)
                threading.Thread(target=pump, args=ends, daemon=True).start()

    def _send(self, client: socket.socket, store: socket.socket, is_idle: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 18):
                if is_idle.is_set():
                    is_idle.clear()
                    self.requests += 1
                    time.sleep(DELAY_SECONDS)
                store.sendall(data)
        store.close()

    def _receive(
        self, client: socket.socket, store: socket.socket, is_idle: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := store.recv(1 << 18):
                is_idle.set()
                client.sendall(data)
        client.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions")
    rounds = 5 if arguments.parse_args().quick else 20
    with (
        tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder,
        S3Server(gateway_program()) as s3,
    ):
        slow = SlowStore(s3.port)
        environment = s3.environment(f"{s3.new_bucket()}/lake")
        environment |= {"SWANLAKE_STORAGE_ENDPOINT": slow.endpoint} | DEFAULT_THREADS
        local = measure(Path(folder) / "local", DEFAULT_THREADS, None, rounds)
        remote = measure(Path(folder) / "remote", environment, slow, rounds)
    writes = [
        Answer(name, local[name], remote[name], "ms")
        for name in ("insert 1,000,000 rows", "flush 10,000 rows", "compact 20 files")
    ]
    reads = [
        Answer(
            f"{name}, repeated",
            remote[name],
            remote[f"{name}, repeated"],
            "ms",
            at_most(1 / 5, "1/5"),
        )
        for name in ("scan of 20 files", "point read")
    ]
    requests = [
        Answer(f"requests of a {name}", None, remote[f"requests of a {name}"], "")
        for name in ("scan", "repeated scan")
    ]
    print_table("Object store with 10 ms for each request; baseline: a directory", writes)
    print_table("Repeated reads; baseline: the first read after a start", [*reads, *requests])


def measure(
    home: Path, environment: dict[str, str], slow: SlowStore | None, rounds: int
) -> dict[str, float]:
    """The times of statements, in milliseconds."""
    found: dict[str, float] = {}
    with opened(home, environment) as client:
        client.execute("CREATE TABLE t (i BIGINT, h UBIGINT)")
        for number in range(FILES):
            first = number * 10_000
            client.execute(
                f"INSERT INTO t SELECT range, hash(range) FROM range({first}, {first + 10_000})"
            )
        client.execute("CREATE TABLE big (i BIGINT, h UBIGINT)")
        rows = "SELECT range, hash(range) FROM range(1_000_000)"
        found["insert 1,000,000 rows"] = took(client, f"INSERT INTO big {rows}")
        client.execute("CREATE TABLE q (i BIGINT)")
        client.execute("INSERT INTO duckling_queue.q SELECT range FROM range(10_000)")
        found["flush 10,000 rows"] = took(client, "CALL duckling_queue_flush()")
    for name, query in (("point read", POINT), ("scan of 20 files", SCAN)):
        with opened(home, environment) as client:  # with empty caches
            client.query("SELECT 1 FROM q LIMIT 0")  # the catalog is loaded
            before = slow.requests if slow else 0
            found[name] = took(client, query)
            first = slow.requests if slow else 0
            found[f"{name}, repeated"] = p50([took(client, query) for _ in range(rounds)])
            found["requests of a scan"] = first - before
            found["requests of a repeated scan"] = (slow.requests if slow else 0) - first
    with opened(home, environment) as client:
        found["compact 20 files"] = took(client, "CALL swanlake_compact('main.t')")
    return found


@contextlib.contextmanager
def opened(home: Path, environment: dict[str, str]) -> Iterator[FlightSQLClient]:
    """A client of a server that was just started."""
    with ServerProcess(home, **environment) as server, FlightSQLClient(server.url) as client:
        yield client
        server.stop()


def took(client: FlightSQLClient, sql: str) -> float:
    """The milliseconds of a statement, with the fetch of its rows."""
    started = time.perf_counter()
    client.query(sql)
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    main()
