"""SwanLake's writers and stock DuckDB write to one catalog, while others abort or are killed."""

from __future__ import annotations

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
import pyarrow as pa
import pytest

from swanlake.engine.database import extension_path
from swanlake.errors import CommitConflict
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit import protocol
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.files import datafile
from swanlake.lake.files.inlining import inline_rows
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.local import open_metastore
from swanlake.lake.metastore.location import LakeLocation
from swanlake.lake.model.operations import Commit, InlineDelete, InlineInsert, Insert
from swanlake.lake.model.types import ColumnSpec
from swanlake.sql.quoting import literal
from tests.faults.workers import PROCESSES, LakeAddress, WorkerPool, read_history, wait_for_all

COLUMNS = [ColumnSpec("writer", "BIGINT", nullable=False), ColumnSpec("number", "BIGINT")]
INLINED_ROWS = 3
#: The writer id of rows that are never committed.
UNCOMMITTED = -1
#: Conflicts with which a stock writer may fail.
CONFLICTS = (
    "Transaction conflict",
    # Two deletes from one file: found by our index, not by the stock check.
    "ducklake_delete_file_active_uidx",
    # A stock writer that loses too many races for the head gives up.
    "Exceeded the maximum retry count",
)
LOCKED = ("database is locked", "cannot rollback - no transaction is active")


@dataclass
class Record:
    """What one writer reports to have done."""

    done: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Rounds:
    """Numbers rounds from when all writers are ready until the time is over.

    There are a few, however slow the machine is. The pause between rounds gives every writer a
    chance to commit.
    """

    _AT_LEAST = 6

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pause = threading.Event()

    def __iter__(self) -> Rounds:
        self._number = -1
        wait_for_all()
        self._end = time.monotonic() + self._seconds
        return self

    def __next__(self) -> int:
        self._pause.wait(0.08)
        if time.monotonic() >= self._end and self._number + 1 >= self._AT_LEAST:
            raise StopIteration
        self._number += 1
        return self._number


# ---- SwanLake's writers --------------------------------------------------------------------------


class Aborted(Exception):
    """Raised in the middle of a commit."""


def our_appender(address: LakeAddress, worker: int, seconds: float) -> Record:
    """Appends rows; every fifth commit is aborted after everything is written."""
    record = Record()

    def abort(step: str) -> None:
        if step == "written":
            raise Aborted

    with address.writer("sales") as (sales, duck):
        table = sales.table("main", "events")
        aborting = open_metastore(address.metabase, address.data).store(sales.info)
        aborting.reached = abort
        for number in Rounds(seconds):
            files = tuple(datafile.write_files(duck, f"SELECT {worker}, {number}", table))
            change = Commit((Insert(table, files, blind=True),), base=table.snapshot_id)
            if number % 5 == 4:
                with pytest.raises(Aborted):
                    protocol.apply(aborting, change)
                datafile.remove_files(table, files)
                continue
            done = sales.commit(change)
            assert done.applied
            record.done["events"] += 1
        aborting.engine.dispose()
    return record


def our_table_creator(address: LakeAddress, worker: int, seconds: float) -> Record:
    """Creates tables and drops every other one."""
    record = Record()
    with address.writer("sales") as (sales, duck):
        for number in Rounds(seconds):
            name = f"t_{worker}_{number}"
            sales.create_table("main", name, COLUMNS)
            sales.append(duck, f"SELECT {worker}, {number}", "main", name)
            if number % 2:
                sales.drop_table("main", name)
            else:
                record.done["tables"] += 1
    return record


def our_deleter(address: LakeAddress, worker: int, seconds: float) -> Record:
    """Inlines rows of the table ``bin``, three at a time, and deletes them three at a time."""
    record = Record()
    with address.writer("sales") as (sales, _):
        for number in Rounds(seconds):
            if number % 3:
                sales.commit(Commit((_new_rows(sales, number),)))
                record.done["added"] += INLINED_ROWS
                continue
            files = sales.files(sales.table("main", "bin").id)
            for source in files.inlined:
                rows = sales.inlined_rows(source.name, files.snapshot_id)
                live = [row_id for row_id, _, end, *_ in rows if end is None]
                delete = InlineDelete(files.table, source.name, tuple(live[-INLINED_ROWS:]))
                try:
                    sales.commit(Commit((delete,), base=files.snapshot_id))
                    record.done["deleted"] += len(delete.row_ids)
                except CommitConflict as conflict:
                    record.failures.append(conflict.message)
    return record


def _new_rows(catalog: Catalog, number: int) -> InlineInsert:
    values = {"writer": [number] * INLINED_ROWS, "number": [*range(INLINED_ROWS)]}
    inlined = inline_rows(catalog.table("main", "bin"), pa.table(values), blind=True)
    assert inlined is not None
    return inlined


# ---- stock writers -----------------------------------------------------------------------------


class Stock:
    """Stock DuckDB with the catalog attached, and a record of what it did."""

    def __init__(self, location: LakeLocation, inlined_rows: int = 0) -> None:
        self.record = Record()
        self.duck = duckdb.connect(":memory:")
        for name in ("ducklake", "sqlite_scanner", "postgres_scanner"):
            self.duck.execute(f"LOAD {literal(str(extension_path(name)))}")
        self.duck.execute("SET threads = 1")
        # It commits only if no other writer does between its read and its write; the default of ten
        # attempts is not enough against writers that take a lock.
        self.duck.execute("SET ducklake_max_retry_count = 200")
        self.duck.execute("SET ducklake_retry_wait_ms = 10")
        self.duck.execute("SET ducklake_retry_backoff = 1.01")
        location.attach(Inlining(self.duck, inlined_rows))  # type: ignore[arg-type]

    def attempt(self, what: str, *statements: str) -> None:
        try:
            for statement in statements:
                rows = self.duck.execute(statement).fetchall()
            if what.startswith("deleted"):
                self.record.done[what] += rows[0][0]
            else:
                self.record.done[what] += 1
        except duckdb.Error as error:
            self.record.failures.append(" ".join(str(error).split()))
            self.roll_back()

    def roll_back(self) -> None:
        try:
            self.duck.execute("ROLLBACK")
        except duckdb.TransactionException:
            return  # an autocommit statement leaves no transaction


class Inlining:
    """A connection that attaches catalogs with another inlining limit."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, rows: int) -> None:
        self._duck = duck
        self._rows = rows

    def execute(self, statement: str) -> Any:
        limit = "DATA_INLINING_ROW_LIMIT"
        return self._duck.execute(statement.replace(f"{limit} 0", f"{limit} {self._rows}"))


def stock_inserter(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Inserts rows; every third transaction is rolled back."""
    stock = Stock(location)
    for number in Rounds(seconds):
        insert = f"INSERT INTO sales.main.events VALUES ({worker}, {number})"
        if number % 3 == 2:
            stock.duck.execute("BEGIN").execute(insert)
            stock.roll_back()
        else:
            stock.attempt("events", insert)
    return stock.record


def stock_inliner(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Inserts inlined rows."""
    stock = Stock(location, inlined_rows=10)
    for number in Rounds(seconds):
        stock.attempt("events", f"INSERT INTO sales.main.events VALUES ({worker}, {number})")
    return stock.record


def stock_updater(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Increments the counter and deletes single rows from ``bin``."""
    stock = Stock(location)
    for number in Rounds(seconds):
        if number % 3:
            stock.attempt("counted", "UPDATE sales.main.counter SET number = number + 1")
        else:
            stock.attempt(
                "deleted",
                "DELETE FROM sales.main.bin WHERE number = 0 AND writer = "
                "(SELECT min(writer) FROM sales.main.bin WHERE number = 0)",
            )
    return stock.record


def stock_table_creator(location: LakeLocation, worker: int, seconds: float) -> Record:
    """Creates tables with a row in one transaction, adds a column, drops every other one."""
    stock = Stock(location)
    for number in Rounds(seconds):
        name = f"sales.main.t_{worker}_{number}"
        before = stock.record.done["made"]
        create = f"CREATE TABLE {name} AS SELECT {worker} AS writer"
        stock.attempt("made", "BEGIN", create, "COMMIT")
        if stock.record.done["made"] == before:
            continue
        stock.attempt("altered", f"ALTER TABLE {name} ADD COLUMN extra INTEGER")
        if number % 2:
            stock.attempt("dropped", f"DROP TABLE {name}")
    return stock.record


# ---- writers that are killed -------------------------------------------------------------------


def stock_victim(location: LakeLocation, pipe: Any) -> None:
    stock = Stock(location)
    stock.duck.execute("BEGIN")
    stock.duck.execute(f"INSERT INTO sales.main.events VALUES ({UNCOMMITTED}, 0)")
    stock.duck.execute("CREATE TABLE sales.main.never(i INTEGER)")
    pipe.send("written")
    pipe.recv()


def our_victim(address: LakeAddress, pipe: Any) -> None:
    def stop(step: str) -> None:
        if step == "written":
            pipe.send(step)
            os.kill(os.getpid(), signal.SIGKILL)

    with address.writer("sales") as (sales, duck):
        table = sales.table("main", "events")
        files = tuple(datafile.write_files(duck, f"SELECT {UNCOMMITTED}, 0", table))
        store = open_metastore(address.metabase, address.data).store(sales.info)
        store.reached = stop
        protocol.apply(store, Commit((Insert(table, files, blind=True),), base=table.snapshot_id))


def kill_when_written(job: Callable[..., None], location: LakeAddress | LakeLocation) -> None:
    parent, child = PROCESSES.Pipe()
    process = PROCESSES.Process(target=job, args=(location, child))
    process.start()
    assert parent.poll(60)
    assert parent.recv() == "written"
    process.kill()
    process.join()
    parent.close()
    child.close()


# ---- tests -------------------------------------------------------------------------------------

OURS = (our_appender, our_appender, our_table_creator, our_deleter)
STOCK = (stock_inserter, stock_inliner, stock_updater, stock_table_creator)


def run_writer(job: Callable[..., Record], location: Any, worker: int, seconds: float) -> Record:
    return job(location, worker, seconds)


def run(
    address: LakeAddress,
    lake: Lake,
    duck: duckdb.DuckDBPyConnection,
    seconds: float,
    *,
    copies: int = 1,
) -> tuple[Catalog, list[Record], list[Record]]:
    """Runs all writers at once; returns the records of ours and of the stock ones."""
    sales = lake.create_catalog("sales")
    for name in ("events", "counter", "bin"):
        sales.create_table("main", name, COLUMNS)
    sales.append(duck, "SELECT 0, 0", "main", "counter")
    location = lake.location(sales.info)
    ours, stock = OURS * copies, STOCK * copies
    parts: list[tuple[Any, ...]] = [(job, address) for job in ours]
    parts += [(job, location) for job in stock]
    with WorkerPool(len(parts)) as workers:
        numbered = [(*part, worker, seconds) for worker, part in enumerate(parts)]
        running: AsyncResult[list[Record]] = workers.start(run_writer, numbered)
        while not running.ready():
            kill_when_written(stock_victim, location)
            kill_when_written(our_victim, address)
        records = running.get()
    return sales, records[: len(ours)], records[len(ours) :]


def assert_matches_records(
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    records: list[Record],
) -> None:
    """Checks that everything reported as done is stored once, and nothing else."""
    done: Counter[str] = sum((record.done for record in records), Counter())
    with WorkerPool(1) as workers:
        history = workers.call(read_history, address, "sales")
    # The stock extension dates a snapshot by the start of its transaction.
    history.assert_sound(times=False)
    lake.location(sales.info).attach(duck)

    def value_of(query: str) -> Any:
        [(value,)] = duck.execute(query).fetchall()
        return value

    assert value_of("SELECT count(*) FROM sales.main.events") == done["events"]
    assert len(duck.execute("SELECT * FROM sales.main.events").fetchall()) == done["events"]
    assert (
        value_of("SELECT count(DISTINCT (writer, number)) FROM sales.main.events") == done["events"]
    )
    assert value_of(f"SELECT count(*) FROM sales.main.events WHERE writer = {UNCOMMITTED}") == 0
    assert value_of("SELECT number FROM sales.main.counter") == done["counted"]
    left = done["added"] - done["deleted"]
    assert value_of("SELECT count(*) FROM sales.main.bin") == left
    assert len(duck.execute("SELECT * FROM sales.main.bin").fetchall()) == left
    tables = value_of("SELECT count(*) FROM ducklake_table_info('sales')")
    assert tables == 3 + done["tables"] + done["made"] - done["dropped"]
    assert sales.missing_files() == []


def assert_writable(sales: Catalog, duck: duckdb.DuckDBPyConnection) -> None:
    """Checks that the next commit of either kind succeeds at its first attempt."""
    once = replace(sales, retries=Retries(attempts=1))
    once.create_schema("after")
    duck.execute("SET ducklake_max_retry_count = 1")
    duck.execute("INSERT INTO sales.main.events VALUES (99, 99)")
    once.create_table("after", "t", COLUMNS)
    assert sales.check() == []


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(180, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_our_and_stock_writers_lose_nothing_on_postgresql(
    postgres_database: str, tmp_path: Path, duck: duckdb.DuckDBPyConnection, seconds: float
) -> None:
    address = LakeAddress(postgres_database, str(tmp_path / "data"))
    with address.lake() as lake:
        sales, ours, stock = run(address, lake, duck, seconds)
        assert_matches_records(address, lake, sales, duck, [*ours, *stock])
        assert_writable(sales, duck)
    for records in (*([record] for record in ours), stock):
        assert sum(sum(record.done.values()) for record in records) > 0
    for record, job in zip(ours, OURS, strict=True):
        assert record.failures == [] or job is our_deleter
    failures = [failure for record in stock for failure in record.failures]
    assert [f for f in failures if not any(known in f for known in CONFLICTS)] == []


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_our_writers_succeed_with_stock_writers_on_sqlite(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, seconds: float
) -> None:
    address = LakeAddress(tmp_path / "catalogs", str(tmp_path / "data"))
    with Lake.open(address.metabase, address.data) as lake:
        sales, ours, stock = run(address, lake, duck, seconds)
        assert_matches_records(address, lake, sales, duck, [*ours, *stock])
        assert_writable(sales, duck)
    for record, job in zip(ours, OURS, strict=True):
        assert sum(record.done.values()) > 0
        assert record.failures == [] or job is our_deleter
    failures = [failure for record in stock for failure in record.failures]
    assert [f for f in failures if not any(known in f for known in (*CONFLICTS, *LOCKED))] == []
