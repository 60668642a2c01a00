"""Cost of a commit with many writer processes: single-row inserts, compared with stock DuckDB.

An insert is one Parquet file and one commit. The stock extension uses a catalog that it created
itself, with inlining off, so that both write files, and with its default retries. Both use the same
database, one after the other.

``python benchmarks/commits.py [--quick]``
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, Target, at_least, at_most, p50, p99, print_table
from swanlake.engine.database import extension_path
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.files import datafile
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.location import LakeLocation
from swanlake.lake.model.operations import Commit, Insert
from swanlake.lake.model.types import ColumnSpec
from swanlake.sql.quoting import literal
from tests.faults.workers import LakeAddress, WorkerPool, wait_for_all
from tests.postgres_server import PostgresServer

COLUMNS = [ColumnSpec("writer", "BIGINT"), ColumnSpec("number", "BIGINT")]
WRITERS = (1, 8, 16)
THROUGHPUT = at_least(5)
LATENCY = at_most(1 / 20, "1/20")
NONE = Target("0", lambda baseline, swanlake: swanlake == 0)


@dataclass
class Timings:
    """Timings of one writer, or of all of them."""

    began: float
    ended: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    failures: int = 0

    def per_second(self) -> float:
        """Successful commits per second of the whole run."""
        return (len(self.milliseconds) - self.failures) / (self.ended - self.began)

    def measure(self, insert: Callable[[int], Committed | None], rounds: int) -> Timings:
        """Times a number of inserts, after one that opens connections."""
        with contextlib.suppress(duckdb.Error):
            insert(rounds)
        wait_for_all()
        self.began = time.monotonic()
        for number in range(rounds):
            started = time.perf_counter()
            try:
                committed = insert(number)
            except duckdb.Error:
                self.failures += 1
            else:
                if committed is not None:
                    self.committed.append(committed)
            self.milliseconds.append((time.perf_counter() - started) * 1000)
        self.ended = time.monotonic()
        return self


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions")
    rounds = 10 if arguments.parse_args().quick else 40
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder:
        with PostgresServer() as server:
            compare("PostgreSQL", LakeAddress(server.url, f"{folder}/data"), rounds)
        compare("SQLite", LakeAddress(Path(folder) / "catalogs", f"{folder}/sqlite-data"), rounds)


def compare(metabase: str, address: LakeAddress, rounds: int) -> None:
    """Prints one table for each number of writers."""
    for writers in WRITERS:
        answers = []
        for one_table in (True, False) if writers > 1 else (True,):
            stock, ours = run(address, writers, rounds, one_table=one_table)
            tables = "same table" if one_table else "one table each"
            goal = writers == max(WRITERS)
            answers += summary(tables if writers > 1 else "alone", stock, ours, goal=goal)
        print_table(
            f"{metabase}, {writers} writer{'s' if writers > 1 else ''}, {rounds} inserts each; "
            "baseline: stock DuckDB, inlining off",
            answers,
        )


def summary(tables: str, stock: Timings, ours: Timings, *, goal: bool) -> list[Answer]:
    """The lines of one comparison; only the largest number of writers has targets."""
    held = [1000 * committed.lock_held_seconds for committed in ours.committed]
    waited = [1000 * committed.waited_seconds for committed in ours.committed]
    retries = sum(committed.attempts - 1 for committed in ours.committed)

    def line(what: str, at: Callable[[list[float]], float], target: Target | None = None) -> Answer:
        times = (at(stock.milliseconds), at(ours.milliseconds))
        return Answer(f"{tables}: {what}", *times, "ms", target if goal else None)

    return [
        Answer(
            f"{tables}: commits",
            stock.per_second(),
            ours.per_second(),
            "/s",
            THROUGHPUT if goal else None,
        ),
        line("p50", p50),
        line("p99", p99, LATENCY),
        line("max", max),
        Answer(f"{tables}: failures", stock.failures, ours.failures, "", NONE if goal else None),
        Answer(f"{tables}: our retries", None, retries, ""),
        Answer(f"{tables}: lock held, p50", None, p50(held), "ms"),
        Answer(f"{tables}: lock held, p99", None, p99(held), "ms"),
        Answer(f"{tables}: waited for the lock, p50", None, p50(waited), "ms"),
        Answer(f"{tables}: waited for the lock, p99", None, p99(waited), "ms"),
    ]


def run(
    address: LakeAddress, writers: int, rounds: int, *, one_table: bool
) -> tuple[Timings, Timings]:
    """Runs the stock writers, then ours, each in a new catalog."""
    results = []
    for kind, job in (("stock", stock_writer), ("ours", our_writer)):
        name = f"{kind}_{writers}_{'same' if one_table else 'each'}"
        tables = [f"t{number}" for number in range(1 if one_table else writers)]
        location: LakeLocation | LakeAddress = address
        if job is stock_writer:
            location = make_stock_catalog(address, name, tables)
        else:
            with Lake.open(address.metabase, address.data) as lake:
                catalog = lake.create_catalog(name)
                for table in tables:
                    catalog.create_table("main", table, COLUMNS)
        with WorkerPool(writers) as workers:
            timings = workers.run(
                job,
                [
                    (location, name, f"t{0 if one_table else number}", number, rounds)
                    for number in range(writers)
                ],
            )
        results.append(combine(timings))
    return results[0], results[1]


def make_stock_catalog(address: LakeAddress, name: str, tables: list[str]) -> LakeLocation:
    """Creates a catalog with the stock extension, without our fence and indexes."""
    options = [f"DATA_PATH {literal(f'{address.data}/{name}/')}"]
    if isinstance(address.metabase, str):
        location = LakeLocation(name, metabase_url=address.metabase, metadata_schema=f"lake_{name}")
        source = f"ducklake:postgres:{address.metabase}"
        options.append(f"METADATA_SCHEMA {literal(location.metadata_schema)}")
    else:
        address.metabase.mkdir(parents=True, exist_ok=True)
        location = LakeLocation(name, sqlite_path=address.metabase / f"{name}.sqlite")
        source = f"ducklake:sqlite:{location.sqlite_path}"
    columns = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
    with stock_duckdb() as duck:
        duck.execute(f"ATTACH {literal(source)} AS {name} ({', '.join(options)})")
        for table in tables:
            duck.execute(f"CREATE TABLE {name}.main.{table} ({columns})")
    return location


def stock_duckdb() -> duckdb.DuckDBPyConnection:
    """DuckDB with the stock extensions, and one thread because many writers share the machine."""
    duck = duckdb.connect(":memory:")
    for name in ("ducklake", "sqlite_scanner", "postgres_scanner"):
        duck.execute(f"LOAD {literal(str(extension_path(name)))}")
    duck.execute("SET threads = 1")
    return duck


def combine(timings: list[Timings]) -> Timings:
    """Combines the timings of all writers."""
    return Timings(
        min(writer.began for writer in timings),
        max(writer.ended for writer in timings),
        [time for writer in timings for time in writer.milliseconds],
        [committed for writer in timings for committed in writer.committed],
        sum(writer.failures for writer in timings),
    )


def stock_writer(
    location: LakeLocation, catalog: str, table: str, writer: int, rounds: int
) -> Timings:
    """Inserts with the stock extension."""
    with stock_duckdb() as duck:
        location.attach(duck)

        def insert(number: int) -> None:
            duck.execute(f"INSERT INTO {catalog}.main.{table} VALUES ({writer}, {number})")

        return Timings(0).measure(insert, rounds)


def our_writer(address: LakeAddress, catalog: str, table: str, writer: int, rounds: int) -> Timings:
    """Writes a file with DuckDB and commits it as a blind insert."""
    with address.writer(catalog) as (ours, duck):
        target = ours.table("main", table)
        base = target.snapshot_id

        def insert(number: int) -> Committed:
            nonlocal base
            files = tuple(datafile.write_files(duck, f"SELECT {writer}, {number}", target))
            done = ours.commit(Commit((Insert(target, files, blind=True),), base=base))
            base = done.snapshot_id  # no conflict check is needed before this snapshot
            return done

        return Timings(0).measure(insert, rounds)


if __name__ == "__main__":
    main()
