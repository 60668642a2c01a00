"""The status server: what it costs statements, and how it answers while the engine is busy.

- CPU time of the server for a ``SELECT 1``, with the status server and a scrape of its metrics each
  second, and without it. Rounds alternate between the two: both depend on the load of the machine.
- Latency of ``/livez``, ``/readyz``, ``/metrics`` and ``/status.json`` for 200 clients, each with
  a connection of its own and a request a second, while queries use every thread of the engine.

``python benchmarks/status.py [--quick]``
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_most, at_most_in_all, p50, p99, print_table
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess

CLIENTS = 200
ON = {"SWANLAKE_STATUS": "on", "SWANLAKE_STATUS_PORT": "0", "SWANLAKE_DUCKDB_THREADS": "0"}
OFF = {"SWANLAKE_STATUS": "off", "SWANLAKE_DUCKDB_THREADS": "0"}
PATHS = ("/livez", "/readyz", "/metrics", "/status.json")


@contextmanager
def scraped(url: str) -> Iterator[None]:
    """Reads the metrics every second during the block."""
    stop = threading.Event()

    def scrape() -> None:
        with httpx.Client(base_url=url) as client:
            while not stop.wait(1.0):
                client.get("/metrics")

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cpu_seconds(server: ServerProcess) -> float:
    """The CPU time of the process so far."""
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def run_statements(
    server: ServerProcess, client: FlightSQLClient, count: int
) -> tuple[float, float]:
    """Microseconds for one: CPU time of the server, and the median latency."""
    latencies: list[float] = []
    before = cpu_seconds(server)
    for _ in range(count):
        started = time.perf_counter()
        client.execute("SELECT 1")
        latencies.append(time.perf_counter() - started)
    return (cpu_seconds(server) - before) / count * 1e6, p50(latencies) * 1e6


def cost_of_metrics(rounds: int, statements: int) -> list[Answer]:
    """The cost of a statement with the status server, relative to that without it."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            name: stack.enter_context(ServerProcess(home / name, **settings))
            for name, settings in (("off", OFF), ("on", ON))
        }
        clients = {
            name: stack.enter_context(FlightSQLClient(server.url))
            for name, server in servers.items()
        }
        samples: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
        for name in servers:
            run_statements(servers[name], clients[name], statements)  # warm up
        for _ in range(rounds):
            for name, server in servers.items():
                with ExitStack() as scraping:
                    if name == "on":
                        scraping.enter_context(scraped(server.status_url))
                    samples[name].append(run_statements(server, clients[name], statements))
    cpu = {name: p50([sample[0] for sample in each]) for name, each in samples.items()}
    latency = {name: p50([sample[1] for sample in each]) for name, each in samples.items()}
    ratios = [on[0] / off[0] for off, on in zip(samples["off"], samples["on"], strict=True)]
    print("ratios of CPU time by round:", " ".join(f"{ratio:.3f}" for ratio in ratios))
    return [
        Answer("CPU time of SELECT 1", cpu["off"], cpu["on"], "us", at_most(1.03, "1.03")),
        Answer("latency of SELECT 1, p50", latency["off"], latency["on"], "us"),
    ]


async def request_repeatedly(url: str, path: str, seconds: float, delay: float) -> list[float]:
    """The latencies of one client with a connection of its own."""
    address = urlsplit(url)
    await asyncio.sleep(delay)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    latencies: list[float] = []
    ends_at = time.perf_counter() + seconds
    while (started := time.perf_counter()) < ends_at:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {address.netloc}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 200"), head
        length = next(
            int(line[15:]) for line in head.splitlines() if line[:15] == "content-length:"
        )
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - started)
        await asyncio.sleep(max(0.0, started + 1.0 - time.perf_counter()))
    writer.close()
    return latencies


async def request_by_all(url: str, path: str, seconds: float) -> list[float]:
    """The latencies of all clients, which begin within a second."""
    clients = [
        request_repeatedly(url, path, seconds, number / CLIENTS) for number in range(CLIENTS)
    ]
    return [latency for each in await asyncio.gather(*clients) for latency in each]


def latency_under_load(seconds: float) -> list[Answer]:
    """The latencies of each path, with an idle engine and with a busy one."""

    def run_endlessly(client: FlightSQLClient) -> None:
        with suppress(SwanLakeError):
            client.execute(ENDLESS_QUERY)

    answers = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(ServerProcess(home / "home", **ON))
        while httpx.get(f"{server.status_url}/readyz").status_code != 200:
            time.sleep(0.1)
        url = server.status_url
        idle = {path: asyncio.run(request_by_all(url, path, seconds)) for path in PATHS}
        clients = [stack.enter_context(FlightSQLClient(server.url)) for _ in range(2)]
        queries = [threading.Thread(target=run_endlessly, args=(each,)) for each in clients]
        for query in queries:
            query.start()
        busy = {path: asyncio.run(request_by_all(url, path, seconds)) for path in PATHS}
        server.kill()
        for query in queries:
            query.join()
    for path in PATHS:
        limit = 100 if path == "/livez" else 1000
        numbers = p99(idle[path]) * 1000, p99(busy[path]) * 1000
        answers.append(Answer(f"{path}, p99", *numbers, "ms", at_most_in_all(limit, "ms")))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Fewer rounds.")
    quick = parser.parse_args().quick
    print_table(
        "Cost of metrics: without the status server, and with it and a scrape a second",
        cost_of_metrics(*((4, 500) if quick else (12, 3000))),
    )
    print_table(
        f"{CLIENTS} HTTP clients: idle engine, and busy engine",
        latency_under_load(3.0 if quick else 15.0),
    )


if __name__ == "__main__":
    main()
