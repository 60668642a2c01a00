"""Cost of a session: the time to open one, and the server's memory for a hundred.

``python benchmarks/sessions.py [--quick]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import duckdb
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_most, at_most_in_all, p50, p99, print_table
from benchmarks.small import DEFAULT_THREADS
from swanlake.client import FlightSQLClient
from swanlake.config import Settings
from swanlake.engine.database import load_extensions
from swanlake.engine.instance import Engine, EngineSpec
from swanlake.lake.lake import DEFAULT_CATALOG, Lake
from tests.server_process import ServerProcess

TARGET = at_most(1 / 50, "1/50")
STOCK_TARGET = at_most_in_all(10, "ms")
MEGABYTE = 1 << 20

Close = Callable[[], None]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions")
    quick = arguments.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder:
        opening(Path(folder), rounds=10 if quick else 40)
        memory(Path(folder), shared=50 if quick else 400, instances=5 if quick else 20)


def opening(folder: Path, rounds: int) -> None:
    """Compares the time to the first result of a new session."""
    spec = lake(folder / "in-process")
    shared = Engine(spec)
    with (
        ServerProcess(
            folder / "server", SWANLAKE_MAX_SESSIONS="100000", **DEFAULT_THREADS
        ) as server,
        FlightSQLClient(server.url) as channel,
    ):

        def fresh_instance() -> Close:
            engine = Engine(spec)
            engine.connect().execute("SELECT 1").fetchall()
            return engine.close

        def fresh_unchecked_instance() -> Close:
            connection = duckdb.connect(config={"allow_unsigned_extensions": True})
            load_extensions(connection)
            spec.lake.attach(connection)
            connection.execute(f"USE {spec.lake.catalog}")
            connection.execute("SELECT 1").fetchall()
            return connection.close

        def shared_engine() -> Close:
            connection = shared.connect()
            connection.execute("SELECT 1").fetchall()
            return connection.close

        def new_session_id() -> Close:
            channel._connection.driver.begin_new_session()
            channel.execute("SELECT 1")
            return keep_open

        def known_session_id() -> Close:
            channel.execute("SELECT 1")
            return keep_open

        def new_connection() -> Close:
            connection = FlightSQLClient(server.url)
            connection.execute("SELECT 1")
            return connection.close

        def stock_adbc() -> Close:
            connection = adbc.connect(server.url, autocommit=True)
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetch_arrow_table()
            return connection.close  # type: ignore[no-any-return]

        baseline, unchecked, engine_only, same_channel, known, own_channel, stock = (
            time_alternately(
                (
                    fresh_instance,
                    fresh_unchecked_instance,
                    shared_engine,
                    new_session_id,
                    known_session_id,
                    new_connection,
                    stock_adbc,
                ),
                rounds,
            )
        )
    answers = []
    for name, at, target in (("p50", p50, TARGET), ("p99", p99, None)):
        answers += [
            Answer(f"{question}, {name}", at(baseline), at(spent), "ms", aim)
            for question, spent, aim in (
                ("open + SELECT 1, our client, known channel", same_channel, target),
                ("open + SELECT 1, our client, new channel", own_channel, target),
                ("open + SELECT 1, stock ADBC", stock, target and STOCK_TARGET),
                ("Engine.connect() + SELECT 1 in process", engine_only, None),
                ("SELECT 1 alone, our client, known session", known, None),
            )
        ]
        unchecked_open = f"our client, known channel, over unchecked extensions, {name}"
        answers.append(Answer(unchecked_open, at(unchecked), at(same_channel), "ms"))
    print_table(
        f"session open; baseline: fresh DuckDB instance with ATTACH ({rounds} rounds)", answers
    )


def memory(folder: Path, shared: int, instances: int) -> None:
    """Measures a server's memory by number of sessions, shared and with an instance each."""
    answers = []
    for isolation, count in (("shared", shared), ("instance", instances)):
        with ServerProcess(
            folder / isolation,
            SWANLAKE_MAX_SESSIONS="100000",
            SWANLAKE_SESSION_ISOLATION=isolation,
        ) as server:
            process = psutil.Process(server.process.pid)
            with FlightSQLClient(server.url) as channel:
                channel.execute("SELECT 1")
                settle(process)
                before = process.memory_info().rss
                opened = []
                for _ in range(count):
                    channel._connection.driver.begin_new_session()
                    start = time.perf_counter()
                    channel.execute("SELECT 1")
                    opened.append((time.perf_counter() - start) * 1000)
                    if isolation == "instance":
                        settle(process)
                grown = (process.memory_info().rss - before) / MEGABYTE
        answers += [
            Answer(f"{isolation}: server with one session, RSS", None, before / MEGABYTE, "MB"),
            Answer(f"{isolation}: RSS per 100 sessions", None, grown * 100 / count, "MB"),
            Answer(f"{isolation}: open + SELECT 1, known channel, p50", None, p50(opened), "ms"),
            Answer(f"{isolation}: open + SELECT 1, known channel, p99", None, p99(opened), "ms"),
        ]
    print_table(f"memory ({shared} shared sessions, {instances} instances)", answers)


def time_alternately(calls: tuple[Callable[[], Close], ...], rounds: int) -> list[list[float]]:
    """Milliseconds of every call, one of each per round; the first round is a warm-up."""
    spent: list[list[float]] = [[] for _ in calls]
    for i in range(rounds + 1):
        for call, times in zip(calls, spent, strict=True):
            start = time.perf_counter()
            close = call()
            if i:
                times.append((time.perf_counter() - start) * 1000)
            close()
    return spent


def keep_open() -> None:
    """Does nothing: closing a shared channel would close it for all sessions."""


def settle(process: psutil.Process) -> None:
    """Waits until the server is idle."""
    while process.cpu_percent(interval=0.2) > 5:
        pass


def lake(home: Path) -> EngineSpec:
    """Creates an empty lake on SQLite with default settings."""
    settings = Settings(home=home)
    with Lake.from_settings(settings) as lake:
        catalog = lake.ensure_catalog(DEFAULT_CATALOG)
        return EngineSpec.from_settings(settings, lake.location(catalog.info))


if __name__ == "__main__":
    main()
