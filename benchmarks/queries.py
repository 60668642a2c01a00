"""Cost of a query through the server: point queries and large results.

``python benchmarks/queries.py [--quick]``
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import psutil
import pyarrow.flight as flight
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_least, at_most, at_most_more, p50, p99, print_table
from swanlake.cli.commands import swanlake
from swanlake.client import FlightSQLClient
from swanlake.config import Settings
from swanlake.engine.instance import Engine, EngineSpec
from swanlake.lake.lake import DEFAULT_CATALOG, Lake
from swanlake.protocol import Actions, Headers, encode, messages
from tests.credentials import write_tokens
from tests.server_process import ServerProcess

MEGABYTE = 1 << 20
POINT_ROWS = 1_000_000
_ADMIN_TOKEN = "token-of-the-benchmark"
_FIVE_MORE = at_most(1.05, "1.05")
COLUMNS = "range AS id, range * 0.5::DOUBLE AS value, 'name-' || range AS name"


@dataclass(frozen=True)
class Client:
    """A client under test: its name, and a function that streams the batches of a query."""

    name: str
    batches: Callable[[str], Iterator[Any]]


@dataclass(frozen=True)
class Delivery:
    """The transfer of one large result."""

    megabytes_per_second: float
    first_batch_milliseconds: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions, small results")
    arguments.add_argument("--access", action="store_true", help="only the cost of access rules")
    options = arguments.parse_args()
    quick = options.quick
    if options.access:
        access_rules(rounds=200 if quick else 2000)
        return
    stream_rows = 1_000_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder:
        home = Path(folder)
        settings = Settings(home=home / "in-process")
        with Lake.from_settings(settings) as lake:
            location = lake.location(lake.ensure_catalog(DEFAULT_CATALOG).info)
        engine = Engine(EngineSpec.from_settings(settings, location))
        local = engine.connect()
        with (
            ServerProcess(home / "server") as server,
            FlightSQLClient(server.url) as ours,
            FlightSQLClient(server.url) as two_trips,
            adbc.connect(server.url, autocommit=True) as stock,
            flight.FlightClient(server.url) as plain,
        ):
            for table, rows in (("points", POINT_ROWS), ("stream", stream_rows)):
                create = f"CREATE TABLE {table} AS SELECT {COLUMNS} FROM range({rows})"
                local.execute(create)
                ours.execute(create)
            # As with a server that does not announce statement tickets.
            driver = two_trips._connection.driver
            driver.actions -= {Actions.STATEMENT_TICKETS}
            clients = [
                Client("DuckDB in process", lambda sql: local.execute(sql).to_arrow_reader()),
                Client("our client", lambda sql: query_batches(ours, sql)),
                Client("our client, two trips", lambda sql: query_batches(two_trips, sql)),
                Client("stock ADBC", lambda sql: adbc_batches(stock, sql)),
                Client("plain pyarrow.flight", lambda sql: flight_batches(plain, sql)),
            ]
            point_queries(clients, rounds=50 if quick else 500)
            streaming(
                [clients[0], clients[1], clients[3]],
                psutil.Process(server.process.pid),
                stream_rows,
                2 if quick else 5,
            )
        local.close()
        engine.close()
    access_rules(rounds=200 if quick else 2000)


def access_rules(rounds: int) -> None:
    """The cost of tokens, roles and grants: a server that has them, over one that trusts all."""
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder:
        guarded_home = Path(folder) / "guarded"
        write_tokens(guarded_home, root=_ADMIN_TOKEN)
        create = ["token", "create", "reader", "--role", "reader", "--grant", "swan*=read"]
        created = CliRunner().invoke(swanlake, [*create, "--home", str(guarded_home)])
        with (
            ServerProcess(Path(folder) / "open") as unguarded,
            ServerProcess(guarded_home, "--auth", "any") as guarded,
            FlightSQLClient(unguarded.url) as trusted,
            FlightSQLClient(guarded.url, token=_ADMIN_TOKEN) as admin,
            FlightSQLClient(guarded.url, token=created.output.strip()) as reader,
        ):
            for client in (trusted, admin):
                client.execute(
                    f"CREATE TABLE points AS SELECT {COLUMNS} FROM range({POINT_ROWS // 10})"
                )
            clients = {"trusted": trusted, "admin": admin, "reader": reader}
            for name, sql in (
                ("SELECT 1", "SELECT 1"),
                ("one row of a lake table", "SELECT * FROM points WHERE id = 4711"),
            ):
                spent: dict[str, list[float]] = {who: [] for who in clients}
                for number in range(-20, rounds):
                    for who, connection in clients.items():
                        start = time.perf_counter()
                        assert connection.query(sql).table.num_rows == 1
                        if number >= 0:
                            spent[who].append((time.perf_counter() - start) * 1000)
                answers = [
                    Answer(f"{who}, p50", p50(spent["trusted"]), p50(spent[who]), "ms", _FIVE_MORE)
                    for who in ("admin", "reader")
                ]
                print_table(f"authentication and roles: {name} ({rounds} rounds)", answers)


def query_batches(client: FlightSQLClient, sql: str) -> Iterator[Any]:
    """All batches of SwanLake's client, after the whole result has arrived."""
    return iter(client.query(sql).table.to_batches())


def stream_batches(client: FlightSQLClient, sql: str) -> Iterator[Any]:
    """Streams the batches of SwanLake's client."""
    with client.stream(sql) as stream:
        yield from stream


def adbc_batches(connection: Any, sql: str) -> Iterator[Any]:
    """Streams the batches of a stock ADBC cursor."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        yield from cursor.fetch_record_batch()


def flight_batches(client: Any, sql: str) -> Iterator[Any]:
    """Streams the batches of pyarrow's client: GetFlightInfo, then DoGet."""
    options = flight.FlightCallOptions(headers=[(Headers.SESSION_ID.encode(), b"plain")])
    command = encode(messages.CommandStatementQuery(query=sql))
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
    for chunk in client.do_get(info.endpoints[0].ticket, options):
        yield chunk.data


def point_queries(clients: Sequence[Client], rounds: int) -> None:
    """Compares the time of small queries; clients alternate within each round."""
    choose = random.Random(1)
    one_row = [f"SELECT * FROM points WHERE id = {choose.randrange(POINT_ROWS)}" for _ in range(97)]
    for name, queries in (("SELECT 1", ["SELECT 1"]), ("one row of a lake table", one_row)):
        spent: dict[str, list[float]] = {client.name: [] for client in clients}
        for i in range(-5, rounds):
            for client in clients:
                start = time.perf_counter()
                rows = sum(batch.num_rows for batch in client.batches(queries[i % len(queries)]))
                if i >= 0:
                    spent[client.name].append((time.perf_counter() - start) * 1000)
                assert rows == 1
        print_point_table(f"point query: {name} ({rounds} rounds)", spent)


def print_point_table(title: str, spent: dict[str, list[float]]) -> None:
    in_process, ours, two_trips, stock, plain = spent.values()
    answers = []
    for name, at in (("p50", p50), ("p99", p99)):
        is_median = at is p50
        answers += [
            Answer(
                f"our client, over DuckDB in process, {name}",
                at(in_process),
                at(ours),
                "ms",
                at_most_more(1, "ms") if is_median else None,
            ),
            Answer(
                f"our client, over stock ADBC, {name}",
                at(stock),
                at(ours),
                "ms",
                at_most(1 / 2, "1/2") if is_median else None,
            ),
            Answer(
                f"our client, two trips, over in process, {name}",
                at(in_process),
                at(two_trips),
                "ms",
            ),
            Answer(
                f"plain pyarrow.flight, over in process, {name}", at(in_process), at(plain), "ms"
            ),
            Answer(f"stock ADBC, over in process, {name}", at(in_process), at(stock), "ms"),
        ]
    answers.append(Answer("our client's overhead, p50", None, p50(ours) - p50(in_process), "ms"))
    print_table(title, answers)


def streaming(clients: Sequence[Client], server: psutil.Process, rows: int, rounds: int) -> None:
    """Compares the throughput of large results, and the server's peak memory."""
    sources = {
        "a generated result": f"SELECT {COLUMNS} FROM range({rows})",
        "a lake table": "SELECT * FROM stream",
    }
    for name, sql in sources.items():
        deliveries: dict[str, list[Delivery]] = {client.name: [] for client in clients}
        peaks: dict[str, float] = {}
        before = server.memory_info().rss
        for _ in range(rounds):
            for client in clients:
                with PeakMemory(server) as peak:
                    deliveries[client.name].append(read_result(client, sql, rows))
                peaks[client.name] = max(peaks.get(client.name, 0), peak.rss)
        in_process, ours, stock = (
            [delivery.megabytes_per_second for delivery in deliveries[client.name]]
            for client in clients
        )
        first_in_process, first_ours, first_stock = (
            [delivery.first_batch_milliseconds for delivery in deliveries[client.name]]
            for client in clients
        )
        answers = [
            Answer("our client, p50", p50(in_process), p50(ours), "MB/s", at_least(0.7)),
            Answer("our client, best", max(in_process), max(ours), "MB/s"),
            Answer("stock ADBC, p50", p50(in_process), p50(stock), "MB/s", at_least(0.7)),
            Answer("stock ADBC, best", max(in_process), max(stock), "MB/s"),
            Answer("first batch, our client, p50", p50(first_in_process), p50(first_ours), "ms"),
            Answer("first batch, stock ADBC, p50", p50(first_in_process), p50(first_stock), "ms"),
            Answer("server's RSS before", None, before / MEGABYTE, "MB"),
            *(
                Answer(
                    f"server's peak RSS, {client.name}", None, peaks[client.name] / MEGABYTE, "MB"
                )
                for client in clients[1:]
            ),
        ]
        print_table(f"streaming {name}: {rows:,} rows ({rounds} rounds)", answers)


def read_result(client: Client, sql: str, rows: int) -> Delivery:
    """Reads a result to its end; counts the bytes of its Arrow buffers."""
    start = time.perf_counter()
    first = 0.0
    size = count = 0
    for batch in client.batches(sql):
        first = first or time.perf_counter() - start
        size += batch.nbytes
        count += batch.num_rows
    seconds = time.perf_counter() - start
    assert count == rows
    return Delivery(size / MEGABYTE / seconds, first * 1000)


class PeakMemory:
    """The largest resident size of a process while the block runs."""

    def __init__(self, process: psutil.Process) -> None:
        self.rss = 0
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.rss = max(self.rss, self._process.memory_info().rss)
            if self._done.wait(0.02):
                return


if __name__ == "__main__":
    main()
