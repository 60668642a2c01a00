"""A server with injected crashes, clients that write to its queue, and checks of the lake."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa

from swanlake.lake.lake import Lake
from swanlake.lake.metastore.location import LakeLocation
from tests.faults import crashing_server
from tests.postgres_server import new_database
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb
from tests.waiting import eventually

#: Small limits, so that every step is reached within a second.
SMALL_LIMITS = {
    "DUCKLING_QUEUE_BUFFER_MAX_ROWS": "25",
    "DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS": "0.2",
    "DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS": "0.1",
}
#: Generous: on a busy machine Spark takes long to start.
CRASH_TIMEOUT_SECONDS = 180.0
#: Between two writes of a client. Without it, a test takes as much CPU time as its server can.
_PAUSE_SECONDS = 0.01
_CALL_HEADER = "adbc.flight.sql.rpc.call_header."


class CrashingServer(ServerProcess):
    """``swanlake serve`` with faults that tests inject through a file."""

    _program = (crashing_server.__file__,)

    def __init__(self, home: Path, *flags: str, **environment: str) -> None:
        self.fault_file = home.with_name(home.name + ".fault")
        environment[crashing_server.FAULT_FILE_VARIABLE] = str(self.fault_file)
        super().__init__(home, *flags, **environment)

    def inject(self, fault: str) -> None:
        """Injects a fault, at once and after every restart, until it is cleared."""
        partial = self.fault_file.with_name(self.fault_file.name + ".partial")
        partial.write_text(fault)
        partial.replace(self.fault_file)

    @contextmanager
    def held_at(self, step: str) -> Iterator[None]:
        """Blocks the server's thread that reaches a step, while the block runs."""
        held = self.fault_file.with_name(self.fault_file.name + ".held")
        held.unlink(missing_ok=True)
        self.inject(f"hold {step}")
        try:
            eventually(held.exists, CRASH_TIMEOUT_SECONDS)
            yield
        finally:
            self.clear_fault()

    def clear_fault(self) -> None:
        self.fault_file.unlink(missing_ok=True)

    def start(self) -> CrashingServer:
        self.launch()
        assert self.wait_until_ready_or_dead(), (
            f"the server did not start:\n{self.log_text[-4000:]}"
        )
        return self

    def wait_until_ready_or_dead(self) -> bool:
        """Waits until the server accepts connections or has ended; true if it accepts."""
        eventually(lambda: self.is_ready or not self.is_alive, CRASH_TIMEOUT_SECONDS)
        if not self.is_ready:
            return False
        self.url = json.loads(self._ready_file.read_text())["flight"]
        return True

    def wait_for_crash(self) -> None:
        """Waits until the server has ended, and checks that SIGKILL ended it."""
        try:
            code = self.process.wait(CRASH_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not crash:\n{self.log_text[-4000:]}") from None
        assert code == -9, f"the server exited with {code}:\n{self.log_text[-4000:]}"
        self.kill()


class WriteLog:
    """The ids that clients wrote, and whether each insert was acknowledged. Inserts are atomic."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()
        self.acknowledged: list[range] = []
        self.unknown: list[range] = []

    def allocate(self, number: int) -> range:
        """Returns ids that are used by no other insert."""
        with self._lock:
            ids = range(self._next, self._next + number)
            self._next = ids.stop
            return ids

    def assert_matches(self, stored: Counter[int]) -> None:
        """Checks: acknowledged ids are stored once, unknown inserts whole or not, no others."""
        acknowledged = {id for ids in self.acknowledged for id in ids}
        unknown = {id for ids in self.unknown for id in ids}
        lost = sorted(acknowledged - stored.keys())
        doubled = sorted(id for id, times in stored.items() if times > 1)
        unexpected = sorted(stored.keys() - acknowledged - unknown)
        torn = [ids for ids in self.unknown if 0 < sum(id in stored for id in ids) < len(ids)]
        assert (lost, doubled, unexpected, torn) == ([], [], [], [])


def insert(cursor: Any, ids: Sequence[int], table: str = "t") -> None:
    rows = ", ".join(f"({id}, 'a row')" for id in ids)
    cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES {rows}")


@contextmanager
def adbc_cursor(url: str) -> Iterator[Any]:
    """A cursor of a stock ADBC connection; its server may be gone when it is closed."""
    connection = adbc.connect(url, autocommit=True)
    cursor = connection.cursor()
    try:
        yield cursor
    finally:
        for resource in (cursor, connection):
            try:
                resource.close()
            except (adbc.Error, RuntimeError):
                resource._closed = True  # else its finalizer closes it again


def insert_one(cursor: Any, log: WriteLog) -> None:
    """Inserts one row."""
    ids = log.allocate(1)
    record_outcome(log, ids, lambda: insert(cursor, ids))


def insert_bound(cursor: Any, log: WriteLog) -> None:
    """Inserts a few rows with a prepared statement."""
    ids = log.allocate(3)
    rows = [(id, "a row") for id in ids]
    sql = "INSERT INTO duckling_queue.t VALUES (?, ?)"
    record_outcome(log, ids, lambda: cursor.executemany(sql, rows))


def insert_bulk(cursor: Any, log: WriteLog) -> None:
    """Uploads more rows than the queue buffers in memory."""
    ids = log.allocate(6000)
    table = pa.table({"id": pa.array(ids, pa.int64()), "note": ["x" * 1000] * len(ids)})
    record_outcome(
        log,
        ids,
        lambda: cursor.adbc_ingest("t", table, mode="append", catalog_name="duckling_queue"),
    )


def record_outcome(log: WriteLog, ids: range, write: Callable[[], object]) -> None:
    """Runs a write and logs its ids as acknowledged, or as unknown if it fails."""
    try:
        write()
    except BaseException:
        log.unknown.append(ids)
        raise
    log.acknowledged.append(ids)


@dataclass
class Producer:
    """An idempotent producer: numbers its batches and repeats each until it is acknowledged."""

    name: str
    pending: range | None = None
    sequence: int = 0
    repeated: int = 0

    def __call__(self, cursor: Any, log: WriteLog) -> None:
        if self.pending is None:
            self.pending = log.allocate(2)
        else:
            self.repeated += 1
        cursor.adbc_statement.set_options(
            **{
                f"{_CALL_HEADER}x-swanlake-ingest-id": self.name,
                f"{_CALL_HEADER}x-swanlake-ingest-sequence": str(self.sequence),
            }
        )
        insert(cursor, self.pending)
        log.acknowledged.append(self.pending)
        self.pending, self.sequence = None, self.sequence + 1


WriteMethod = Callable[[Any, WriteLog], None]
DEFAULT_WRITES: tuple[WriteMethod, ...] = (insert_one, insert_one, insert_bound)


@dataclass
class Load:
    """Writes in one thread per method, each until its first error or the end of the block."""

    url: str
    log: WriteLog
    methods: Sequence[WriteMethod]
    errors: list[Exception] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(method,)) for method in self.methods
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(CRASH_TIMEOUT_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def _write(self, method: WriteMethod) -> None:
        try:
            with adbc_cursor(self.url) as cursor:
                while not self._stop.wait(_PAUSE_SECONDS):
                    method(cursor, self.log)
        except Exception as error:  # noqa: BLE001 - the test decides whether it was expected
            self.errors.append(error)


class FaultHarness:
    """A lake with a table ``t (id, note)``, and a server on it that crashes and restarts."""

    def __init__(self, home: Path, metabase_url: str = "", **environment: str) -> None:
        if metabase_url:
            environment["SWANLAKE_METABASE_URL"] = metabase_url
        self.log = WriteLog()
        self.root = Path(environment.get("DUCKLING_QUEUE_ROOT", home / "queue"))
        self.server = CrashingServer(home, **(SMALL_LIMITS | environment))
        self.server.start()
        self.sql("CREATE TABLE swanlake.main.t (id BIGINT, note VARCHAR)")
        self.location = lake_location(metabase_url or home / "catalogs", home / "data")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs statements and returns the rows of the last one."""
        with adbc_cursor(self.server.url) as cursor:
            for statement in statements:
                cursor.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return rows

    def dead_letters(self) -> list[dict[str, Any]]:
        """The dead letters, as the procedure lists them."""
        with adbc_cursor(self.server.url) as cursor:
            cursor.execute("CALL duckling_queue_dead_letters()")
            rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
            return rows

    def load(self, *methods: WriteMethod) -> Load:
        return Load(self.server.url, self.log, methods or DEFAULT_WRITES)

    def crash_at(self, step: str, passage: int = 1, milliseconds: int = 0) -> None:
        self.server.inject(f"crash {step}/{passage}/{milliseconds}")

    def run_until_crash(self, *methods: WriteMethod) -> None:
        """Lets clients write until the server has crashed; starts it first if it is down."""
        if not self.server.is_alive:
            self.server.launch()
        if self.server.wait_until_ready_or_dead():
            with self.load(*methods):
                self.server.wait_for_crash()
        self.server.wait_for_crash()

    def crash_at_each(self, steps: Iterable[str], *methods: WriteMethod) -> None:
        """Crashes at one step after another; each start recovers from the crash before it."""
        for step in steps:
            self.crash_at(step)
            self.run_until_crash(*methods)
        self.recover()

    def recover(self) -> None:
        """Restarts the server without faults."""
        self.server.clear_fault()
        self.server.kill()
        self.server.start()

    def kill(self) -> None:
        """Sends SIGKILL to the server, whatever it is doing."""
        self.server.kill()

    def segments_on_disk(self) -> list[Path]:
        paths = [*self.root.glob("*/*/*/*.arrows"), *self.root.glob("*/*/*/*.partial")]
        return [path for path in paths if "dead-letters" not in path.parts]

    def flush(self) -> None:
        """Flushes until no segment is left, including those of crashed servers."""
        self.sql("CALL duckling_queue_flush()")

        def is_empty() -> bool:
            with suppress(adbc.Error):
                self.sql("CALL duckling_queue_flush()")
            return not self.segments_on_disk()

        eventually(is_empty)

    def count_ids(self, table: str = "t") -> Counter[int]:
        """The number of rows per id in a table, counted by stock DuckDB."""
        return count_ids(self.location, table)

    def assert_no_loss(self) -> None:
        """Flushes, and compares the table with the log."""
        self.flush()
        self.log.assert_matches(self.count_ids())


@contextmanager
def open_harness(
    kind: str, postgres: Callable[[], str], home: Path, **environment: str
) -> Iterator[FaultHarness]:
    """A harness on SQLite, or in a new PostgreSQL database."""
    if kind == "sqlite":
        harness = FaultHarness(home, **environment)
        yield harness
        harness.server.kill()
        return
    with new_database(postgres()) as url:
        harness = FaultHarness(home, url, **environment)
        yield harness
        harness.server.kill()


def lake_location(metabase: str | Path, data: Path) -> LakeLocation:
    with Lake.open(metabase, data) as lake:
        return lake.location(lake.catalog("swanlake").info)


def count_ids(location: LakeLocation, table: str = "t") -> Counter[int]:
    """The number of rows per id in a table, counted by stock DuckDB."""
    with stock_duckdb() as duck:
        location.attach(duck)
        rows = duck.execute(
            f"SELECT id, count(*) FROM swanlake.main.{table} GROUP BY id"
        ).fetchall()
    return Counter(dict(rows))
