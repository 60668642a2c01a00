"""Our writers and stock DuckDB work on one catalog, while others give up or are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlalchemy import select

from swanlake.engine.extensions import extension_path
from swanlake.errors import CommitConflict
from swanlake.lake import commit, datafile
from swanlake.lake.commit import Retries
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.local import open_metabase
from swanlake.lake.location import LakeLocation
from swanlake.lake.operations import Commit, Delete, Insert
from swanlake.lake.types import ColumnSpec
from swanlake.sql.quoting import literal
from tests.faults.crew import Crew, Place, history, wait_for_all

COLUMNS = [ColumnSpec("writer", "BIGINT", nullable=False), ColumnSpec("number", "BIGINT")]
ROWS_PER_FILE = 3
#: Rows of writers that never commit.
NEVER = -1
#: What a stock writer may fail with: others changed what it worked on.
CONFLICTS = (
    "Transaction conflict",
    # Two deletes from one file: the stock check misses them, the index does not.
    "ducklake_delete_file_active_uidx",
    # A stock writer that loses the race for the head ten times in a row says so and gives up.
    "Exceeded the maximum retry count",
)
LOCKED = ("database is locked", "cannot rollback - no transaction is active")


@dataclass
class Record:
    """What one writer did, by its own account."""

    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Pace:
    """Rounds from when all are ready until the time is over.

    With a breath between them, so that everybody gets a turn.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._never = threading.Event()

    def __iter__(self) -> Pace:
        self._number = -1
        wait_for_all()
        self._end = time.monotonic() + self._seconds
        return self

    def __next__(self) -> int:
        self._never.wait(0.08)
        if time.monotonic() >= self._end:
            raise StopIteration
        self._number += 1
        return self._number


# ---- our writers -------------------------------------------------------------------------------


class GivesUp(Exception):
    """Thrown in the middle of a commit."""


def our_appender(place: Place, worker: int, seconds: float) -> Record:
    """Appends rows; every fifth commit is given up after everything is written."""
    record = Record()

    def give_up(step: str) -> None:
        if step == "written":
            raise GivesUp

    with place.writer("sales") as (sales, duck):
        table = sales.table("main", "events")
        given_up = open_metabase(place.metabase, place.data).store(sales.info)
        given_up.reached = give_up
        for number in Pace(seconds):
            files = tuple(datafile.write_files(duck, f"SELECT {worker}, {number}", table))
            change = Commit((Insert(table, files, blind=True),), base=table.snapshot_id)
            if number % 5 == 4:
                with pytest.raises(GivesUp):
                    commit.apply(given_up, change)
                datafile.remove_files(table, files)
                continue
            done = sales.commit(change)
            assert done.applied
            record.done["events"] += 1
        given_up.engine.dispose()
    return record


def our_table_maker(place: Place, worker: int, seconds: float) -> Record:
    """Makes tables, drops every other one."""
    record = Record()
    with place.writer("sales") as (sales, duck):
        for number in Pace(seconds):
            name = f"t_{worker}_{number}"
            sales.create_table("main", name, COLUMNS)
            sales.append(duck, f"SELECT {worker}, {number}", "main", name)
            if number % 2:
                sales.drop_table("main", name)
            else:
                record.done["tables"] += 1
    return record


def our_deleter(place: Place, worker: int, seconds: float) -> Record:
    """Appends files of three rows to a bin, and takes whole files out of it."""
    record = Record()
    metabase = open_metabase(place.metabase, place.data)
    with place.writer("sales") as (sales, duck):
        store = metabase.store(sales.info)
        data, deletes = store.tables.data_file, store.tables.delete_file
        for number in Pace(seconds):
            if number % 3:
                query = f"SELECT {number}, range FROM range({ROWS_PER_FILE})"
                sales.append(duck, query, "main", "bin")
                record.done["added"] += ROWS_PER_FILE
                continue
            table = sales.table("main", "bin")
            with store.connect() as connection:
                whole = connection.execute(
                    select(data.c.data_file_id)
                    .join(deletes, deletes.c.data_file_id == data.c.data_file_id, isouter=True)
                    .where(data.c.table_id == table.id, data.c.end_snapshot.is_(None))
                    .where(deletes.c.delete_file_id.is_(None), data.c.record_count == ROWS_PER_FILE)
                    .order_by(data.c.data_file_id.desc())
                ).scalars()
                found = whole.first()
            if found is None:
                continue
            try:
                sales.commit(Commit((Delete(table, dropped=(found,)),), base=table.snapshot_id))
                record.done["deleted"] += ROWS_PER_FILE
            except CommitConflict as conflict:
                record.failures.append(conflict.message)
    metabase.close()
    return record


# ---- stock writers -----------------------------------------------------------------------------


class Stock:
    """Stock DuckDB with the catalog attached, and an account of what it did."""

    def __init__(self, location: LakeLocation, inlined_rows: int = 0) -> None:
        self.record = Record()
        self.duck = duckdb.connect(":memory:")
        for name in ("ducklake", "sqlite_scanner", "postgres_scanner"):
            self.duck.execute(f"LOAD {literal(str(extension_path(name)))}")
        self.duck.execute("SET threads = 1")
        # It commits only if nobody does between its first read and its write; its own patience of
        # ten attempts is not enough beside writers that take a lock.
        self.duck.execute("SET ducklake_max_retry_count = 200")
        self.duck.execute("SET ducklake_retry_wait_ms = 10")
        self.duck.execute("SET ducklake_retry_backoff = 1.01")
        location.attach(Inlining(self.duck, inlined_rows))  # type: ignore[arg-type]

    def try_to(self, what: str, *statements: str) -> None:
        try:
            for statement in statements:
                rows = self.duck.execute(statement).fetchall()
            if what.startswith("deleted"):
                self.record.done[what] += rows[0][0]
            else:
                self.record.done[what] += 1
        except duckdb.Error as error:
            self.record.failures.append(" ".join(str(error).split()))
            self.give_up()

    def give_up(self) -> None:
        try:
            self.duck.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # of a statement that was its own transaction, nothing is left


class Inlining:
    """Lets a catalog be attached with small inserts kept in the metadata."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, rows: int) -> None:
        self._duck = duck
        self._rows = rows

    def execute(self, statement: str) -> Any:
        limit = "DATA_INLINING_ROW_LIMIT"
        return self._duck.execute(statement.replace(f"{limit} 0", f"{limit} {self._rows}"))


def stock_inserter(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Inserts rows; every third transaction is rolled back."""
    stock = Stock(location)
    for number in Pace(seconds):
        insert = f"INSERT INTO sales.main.events VALUES ({worker}, {number})"
        if number % 3 == 2:
            stock.duck.execute("BEGIN").execute(insert)
            stock.give_up()
        else:
            stock.try_to("events", insert)
    return stock.record


def stock_inliner(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Inserts rows that are kept in the metadata."""
    stock = Stock(location, inlined_rows=10)
    for number in Pace(seconds):
        stock.try_to("events", f"INSERT INTO sales.main.events VALUES ({worker}, {number})")
    return stock.record


def stock_updater(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Counts up, and deletes single rows from the bin."""
    stock = Stock(location)
    for number in Pace(seconds):
        if number % 3:
            stock.try_to("counted", "UPDATE sales.main.counter SET number = number + 1")
        else:
            stock.try_to(
                "deleted",
                "DELETE FROM sales.main.bin WHERE number = 0 AND writer = "
                "(SELECT min(writer) FROM sales.main.bin WHERE number = 0)",
            )
    return stock.record


def stock_table_maker(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Makes tables with a row in one transaction, adds a column, drops every other one."""
    stock = Stock(location)
    for number in Pace(seconds):
        name = f"sales.main.t_{worker}_{number}"
        before = stock.record.done["made"]
        stock.try_to("made", "BEGIN", f"CREATE TABLE {name} AS SELECT {worker} AS writer", "COMMIT")
        if stock.record.done["made"] == before:
            continue
        stock.try_to("altered", f"ALTER TABLE {name} ADD COLUMN extra INTEGER")
        if number % 2:
            stock.try_to("dropped", f"DROP TABLE {name}")
    return stock.record


# ---- writers that are killed -------------------------------------------------------------------


def stock_victim(location: LakeLocation, pipe: Any) -> None:
    stock = Stock(location)
    stock.duck.execute("BEGIN")
    stock.duck.execute(f"INSERT INTO sales.main.events VALUES ({NEVER}, 0)")
    stock.duck.execute("CREATE TABLE sales.main.never(i INTEGER)")
    pipe.send("written")
    pipe.recv()


def our_victim(place: Place, pipe: Any) -> None:
    def stop(step: str) -> None:
        if step == "written":
            pipe.send(step)
            os.kill(os.getpid(), signal.SIGKILL)

    with place.writer("sales") as (sales, duck):
        table = sales.table("main", "events")
        files = tuple(datafile.write_files(duck, f"SELECT {NEVER}, 0", table))
        store = open_metabase(place.metabase, place.data).store(sales.info)
        store.reached = stop
        commit.apply(store, Commit((Insert(table, files, blind=True),), base=table.snapshot_id))


def kill_when_written(job: Callable[..., None], where: Place | LakeLocation) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=job, args=(where, theirs))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == "written"
    process.kill()
    process.join()
    ours.close()
    theirs.close()


# ---- tests -------------------------------------------------------------------------------------

OURS = (our_appender, our_appender, our_table_maker, our_deleter)
STOCK = (stock_inserter, stock_inliner, stock_updater, stock_table_maker)


def any_writer(job: Callable[..., Record], where: Any, worker: int, seconds: float) -> Record:
    return job(where, worker, seconds)


def run(
    place: Place, lake: Lake, duck: duckdb.DuckDBPyConnection, seconds: float, *, copies: int = 1
) -> tuple[Catalog, list[Record], list[Record]]:
    """Lets all of them loose; returns what ours and the stock writers did."""
    sales = lake.create_catalog("sales")
    for name in ("events", "counter", "bin"):
        sales.create_table("main", name, COLUMNS)
    sales.append(duck, "SELECT 0, 0", "main", "counter")
    location = lake.location(sales.info)
    ours, stock = OURS * copies, STOCK * copies
    parts: list[tuple[Any, ...]] = [(job, place) for job in ours]
    parts += [(job, location) for job in stock]
    with Crew(len(parts)) as crew:
        numbered = [(*part, worker, seconds) for worker, part in enumerate(parts)]
        running: AsyncResult[list[Record]] = crew.begin(any_writer, numbered)
        while not running.ready():
            kill_when_written(stock_victim, location)
            kill_when_written(our_victim, place)
        records = running.get()
    return sales, records[: len(ours)], records[len(ours) :]


def assert_true(
    place: Place,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    records: list[Record],
) -> None:
    """Everything that was said to be done is there, once, and nothing else."""
    done: Counter[str] = sum((record.done for record in records), Counter())
    with Crew(1) as crew:
        past = crew.ask(history, place, "sales")
    # The stock extension dates a snapshot by the begin of its transaction.
    past.assert_sound(times=False)
    lake.location(sales.info).attach(duck)

    def answer(query: str) -> Any:
        [(value,)] = duck.execute(query).fetchall()
        return value

    assert answer("SELECT count(*) FROM sales.main.events") == done["events"]
    assert len(duck.execute("SELECT * FROM sales.main.events").fetchall()) == done["events"]
    assert (
        answer("SELECT count(DISTINCT (writer, number)) FROM sales.main.events") == done["events"]
    )
    assert answer(f"SELECT count(*) FROM sales.main.events WHERE writer = {NEVER}") == 0
    assert answer("SELECT number FROM sales.main.counter") == done["counted"]
    left = done["added"] - done["deleted"]
    assert answer("SELECT count(*) FROM sales.main.bin") == left
    assert len(duck.execute("SELECT * FROM sales.main.bin").fetchall()) == left
    tables = answer("SELECT count(*) FROM ducklake_table_info('sales')")
    assert tables == 3 + done["tables"] + done["made"] - done["dropped"]
    assert sales.missing_files() == []


def assert_not_wedged(sales: Catalog, duck: duckdb.DuckDBPyConnection) -> None:
    """The next commit of either kind succeeds at once."""
    once = replace(sales, retries=Retries(attempts=1))
    once.create_schema("after")
    duck.execute("SET ducklake_max_retry_count = 1")
    duck.execute("INSERT INTO sales.main.events VALUES (99, 99)")
    once.create_table("after", "t", COLUMNS)
    assert sales.check() == []


@pytest.mark.parametrize(
    "seconds", [8, pytest.param(180, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_our_writers_and_stock_writers_lose_nothing_in_postgresql(
    postgres_database: str, tmp_path: Path, duck: duckdb.DuckDBPyConnection, seconds: float
) -> None:
    place = Place(postgres_database, str(tmp_path / "data"))
    with place.lake() as lake:
        sales, ours, stock = run(place, lake, duck, seconds)
        assert_true(place, lake, sales, duck, [*ours, *stock])
        assert_not_wedged(sales, duck)
    for records in (*([record] for record in ours), stock):
        assert sum(sum(record.done.values()) for record in records) > 0
    for record, job in zip(ours, OURS, strict=True):
        assert record.failures == [] or job is our_deleter
    failures = [failure for record in stock for failure in record.failures]
    assert [f for f in failures if not any(known in f for known in CONFLICTS)] == []


@pytest.mark.parametrize(
    "seconds", [8, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_our_writers_do_not_fail_beside_stock_writers_in_sqlite(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, seconds: float
) -> None:
    place = Place(tmp_path / "catalogs", str(tmp_path / "data"))
    with Lake.open(place.metabase, place.data) as lake:
        sales, ours, stock = run(place, lake, duck, seconds)
        assert_true(place, lake, sales, duck, [*ours, *stock])
        assert_not_wedged(sales, duck)
    for record, job in zip(ours, OURS, strict=True):
        assert sum(record.done.values()) > 0
        assert record.failures == [] or job is our_deleter
    failures = [failure for record in stock for failure in record.failures]
    assert [f for f in failures if not any(known in f for known in (*CONFLICTS, *LOCKED))] == []
