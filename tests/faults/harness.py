"""A server that can be told to die, those who write to its queue, and what is in the lake then."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import adbc_driver_flightsql.dbapi as adbc
import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo

from swanlake.lake.lake import Lake
from swanlake.lake.location import LakeLocation
from tests.ducks import stock_duckdb
from tests.faults import doomed_server
from tests.flight import eventually
from tests.server_process import ServerProcess

#: Everything is small, so that every step is reached within a second.
SMALL = {
    "DUCKLING_QUEUE_BUFFER_MAX_ROWS": "25",
    "DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS": "0.2",
    "DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS": "0.1",
}
#: A Spark that has to start first takes its time on a busy machine.
DEATH_SECONDS = 180.0
_CALL_HEADER = "adbc.flight.sql.rpc.call_header."


class DoomedServer(ServerProcess):
    """``swanlake serve`` in a process that obeys orders to die."""

    _program = (doomed_server.__file__,)

    def __init__(self, home: Path, *flags: str, **environment: str) -> None:
        self.order = home.with_name(home.name + ".order")
        environment[doomed_server.ORDER] = str(self.order)
        super().__init__(home, *flags, **environment)

    def give_order(self, order: str) -> None:
        """Takes effect at once, and again after a restart, until it is taken back."""
        partial = self.order.with_name(self.order.name + ".partial")
        partial.write_text(order)
        partial.replace(self.order)

    @contextmanager
    def held_at(self, step: str) -> Iterator[None]:
        """Somebody in the server waits at a step, as long as the block runs."""
        held = self.order.with_name(self.order.name + ".held")
        held.unlink(missing_ok=True)
        self.give_order(f"hold {step}")
        try:
            eventually(held.exists, DEATH_SECONDS)
            yield
        finally:
            self.take_order_back()

    def take_order_back(self) -> None:
        self.order.unlink(missing_ok=True)

    def start(self) -> DoomedServer:
        self.launch()
        assert self.accepts_or_dies(), f"the server did not start:\n{self.log_text[-4000:]}"
        return self

    def accepts_or_dies(self) -> bool:
        """Waits until one of both is so: true if it accepts."""
        eventually(lambda: self.is_ready or not self.is_alive, DEATH_SECONDS)
        if not self.is_ready:
            return False
        self.url = json.loads(self._ready_file.read_text())["flight"]
        return True

    def must_die(self) -> None:
        """Returns when it is dead, and as dead as it was meant to be."""
        try:
            code = self.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not die:\n{self.log_text[-4000:]}") from None
        assert code == -9, f"it died of {code}:\n{self.log_text[-4000:]}"
        self.kill()


class Book:
    """Which ids were given out, and what is known of them. An insert is whole or not at all."""

    def __init__(self) -> None:
        self._ids = count()
        self._lock = threading.Lock()
        self.acknowledged: list[range] = []
        self.unknown: list[range] = []

    def take(self, number: int) -> range:
        """Ids that nobody else gets."""
        with self._lock:
            first = next(self._ids)
            for _ in range(number - 1):
                next(self._ids)
            return range(first, first + number)

    def assert_true(self, found: Counter[int]) -> None:
        """What was acknowledged is there once; what is unknown once or not at all; nothing else."""
        acknowledged = {id for ids in self.acknowledged for id in ids}
        unknown = {id for ids in self.unknown for id in ids}
        lost = sorted(acknowledged - found.keys())
        doubled = sorted(id for id, times in found.items() if times > 1)
        strange = sorted(found.keys() - acknowledged - unknown)
        torn = [ids for ids in self.unknown if 0 < sum(id in found for id in ids) < len(ids)]
        assert (lost, doubled, strange, torn) == ([], [], [], [])


def insert(cursor: Any, ids: Sequence[int], table: str = "t") -> None:
    rows = ", ".join(f"({id}, 'a row')" for id in ids)
    cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES {rows}")


@contextmanager
def stock_cursor(url: str) -> Iterator[Any]:
    """A cursor of a stock ADBC connection, whose server may be dead by the end."""
    connection = adbc.connect(url, autocommit=True)
    cursor = connection.cursor()
    try:
        yield cursor
    finally:
        for one in (cursor, connection):
            try:
                one.close()
            except (adbc.Error, RuntimeError):
                one._closed = True  # else it tries again when it is collected


def one_by_one(cursor: Any, book: Book) -> None:
    """An insert of one row, or of a few."""
    ids = book.take(1)
    keep_books(book, ids, lambda: insert(cursor, ids))


def bound(cursor: Any, book: Book) -> None:
    """A prepared insert with bound rows."""
    ids = book.take(3)
    rows = [(id, "a row") for id in ids]
    sql = "INSERT INTO duckling_queue.t VALUES (?, ?)"
    keep_books(book, ids, lambda: cursor.executemany(sql, rows))


def bulk(cursor: Any, book: Book) -> None:
    """More rows than the queue keeps in memory."""
    ids = book.take(6000)
    table = pa.table({"id": pa.array(ids, pa.int64()), "note": ["x" * 1000] * len(ids)})
    keep_books(
        book,
        ids,
        lambda: cursor.adbc_ingest("t", table, mode="append", catalog_name="duckling_queue"),
    )


def keep_books(book: Book, ids: range, act: Callable[[], object]) -> None:
    try:
        act()
    except BaseException:
        book.unknown.append(ids)
        raise
    book.acknowledged.append(ids)


@dataclass
class Producer:
    """Names its batches, and sends each one again until it is acknowledged."""

    name: str
    pending: range | None = None
    sequence: int = 0
    repeated: int = 0

    def __call__(self, cursor: Any, book: Book) -> None:
        if self.pending is None:
            self.pending = book.take(2)
        else:
            self.repeated += 1
        cursor.adbc_statement.set_options(
            **{
                f"{_CALL_HEADER}x-swanlake-ingest-id": self.name,
                f"{_CALL_HEADER}x-swanlake-ingest-sequence": str(self.sequence),
            }
        )
        insert(cursor, self.pending)
        book.acknowledged.append(self.pending)
        self.pending, self.sequence = None, self.sequence + 1


Way = Callable[[Any, Book], None]
ORDINARY: tuple[Way, ...] = (one_by_one, one_by_one, bound)


@dataclass
class Load:
    """Writers in threads of their own, each until its first error or until it is told to stop."""

    url: str
    book: Book
    ways: Sequence[Way]
    errors: list[Exception] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(way,)) for way in self.ways]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEATH_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def _write(self, way: Way) -> None:
        try:
            with stock_cursor(self.url) as cursor:
                while not self._stop.is_set():
                    way(cursor, self.book)
        except Exception as error:  # noqa: BLE001 - the test says whether it was to be expected
            self.errors.append(error)


class Lab:
    """A lake with a table ``t (id, note)``, and a server on it that dies and is started again."""

    def __init__(self, home: Path, metabase_url: str = "", **environment: str) -> None:
        if metabase_url:
            environment["SWANLAKE_METABASE_URL"] = metabase_url
        self.book = Book()
        self.root = Path(environment.get("DUCKLING_QUEUE_ROOT", home / "queue"))
        self.server = DoomedServer(home, **(SMALL | environment))
        self.server.start()
        self.sql("CREATE TABLE swanlake.main.t (id BIGINT, note VARCHAR)")
        self.location = location_of(metabase_url or home / "catalogs", home / "data")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement."""
        with stock_cursor(self.server.url) as cursor:
            for statement in statements:
                cursor.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return rows

    def letters(self) -> list[dict[str, Any]]:
        """The dead letters, as a client sees them."""
        with stock_cursor(self.server.url) as cursor:
            cursor.execute("CALL duckling_queue_dead_letters()")
            rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
            return rows

    def load(self, *ways: Way) -> Load:
        return Load(self.server.url, self.book, ways or ORDINARY)

    def die_at(self, step: str, passage: int = 1, milliseconds: int = 0) -> None:
        self.server.give_order(f"die {step}/{passage}/{milliseconds}")

    def run_until_death(self, *ways: Way) -> None:
        """Starts the server if need be, and lets clients write until it has died."""
        if not self.server.is_alive:
            self.server.launch()
        if self.server.accepts_or_dies():
            with self.load(*ways):
                self.server.must_die()
        self.server.must_die()

    def walk(self, steps: Iterable[str], *ways: Way) -> None:
        """Dies at one step after the other; each start finds what the death before it left."""
        for step in steps:
            self.die_at(step)
            self.run_until_death(*ways)
        self.recover()

    def recover(self) -> None:
        """A server that lives."""
        self.server.take_order_back()
        self.server.kill()
        self.server.start()

    def kill(self) -> None:
        """From outside, whatever it does."""
        self.server.kill()

    def segments_on_disk(self) -> list[Path]:
        found = [*self.root.glob("*/*/*/*.arrows"), *self.root.glob("*/*/*/*.partial")]
        return [path for path in found if "dead-letters" not in path.parts]

    def flush(self) -> None:
        """Returns when nothing is left in the queue, also of servers that died."""
        self.sql("CALL duckling_queue_flush()")

        def is_empty() -> bool:
            with suppress(adbc.Error):
                self.sql("CALL duckling_queue_flush()")
            return not self.segments_on_disk()

        eventually(is_empty, 60)

    def found(self, table: str = "t") -> Counter[int]:
        """How often each id is in the lake, by stock DuckDB."""
        return ids_in(self.location, table)

    def assert_true(self) -> None:
        """Flushes, and compares the lake with the book."""
        self.flush()
        self.book.assert_true(self.found())


@contextmanager
def lab_on(kind: str, postgres: Callable[[], str], home: Path, **environment: str) -> Iterator[Lab]:
    """A lab on SQLite, or in a database of its own on PostgreSQL."""
    if kind == "sqlite":
        lab = Lab(home, **environment)
        yield lab
        lab.server.kill()
        return
    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        lab = Lab(home, make_conninfo(postgres(), dbname=name), **environment)
        yield lab
        lab.server.kill()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def location_of(metabase: str | Path, data: Path) -> LakeLocation:
    with Lake.open(metabase, data) as lake:
        return lake.location(lake.catalog("swanlake").info)


def ids_in(location: LakeLocation, table: str = "t") -> Counter[int]:
    """How often each id is in a table, by stock DuckDB."""
    with stock_duckdb() as duck:
        location.attach(duck)
        rows = duck.execute(
            f"SELECT id, count(*) FROM swanlake.main.{table} GROUP BY id"
        ).fetchall()
    return Counter(dict(rows))
