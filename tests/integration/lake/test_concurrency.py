"""Many processes commit to one lake at once; stock DuckDB looks at what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from swanlake.errors import AlreadyExists
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.types import ColumnSpec
from tests.faults.crew import Crew, Place, Timed, assert_ids_follow_time, history, timed

COLUMNS = [ColumnSpec("worker", "BIGINT", nullable=False), ColumnSpec("number", "BIGINT")]
WRITERS = 8


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(WRITERS) as crew:
        yield crew


@pytest.fixture
def place(metabase: str | Path, tmp_path: Path) -> Place:
    return Place(metabase, str(tmp_path / "data"))


@pytest.fixture
def sales(lake: Lake) -> Catalog:
    catalog = lake.create_catalog("sales")
    catalog.create_table("main", "shared", COLUMNS)
    return catalog


@pytest.fixture(autouse=True)
def _no_error_in_the_server_log(metabase: str | Path) -> Iterator[None]:
    """Writers that wait for their turn give PostgreSQL nothing to complain about."""
    if isinstance(metabase, Path):
        yield
        return
    with psycopg.connect(metabase) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None
    log = Path(row[0]) / "log"
    before = log.stat().st_size
    yield
    written = log.read_bytes()[before:].decode(errors="replace")
    assert "ducklake_snapshot_pkey" not in written
    assert [line for line in written.splitlines() if "ERROR:" in line] == []


# ---- what a worker does ------------------------------------------------------------------------


def append(place: Place, table: str, worker: int, rounds: int) -> list[Timed]:
    with place.writer("sales") as (sales, duck):
        return [
            timed(lambda n=n: sales.append(duck, f"SELECT {worker}, {n}", "main", table))  # type: ignore[misc]
            for n in range(rounds)
        ]


def create_tables(place: Place, worker: int, rounds: int) -> list[Timed]:
    with place.writer("sales") as (sales, _):
        return [
            timed(lambda n=n: sales.create_table("main", f"t_{worker}_{n}", COLUMNS))  # type: ignore[misc]
            for n in range(rounds)
        ]


def create_schemas(place: Place, worker: int, rounds: int) -> list[Timed]:
    with place.writer("sales") as (sales, _):
        return [
            timed(lambda n=n: sales.create_schema(f"s_{worker}_{n}"))  # type: ignore[misc]
            for n in range(rounds)
        ]


def create_catalogs(place: Place, worker: int, rounds: int) -> int:
    """Makes catalogs of its own, and tries to be the one that makes those all want."""
    won = 0
    with place.lake() as lake:
        for number in range(rounds):
            lake.create_catalog(f"c_{worker}_{number}").create_table("main", "t", COLUMNS)
            try:
                lake.create_catalog(f"wanted_{number}")
                won += 1
            except AlreadyExists:
                pass
    return won


def fork_or_append(place: Place, worker: int, rounds: int) -> list[Timed]:
    if worker % 2:
        return append(place, "shared", worker, 3 * rounds)
    with place.lake() as lake:
        for number in range(rounds):
            lake.fork_catalog("sales", f"f_{worker}_{number}").create_schema("own")
    return []


# ---- tests -------------------------------------------------------------------------------------


class Observer:
    """A stock DuckDB that asks for counts at snapshots, and never gets two answers."""

    def __init__(self, lake: Lake, catalog: Catalog, duck: duckdb.DuckDBPyConnection) -> None:
        self._duck = duck
        self._catalog = catalog
        lake.location(catalog.info).attach(duck)
        self._seen: dict[int, int] = {}

    def watch(self, running: AsyncResult[Any]) -> None:
        while not running.ready():
            self.look(self._catalog.snapshot_id())
            running.wait(0.02)

    def look(self, snapshot: int, table: str = "main.shared") -> int:
        name = f"{self._catalog.name}.{table}"
        counted = f"SELECT count(*) FROM {name} AT (VERSION => {snapshot})"
        # All rows: a result that is not read to its end keeps its transaction open.
        [(count,)] = self._duck.execute(counted).fetchall()
        assert self._seen.setdefault(snapshot, count) == count
        return int(count)

    def look_again(self) -> None:
        assert self._seen
        for snapshot in list(self._seen):
            self.look(snapshot)


def flat(results: list[list[Timed]]) -> list[Timed]:
    return [timed for result in results for timed in result]


def test_appends_to_one_table_all_succeed_in_the_order_of_their_ids(
    crew: Crew, place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    appends_to_one_table(crew, place, lake, sales, duck, rounds=10)


@pytest.mark.slow
def test_sixteen_processes_append_to_one_table_for_long(
    place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    with Crew(16) as crew:
        appends_to_one_table(crew, place, lake, sales, duck, rounds=200)


def appends_to_one_table(
    crew: Crew,
    place: Place,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    observer = Observer(lake, sales, duck)
    parts = [(place, "shared", worker, rounds) for worker in range(crew.size)]
    running = crew.begin(append, parts)
    observer.watch(running)
    commits = flat(running.get())
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert sorted(timed.committed.snapshot_id for timed in commits) == list(
        range(2, 2 + crew.size * rounds)
    )
    assert_ids_follow_time(commits)
    observer.look_again()
    for snapshot in range(1, 2 + crew.size * rounds, max(1, rounds // 10)):
        assert observer.look(snapshot) == snapshot - 1
    assert duck.sql(
        "SELECT worker, count(DISTINCT number), count(*) FROM sales.main.shared "
        "GROUP BY worker ORDER BY worker"
    ).fetchall() == [(worker, rounds, rounds) for worker in range(crew.size)]
    row_ids = "SELECT count(DISTINCT rowid), max(rowid) + 1 FROM sales.main.shared"
    assert duck.sql(row_ids).fetchall() == [(crew.size * rounds, crew.size * rounds)]
    crew.ask(history, place, "sales").assert_sound()


def test_appends_to_different_tables_all_succeed(
    crew: Crew, place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    appends_to_different_tables(crew, place, lake, sales, duck, rounds=8)


@pytest.mark.slow
def test_sixteen_processes_append_to_a_table_each_for_long(
    place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    with Crew(16) as crew:
        appends_to_different_tables(crew, place, lake, sales, duck, rounds=200)


def appends_to_different_tables(
    crew: Crew,
    place: Place,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    for worker in range(crew.size):
        sales.create_table("main", f"own_{worker}", COLUMNS)
    parts = [(place, f"own_{worker}", worker, rounds) for worker in range(crew.size)]
    commits = flat(crew.work(append, parts))
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert_ids_follow_time(commits)
    lake.location(sales.info).attach(duck)
    for worker in range(crew.size):
        rows = duck.sql(f"SELECT worker, count(*) FROM sales.main.own_{worker} GROUP BY ALL")
        assert rows.fetchall() == [(worker, rounds)]
    crew.ask(history, place, "sales").assert_sound()


@pytest.mark.parametrize("job", [create_tables, create_schemas])
def test_tables_and_schemas_made_at_once_have_ids_of_their_own(
    crew: Crew,
    place: Place,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    job: Any,
) -> None:
    makes_tables_or_schemas(crew, place, lake, sales, duck, job, rounds=8)


@pytest.mark.slow
@pytest.mark.parametrize("job", [create_tables, create_schemas])
def test_sixteen_processes_make_tables_and_schemas_for_long(
    place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection, job: Any
) -> None:
    with Crew(16) as crew:
        makes_tables_or_schemas(crew, place, lake, sales, duck, job, rounds=60)


def makes_tables_or_schemas(
    crew: Crew,
    place: Place,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    job: Any,
    rounds: int,
) -> None:
    commits = flat(crew.work(job, [(place, worker, rounds) for worker in range(crew.size)]))
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert_ids_follow_time(commits)
    crew.ask(history, place, "sales").assert_sound()
    lake.location(sales.info).attach(duck)
    tables, schemas = (1, 1 + crew.size * rounds)[:: 1 if job is create_schemas else -1]
    listed = "SELECT count(DISTINCT table_id) FROM ducklake_table_info('sales')"
    assert duck.sql(listed).fetchall() == [(tables,)]
    listed = "SELECT count(*) FROM duckdb_schemas() WHERE database_name = 'sales'"
    assert duck.sql(listed).fetchall() == [(schemas,)]


def test_catalogs_made_at_once_are_whole_and_a_name_is_given_once(
    crew: Crew, place: Place, lake: Lake, duck: duckdb.DuckDBPyConnection
) -> None:
    makes_catalogs(crew, place, lake, duck, rounds=2)


@pytest.mark.slow
def test_sixteen_processes_make_many_catalogs(
    place: Place, lake: Lake, duck: duckdb.DuckDBPyConnection
) -> None:
    with Crew(16) as crew:
        makes_catalogs(crew, place, lake, duck, rounds=15)


def makes_catalogs(
    crew: Crew, place: Place, lake: Lake, duck: duckdb.DuckDBPyConnection, rounds: int
) -> None:
    won = crew.work(create_catalogs, [(place, worker, rounds) for worker in range(crew.size)])
    assert sum(won) == rounds
    infos = lake.catalogs()
    assert len(infos) == crew.size * rounds + rounds
    assert len({info.data_path for info in infos}) == len(infos)
    for info in infos:
        catalog = lake.catalog(info.name)
        assert catalog.check() == []
        assert catalog.snapshot_id() == (0 if info.name.startswith("wanted") else 1)
    lake.location(infos[0]).attach(duck)
    assert duck.sql(f"SELECT count(*) FROM {infos[0].name}.main.t").fetchall() == [(0,)]


def test_forks_made_while_others_append_hold_what_their_parent_held(
    crew: Crew, place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    forks_while_appending(crew, place, lake, sales, duck, rounds=2)


@pytest.mark.slow
def test_sixteen_processes_fork_and_append_for_long(
    place: Place, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    with Crew(16) as crew:
        forks_while_appending(crew, place, lake, sales, duck, rounds=20)


def forks_while_appending(
    crew: Crew,
    place: Place,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    observer = Observer(lake, sales, duck)
    running = crew.begin(fork_or_append, [(place, worker, rounds) for worker in range(crew.size)])
    observer.watch(running)
    commits = flat(running.get())
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert_ids_follow_time(commits)
    observer.look_again()
    crew.ask(history, place, "sales").assert_sound()
    forks = [info for info in lake.catalogs() if info.parent == sales.info.id]
    assert len(forks) == crew.size // 2 * rounds
    for info in forks:
        assert info.parent_snapshot is not None
        crew.ask(history, place, info.name).assert_sound()
        lake.location(info).attach(duck)
        rows = duck.sql(f"SELECT count(*) FROM {info.name}.main.shared").fetchall()
        assert rows == [(info.parent_snapshot - 1,)]
        duck.execute(f"DETACH {info.name}")
