"""Commits of SwanLake after commits of the stock extension since the base, pair by pair.

The order is forced: SwanLake reads, the stock extension commits, SwanLake commits. A conflict
leaves the stock commit; a success has both, and stock DuckDB reads exactly that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import duckdb
import psycopg
import pytest

from swanlake.errors import CommitConflict, NotFound
from swanlake.lake.catalog import Catalog, new_table
from swanlake.lake.commit import protocol as committing
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.metastore.postgres import PostgresStore, postgres_engine
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import (
    Commit,
    CreateSchema,
    DropSchema,
    DropTable,
    Insert,
    Operation,
)
from tests.integration.lake.fixtures import ROWS, LakeHarness

Ids = frozenset[int] | None  # None: the table was dropped
Parts = tuple[Path, tuple[DataFile, ...]]
NUMBERS = count(1)
WRITTEN: dict[LakeHarness, tuple[DataFile, ...]] = {}


@dataclass(frozen=True)
class StockChange:
    """A change of the table ``{t}`` in schema ``{s}`` by the stock extension."""

    sql: str
    effect: Callable[[Ids], Ids] = lambda ids: ids
    inlined: bool = False
    #: Runs before the base is read.
    before: str = ""
    before_inlined: bool = False


def without(*gone: int) -> Callable[[Ids], Ids]:
    return lambda ids: None if ids is None else ids - set(gone)


def plus(*new: int) -> Callable[[Ids], Ids]:
    return lambda ids: None if ids is None else ids | set(new)


#: The table holds a file of the ids 0 to 9, one of 10 to 19 and one of 20 to 29.
BASE: Ids = frozenset(range(30))
PARTS = (range(10), range(10, 20), range(20, 30))
STOCK_CHANGES = {
    "nothing": StockChange("SELECT 1"),
    "something elsewhere": StockChange("CREATE TABLE {s}_other.t2 AS SELECT 1 AS id"),
    "insert": StockChange("INSERT INTO {t} VALUES (100, 'x')", plus(100)),
    "inlined insert": StockChange("INSERT INTO {t} VALUES (100, 'x')", plus(100), inlined=True),
    "delete, same file": StockChange("DELETE FROM {t} WHERE id = 3", without(3)),
    "delete, other file": StockChange("DELETE FROM {t} WHERE id = 13", without(13)),
    "delete, whole file": StockChange("DELETE FROM {t} WHERE id < 10", without(*range(10))),
    "second delete, same file": StockChange(
        "DELETE FROM {t} WHERE id = 3", without(3, 4), before="DELETE FROM {t} WHERE id = 4"
    ),
    "inlined delete, same file": StockChange(
        "DELETE FROM {t} WHERE id = 3", without(3), inlined=True
    ),
    "inlined delete, other file": StockChange(
        "DELETE FROM {t} WHERE id = 13", without(13), inlined=True
    ),
    "inlined delete of inlined rows": StockChange(
        "DELETE FROM {t} WHERE id = 100",
        inlined=True,
        before="INSERT INTO {t} VALUES (100, 'x')",
        before_inlined=True,
    ),
    "update": StockChange(
        "UPDATE {t} SET id = 113 WHERE id = 13", lambda i: plus(113)(without(13)(i))
    ),
    "alter": StockChange("ALTER TABLE {t} ADD COLUMN w INTEGER"),
    "rename": StockChange("ALTER TABLE {t} RENAME TO renamed"),
    "drop": StockChange("DROP TABLE {t}", lambda _: None),
    "drop and create again": StockChange(
        "DROP TABLE {t}; CREATE TABLE {t} AS SELECT 7 AS id, 'x' AS v", lambda _: frozenset({7})
    ),
    "merge": StockChange("CALL ducklake_merge_adjacent_files('{c}', 't', schema => '{n}')"),
    "rewrite": StockChange(
        "CALL ducklake_rewrite_data_files('{c}', 't', schema => '{n}', delete_threshold => 0)",
        without(27),
        before="DELETE FROM {t} WHERE id = 27",
    ),
    "flush": StockChange(
        "CALL ducklake_flush_inlined_data('{c}', schema_name => '{n}', table_name => 't')",
        plus(100),
        before="INSERT INTO {t} VALUES (100, 'x')",
        before_inlined=True,
    ),
    "flush of deletes": StockChange(
        "CALL ducklake_flush_inlined_data('{c}', schema_name => '{n}', table_name => 't')",
        without(4),
        before="DELETE FROM {t} WHERE id = 4",
        before_inlined=True,
    ),
    "create table of the same name": StockChange("CREATE TABLE {s}.New_One (i INTEGER)"),
    "create view of the same name": StockChange("CREATE VIEW {s}.New_One AS SELECT 1 AS i"),
    "create macro of the same name": StockChange("CREATE MACRO {s}.New_One(i) AS i + 1"),
    "create schema of the same name": StockChange("CREATE SCHEMA {s}_NEW"),
    "create another table": StockChange("CREATE TABLE {s}.another (i INTEGER)"),
    "drop schema": StockChange("DROP SCHEMA {s} CASCADE", lambda _: None),
}

INSERTS = {"insert", "inlined insert", "update"}
DELETES = {
    "delete, same file",
    "delete, whole file",
    "second delete, same file",
    "inlined delete, same file",
    "flush of deletes",  # recorded as a delete from the table
    "delete, other file",
    "inlined delete, other file",
    "inlined delete of inlined rows",
    "update",
}
DROPS = {"drop", "drop and create again", "drop schema"}
COMPACTIONS = {"merge", "rewrite"}

#: SwanLake's operations, and the stock changes that each conflicts with.
CONFLICTS: dict[str, set[str]] = {
    "append": {"alter"} | DROPS,
    "insert": {"alter"} | DROPS | DELETES,
    "merge": DROPS | DELETES | COMPACTIONS,
    "create schema": {"create schema of the same name"},
    "create table": {
        "create table of the same name",
        "create view of the same name",
        "drop schema",
    },
    "drop table": DROPS | INSERTS,
    "drop schema": DROPS
    | INSERTS
    | {
        "rename",
        "create table of the same name",
        "create view of the same name",
        "create macro of the same name",
        "create another table",
    },
}
EFFECTS: dict[str, Callable[[Ids], Ids]] = {
    "append": plus(200, 201),
    "insert": plus(200, 201),
    "drop table": lambda _: None,
    "drop schema": lambda _: None,
}


@dataclass(frozen=True)
class Cell:
    """One schema of the shared catalog, with one table."""

    harness: LakeHarness
    catalog: Catalog
    schema: str

    @property
    def name(self) -> str:
        return f"{self.catalog.name}.{self.schema}.t"

    def run(self, sql: str, *, inlined: bool = False) -> None:
        self.harness.inline(10 if inlined else 0)
        place = f"{self.catalog.name}.{self.schema}"
        words = {"t": f"{place}.t", "s": place, "c": self.catalog.name, "n": self.schema}
        self.harness.sql(sql.format(**words))
        self.harness.inline(0)

    def table(self) -> Table:
        return self.catalog.table(self.schema, "t")

    def ids(self) -> Ids:
        schema = f"database_name = '{self.catalog.name}' AND schema_name = '{self.schema}'"
        found = self.harness.sql(f"SELECT table_name FROM duckdb_tables() WHERE {schema}")
        names = {row[0] for row in found} & {"t", "renamed"}
        if not names:
            return None
        ids = self.harness.ids(f"{self.catalog.name}.{self.schema}.{names.pop()}")
        assert len(set(ids)) == len(ids)
        return frozenset(ids)

    def operations(self, action: str) -> list[Operation]:
        harness, catalog, table = self.harness, self.catalog, self.table()
        first, second = harness.files(catalog, table)[:2]
        match action:
            case "append":
                return [harness.insert(table, range(200, 202), blind=True)]
            case "insert":
                return [harness.insert(table, range(200, 202))]
            case "merge":
                return [harness.merge(catalog, table, [first, second])]
            case "create schema":
                return [CreateSchema(f"{self.schema}_new")]
            case "create table":
                return [new_table(self.schema, "new_one", ROWS)]
            case "drop table":
                return [DropTable(self.schema, "T")]
            case "drop schema":
                return [DropSchema(self.schema.upper(), cascade=True)]
        raise AssertionError(action)


@pytest.fixture
def catalog(shared_harness: LakeHarness) -> Catalog:
    """One catalog for all pairs; each pair uses its own schema."""
    if shared_harness.lake.find("matrix") is None:
        shared_harness.attach(shared_harness.lake.create_catalog("matrix"))
    return shared_harness.lake.catalog("matrix")


@pytest.fixture
def parts(shared_harness: LakeHarness) -> Parts:
    """The files of every table, written once."""
    columns = new_table("main", "t", ROWS).columns
    table = Table(0, "main", "t", f"{shared_harness.home}/parts/", columns)
    if shared_harness not in WRITTEN:
        files = [file for ids in PARTS for file in shared_harness.write(table, ids)]
        WRITTEN[shared_harness] = tuple(files)
    return Path(table.directory), WRITTEN[shared_harness]


@pytest.fixture
def cell(shared_harness: LakeHarness, catalog: Catalog, parts: Parts) -> Iterator[Cell]:
    schema = f"s{next(NUMBERS)}"
    operation = new_table(schema, "t", ROWS)
    source, files = parts
    directory = Path(catalog.info.data_path, schema, "t")
    directory.mkdir(parents=True)
    for file in files:
        (directory / file.path).hardlink_to(source / file.path)
    catalog.change(CreateSchema(schema), operation, Insert(operation, files))
    yield Cell(shared_harness, catalog, schema)
    # Stock DuckDB reads all tables of a catalog whenever one changes: keep them few.
    with suppress(NotFound):
        catalog.drop_schema(schema, cascade=True)


ON_NAMES = {"nothing", "drop", "drop schema", *(name for name in STOCK_CHANGES if "create" in name)}
#: The pairs that can interact.
RELATED = {
    "append": set(STOCK_CHANGES) - ON_NAMES | {"nothing", "drop", "drop schema"},
    "insert": set(STOCK_CHANGES) - ON_NAMES | {"nothing", "drop", "drop schema"},
    # A file with deleted rows is never merged.
    "merge": set(STOCK_CHANGES) - ON_NAMES - {"second delete, same file"} | {"nothing", "drop"},
    "create schema": {"nothing", "create schema of the same name", "insert"},
    "create table": ON_NAMES,
    "drop table": set(STOCK_CHANGES),
    "drop schema": ON_NAMES | INSERTS | {"rename", "delete, same file"},
}
#: Run on both databases: their checks read the most metadata.
ON_SQLITE = {
    "merge": {"nothing", "insert", "inlined delete, other file"},
    "create table": {"nothing", "create view of the same name", "drop schema"},
    "drop table": {"nothing", "inlined insert", "drop and create again"},
    "drop schema": {"nothing", "insert", "create another table"},
}
PAIRS = [
    pytest.param(metabase, action, change, id=f"{metabase}: {action} after {change}")
    for metabase, pairs in {"sqlite": ON_SQLITE, "postgres": RELATED}.items()
    for action in pairs
    for change in STOCK_CHANGES
    if change in pairs[action]
]


@pytest.mark.parametrize(("shared_harness", "action", "change"), PAIRS, indirect=["shared_harness"])
def test_commit_after_a_stock_commit_merges_or_conflicts(
    cell: Cell, action: str, change: str
) -> None:
    stock_change = STOCK_CHANGES[change]
    if "{s}_other" in stock_change.sql:
        cell.run("CREATE SCHEMA {s}_other")
    if stock_change.before:
        cell.run(stock_change.before, inlined=stock_change.before_inlined)
    operations = cell.operations(action)
    base = cell.catalog.newest_snapshot()
    cell.run(stock_change.sql, inlined=stock_change.inlined)
    after_stock = stock_change.effect(BASE)
    assert cell.ids() == after_stock
    head = cell.catalog.newest_snapshot()
    commit = Commit(tuple(operations), base=base)
    if change in CONFLICTS[action]:
        with pytest.raises(CommitConflict) as conflict:
            cell.catalog.commit(commit)
        assert cell.schema in conflict.value.message.lower()
        assert str(base) in conflict.value.message
        assert "repeat it" in conflict.value.message or "another name" in conflict.value.message
        assert cell.catalog.newest_snapshot() == head
        assert cell.ids() == after_stock
    elif (action, change) == ("drop table", "rename"):
        with pytest.raises(NotFound, match="There is no table"):
            cell.catalog.commit(commit)
    else:
        done = cell.catalog.commit(commit)
        assert done.snapshot_id == head + 1
        effect = EFFECTS[action] if action in EFFECTS else STOCK_CHANGES["nothing"].effect
        assert cell.ids() == effect(after_stock)


def test_drop_without_a_base_never_conflicts(cell: Cell) -> None:
    cell.run("INSERT INTO {t} VALUES (100, 'x')")
    cell.catalog.change(DropTable(cell.schema, "t"))
    assert cell.ids() is None


def test_names_that_differ_in_non_ascii_case_are_different_tables(cell: Cell) -> None:
    cell.run('CREATE TABLE {s}."straße" AS SELECT 1 AS id; CREATE TABLE {s}."Ä" AS SELECT 2 AS id')
    catalog = cell.catalog
    catalog.change(new_table(cell.schema, "STRASSE", ROWS), new_table(cell.schema, "ä", ROWS))
    assert catalog.table(cell.schema, "Ä").id != catalog.table(cell.schema, "ä").id
    catalog.drop_table(cell.schema, "strasse")
    catalog.drop_table(cell.schema, "ä")
    place = f"{catalog.name}.{cell.schema}"
    assert cell.harness.ids(f'{place}."straße"') == [1]
    assert cell.harness.ids(f'{place}."Ä"') == [2]
    with pytest.raises(NotFound):
        catalog.table(cell.schema, "ä")


def test_merge_of_a_file_with_old_inlined_deletes_is_a_conflict(cell: Cell) -> None:
    cell.run("DELETE FROM {t} WHERE id = 3", inlined=True)
    operations = tuple(cell.operations("merge"))
    for base in (cell.catalog.newest_snapshot(), None):
        with pytest.raises(CommitConflict, match=r"rows were deleted from data file \d+"):
            cell.catalog.commit(Commit(operations, base=base))
    assert cell.ids() == frozenset(range(30)) - {3}


def test_merged_files_read_the_same_at_every_snapshot_after_cleanup(
    cell: Cell,
) -> None:
    before = cell.catalog.newest_snapshot()
    cell.catalog.commit(Commit(tuple(cell.operations("merge")), base=before))
    cell.run("CALL ducklake_cleanup_old_files('{c}', cleanup_all => true)")
    assert cell.harness.ids(cell.name, at=before) == cell.harness.ids(cell.name) == list(range(30))
    assert cell.catalog.missing_files() == []


def test_two_inserts_of_one_commit_get_distinct_row_ids(cell: Cell) -> None:
    operation = new_table(cell.schema, "twice", ROWS)
    directory = f"{cell.catalog.info.data_path}{cell.schema}/twice/"
    table = Table(0, cell.schema, "twice", directory, operation.columns)
    files = [tuple(cell.harness.write(table, ids)) for ids in PARTS]
    cell.catalog.change(operation, Insert(operation, files[0]), Insert(operation, files[1]))
    table = cell.catalog.table(cell.schema, "twice")
    cell.catalog.change(Insert(table, files[2]))
    name = f"{cell.catalog.name}.{cell.schema}.twice"
    cell.run("INSERT INTO {s}.twice VALUES (30, 'x')")
    found = cell.harness.sql(f"SELECT rowid, id FROM {name} ORDER BY id")
    assert found == [(number, number) for number in range(31)]
    stats = cell.harness.metadata(cell.catalog, "ducklake_table_stats")
    query = f"SELECT record_count, next_row_id FROM {stats} WHERE table_id = {table.id}"
    assert cell.harness.sql(query) == [(31, 31)]


# ---- concurrent commits -----------------------------------------------------------------------


on_postgres = pytest.mark.parametrize("shared_harness", ["postgres"], indirect=True)


@pytest.fixture
def hooked(shared_harness: LakeHarness, catalog: Catalog) -> Iterator[PostgresStore]:
    """A store with hooks into its commit; PostgreSQL only, as SQLite runs in another process."""
    engine = postgres_engine(str(shared_harness.metabase))
    yield PostgresStore(catalog.name, f"lake_{catalog.info.storage_name}", engine)
    engine.dispose()


@dataclass
class CommitRace:
    """Pauses SwanLake's commit at a step until stock DuckDB waits for its lock."""

    store: PostgresStore
    metabase: str
    step: str
    sql: str
    error: Exception | None = None

    def run(self, harness: LakeHarness, cell: Cell, change: Commit) -> int:
        with harness.another_engine(cell.catalog) as stock:
            stock.execute(f"SELECT count(*) FROM {cell.name}").fetchall()
            thread = threading.Thread(target=self._run, args=(stock,))

            def reached(step: str) -> None:
                if step == self.step:
                    thread.start()
                    self._await_waiter()

            self.store.reached = reached
            try:
                return committing.apply(self.store, change, Retries()).snapshot_id
            finally:
                thread.join()

    def _run(self, stock: duckdb.DuckDBPyConnection) -> None:
        try:
            stock.execute(self.sql)
        except duckdb.Error as error:
            self.error = error

    def _await_waiter(self) -> None:
        with psycopg.connect(self.metabase, autocommit=True) as connection:
            query = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while connection.execute(query).fetchone() is None:
                assert self.error is None, self.error


@on_postgres
@pytest.mark.parametrize("step", ["locked", "planned"])
def test_concurrent_stock_insert_waits_and_both_commits_apply(
    cell: Cell, hooked: PostgresStore, step: str
) -> None:
    sql = f"INSERT INTO {cell.name} VALUES (100, 'x')"
    race = CommitRace(hooked, str(cell.harness.metabase), step, sql)
    commit = Commit(tuple(cell.operations("append")), base=cell.catalog.newest_snapshot())
    ours = race.run(cell.harness, cell, commit)
    assert race.error is None
    assert cell.catalog.newest_snapshot() == ours + 1
    assert cell.ids() == frozenset(range(30)) | {100, 200, 201}
    assert cell.catalog.check() == []


@on_postgres
def test_concurrent_stock_insert_into_a_dropped_table_fails(
    cell: Cell, hooked: PostgresStore
) -> None:
    sql = f"INSERT INTO {cell.name} VALUES (100, 'x')"
    race = CommitRace(hooked, str(cell.harness.metabase), "planned", sql)
    commit = Commit(tuple(cell.operations("drop table")), base=cell.catalog.newest_snapshot())
    race.run(cell.harness, cell, commit)
    assert "conflict" in str(race.error)
    assert cell.ids() is None
