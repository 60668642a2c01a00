"""What we commit against what the stock extension committed since the base, pair by pair.

The order is forced: we read, the stock extension commits, we commit. A conflict leaves what they
did; a success holds what both did, and stock DuckDB sees exactly that.
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
from swanlake.lake import commit as committing
from swanlake.lake.commit import Retries
from swanlake.lake.lake import Catalog, new_table
from swanlake.lake.layout import DataFile, Table
from swanlake.lake.operations import (
    Commit,
    CreateSchema,
    Delete,
    DropSchema,
    DropTable,
    Insert,
    Operation,
)
from swanlake.lake.postgres import PostgresStore, postgres_engine
from tests.integration.lake.world import ROWS, World

Ids = frozenset[int] | None  # None: the table is gone
Parts = tuple[Path, tuple[DataFile, ...]]
NUMBERS = count(1)
WRITTEN: dict[World, tuple[DataFile, ...]] = {}


@dataclass(frozen=True)
class Theirs:
    """What the stock extension does to ``{t}`` in schema ``{s}`` of the catalog."""

    sql: str
    effect: Callable[[Ids], Ids] = lambda ids: ids
    inlined: bool = False
    #: What they do before the base.
    before: str = ""
    before_inlined: bool = False


def without(*gone: int) -> Callable[[Ids], Ids]:
    return lambda ids: None if ids is None else ids - set(gone)


def plus(*new: int) -> Callable[[Ids], Ids]:
    return lambda ids: None if ids is None else ids | set(new)


#: The table holds a file of the ids 0 to 9, one of 10 to 19 and one of 20 to 29.
BASE: Ids = frozenset(range(30))
PARTS = (range(10), range(10, 20), range(20, 30))
THEIRS = {
    "nothing": Theirs("SELECT 1"),
    "something elsewhere": Theirs("CREATE TABLE {s}_other.t2 AS SELECT 1 AS id"),
    "insert": Theirs("INSERT INTO {t} VALUES (100, 'x')", plus(100)),
    "inlined insert": Theirs("INSERT INTO {t} VALUES (100, 'x')", plus(100), inlined=True),
    "delete, same file": Theirs("DELETE FROM {t} WHERE id = 3", without(3)),
    "delete, other file": Theirs("DELETE FROM {t} WHERE id = 13", without(13)),
    "delete, whole file": Theirs("DELETE FROM {t} WHERE id < 10", without(*range(10))),
    "second delete, same file": Theirs(
        "DELETE FROM {t} WHERE id = 3", without(3, 4), before="DELETE FROM {t} WHERE id = 4"
    ),
    "inlined delete, same file": Theirs("DELETE FROM {t} WHERE id = 3", without(3), inlined=True),
    "inlined delete, other file": Theirs(
        "DELETE FROM {t} WHERE id = 13", without(13), inlined=True
    ),
    "inlined delete of inlined rows": Theirs(
        "DELETE FROM {t} WHERE id = 100",
        inlined=True,
        before="INSERT INTO {t} VALUES (100, 'x')",
        before_inlined=True,
    ),
    "update": Theirs("UPDATE {t} SET id = 113 WHERE id = 13", lambda i: plus(113)(without(13)(i))),
    "alter": Theirs("ALTER TABLE {t} ADD COLUMN w INTEGER"),
    "rename": Theirs("ALTER TABLE {t} RENAME TO renamed"),
    "drop": Theirs("DROP TABLE {t}", lambda _: None),
    "drop and create again": Theirs(
        "DROP TABLE {t}; CREATE TABLE {t} AS SELECT 7 AS id, 'x' AS v", lambda _: frozenset({7})
    ),
    "merge": Theirs("CALL ducklake_merge_adjacent_files('{c}', 't', schema => '{n}')"),
    "rewrite": Theirs(
        "CALL ducklake_rewrite_data_files('{c}', 't', schema => '{n}', delete_threshold => 0)",
        without(27),
        before="DELETE FROM {t} WHERE id = 27",
    ),
    "flush": Theirs(
        "CALL ducklake_flush_inlined_data('{c}', schema_name => '{n}', table_name => 't')",
        plus(100),
        before="INSERT INTO {t} VALUES (100, 'x')",
        before_inlined=True,
    ),
    "flush of deletes": Theirs(
        "CALL ducklake_flush_inlined_data('{c}', schema_name => '{n}', table_name => 't')",
        without(4),
        before="DELETE FROM {t} WHERE id = 4",
        before_inlined=True,
    ),
    "create table of the same name": Theirs("CREATE TABLE {s}.New_One (i INTEGER)"),
    "create view of the same name": Theirs("CREATE VIEW {s}.New_One AS SELECT 1 AS i"),
    "create macro of the same name": Theirs("CREATE MACRO {s}.New_One(i) AS i + 1"),
    "create schema of the same name": Theirs("CREATE SCHEMA {s}_NEW"),
    "create table beside it": Theirs("CREATE TABLE {s}.beside (i INTEGER)"),
    "drop schema": Theirs("DROP SCHEMA {s} CASCADE", lambda _: None),
}

INSERTS = {"insert", "inlined insert", "update"}
DELETES_HERE = {
    "delete, same file",
    "delete, whole file",
    "second delete, same file",
    "inlined delete, same file",
    "flush of deletes",  # of which it says that it deleted from the table
}
DELETES = DELETES_HERE | {
    "delete, other file",
    "inlined delete, other file",
    "inlined delete of inlined rows",
    "update",
}
DROPS = {"drop", "drop and create again", "drop schema"}
COMPACTIONS = {"merge", "rewrite"}

#: What we do, and what nobody may have done before it.
MINE: dict[str, set[str]] = {
    "append": {"alter"} | DROPS,
    "insert": {"alter"} | DROPS | DELETES,
    "delete": {"alter"} | DROPS | INSERTS | COMPACTIONS | DELETES_HERE,
    # A flush of deletes changes their form, not what a file that goes whole has to lose.
    "drop files": {"alter"} | DROPS | INSERTS | COMPACTIONS | DELETES_HERE - {"flush of deletes"},
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
        "create table beside it",
    },
}
EFFECTS: dict[str, Callable[[Ids], Ids]] = {
    "append": plus(200, 201),
    "insert": plus(200, 201),
    "delete": without(3, 5),
    "drop files": without(*range(10)),
    "drop table": lambda _: None,
    "drop schema": lambda _: None,
}


@dataclass(frozen=True)
class Cell:
    """A schema of its own in the shared catalog, with one table."""

    world: World
    catalog: Catalog
    schema: str

    @property
    def name(self) -> str:
        return f"{self.catalog.name}.{self.schema}.t"

    def run(self, sql: str, *, inlined: bool = False) -> None:
        self.world.inline(10 if inlined else 0)
        place = f"{self.catalog.name}.{self.schema}"
        words = {"t": f"{place}.t", "s": place, "c": self.catalog.name, "n": self.schema}
        self.world.sql(sql.format(**words))
        self.world.inline(0)

    def table(self) -> Table:
        return self.catalog.table(self.schema, "t")

    def ids(self) -> Ids:
        schema = f"database_name = '{self.catalog.name}' AND schema_name = '{self.schema}'"
        found = self.world.sql(f"SELECT table_name FROM duckdb_tables() WHERE {schema}")
        names = {row[0] for row in found} & {"t", "renamed"}
        if not names:
            return None
        ids = self.world.ids(f"{self.catalog.name}.{self.schema}.{names.pop()}")
        assert len(set(ids)) == len(ids)
        return frozenset(ids)

    def mine(self, what: str) -> list[Operation]:
        world, catalog, table = self.world, self.catalog, self.table()
        first, second = world.files(catalog, table)[:2]
        match what:
            case "append":
                return [world.insert(table, range(200, 202), blind=True)]
            case "insert":
                return [world.insert(table, range(200, 202))]
            case "delete":
                live = world.sql(
                    f"SELECT delete_file_id FROM {world.metadata(catalog, 'ducklake_delete_file')} "
                    f"WHERE data_file_id = {first} AND end_snapshot IS NULL"
                )
                replaces = live[0][0] if live else None
                positions = [3, 5] if replaces is None else [3, 4, 5]
                return [world.delete(catalog, table, first, positions, replaces)]
            case "drop files":
                return [Delete(table, dropped=(first,))]
            case "merge":
                return [world.merge(catalog, table, [first, second])]
            case "create schema":
                return [CreateSchema(f"{self.schema}_new")]
            case "create table":
                return [new_table(self.schema, "new_one", ROWS)]
            case "drop table":
                return [DropTable(self.schema, "T")]
            case "drop schema":
                return [DropSchema(self.schema.upper(), cascade=True)]
        raise AssertionError(what)


@pytest.fixture
def catalog(shared_world: World) -> Catalog:
    """One catalog for all pairs: each has a schema of its own in it."""
    if shared_world.lake.find("matrix") is None:
        shared_world.attach(shared_world.lake.create_catalog("matrix"))
    return shared_world.lake.catalog("matrix")


@pytest.fixture
def parts(shared_world: World) -> Parts:
    """The files of every table, written once."""
    columns = new_table("main", "t", ROWS).columns
    table = Table(0, "main", "t", f"{shared_world.home}/parts/", columns)
    if shared_world not in WRITTEN:
        files = [file for ids in PARTS for file in shared_world.write(table, ids)]
        WRITTEN[shared_world] = tuple(files)
    return Path(table.directory), WRITTEN[shared_world]


@pytest.fixture
def cell(shared_world: World, catalog: Catalog, parts: Parts) -> Iterator[Cell]:
    schema = f"s{next(NUMBERS)}"
    operation = new_table(schema, "t", ROWS)
    source, files = parts
    directory = Path(catalog.info.data_path, schema, "t")
    directory.mkdir(parents=True)
    for file in files:
        (directory / file.path).hardlink_to(source / file.path)
    catalog.change(CreateSchema(schema), operation, Insert(operation, files))
    yield Cell(shared_world, catalog, schema)
    # Stock DuckDB reads all tables of a catalog whenever one changes: keep them few.
    with suppress(NotFound):
        catalog.drop_schema(schema, cascade=True)


ON_FILES = {"nothing", "flush", *DELETES, *COMPACTIONS}
ON_NAMES = {"nothing", "drop", "drop schema", *(name for name in THEIRS if "create" in name)}
#: The pairs that can have something to do with each other.
RELATED = {
    "append": set(THEIRS) - ON_NAMES | {"nothing", "drop", "drop schema"},
    "insert": set(THEIRS) - ON_NAMES | {"nothing", "drop", "drop schema"},
    "delete": set(THEIRS) - ON_NAMES | {"nothing", "drop", "drop schema"},
    "drop files": ON_FILES,
    # A file with deleted rows is never merged.
    "merge": set(THEIRS) - ON_NAMES - {"second delete, same file"} | {"nothing", "drop"},
    "create schema": {"nothing", "create schema of the same name", "insert"},
    "create table": ON_NAMES,
    "drop table": set(THEIRS),
    "drop schema": ON_NAMES | INSERTS | {"rename", "delete, same file"},
}
#: The rules are the same on both; these read most of the metadata to apply them.
ON_SQLITE = {
    "delete": {"nothing", "second delete, same file", "inlined delete, same file", "flush"},
    "drop files": {"nothing", "inlined delete, same file", "delete, other file"},
    "merge": {"nothing", "insert", "inlined delete, other file"},
    "create table": {"nothing", "create view of the same name", "drop schema"},
    "drop table": {"nothing", "inlined insert", "drop and create again"},
    "drop schema": {"nothing", "insert", "create table beside it"},
}
PAIRS = [
    pytest.param(metabase, mine, theirs, id=f"{metabase}: {mine} after {theirs}")
    for metabase, pairs in {"sqlite": ON_SQLITE, "postgres": RELATED}.items()
    for mine in pairs
    for theirs in THEIRS
    if theirs in pairs[mine]
]


@pytest.mark.parametrize(("shared_world", "mine", "theirs"), PAIRS, indirect=["shared_world"])
def test_our_commit_after_theirs(cell: Cell, mine: str, theirs: str) -> None:
    they = THEIRS[theirs]
    if "{s}_other" in they.sql:
        cell.run("CREATE SCHEMA {s}_other")
    if they.before:
        cell.run(they.before, inlined=they.before_inlined)
    operations = cell.mine(mine)
    base = cell.catalog.snapshot_id()
    cell.run(they.sql, inlined=they.inlined)
    after_theirs = they.effect(BASE)
    assert cell.ids() == after_theirs
    head = cell.catalog.snapshot_id()
    change = Commit(tuple(operations), base=base)
    if theirs in MINE[mine]:
        with pytest.raises(CommitConflict) as conflict:
            cell.catalog.commit(change)
        assert cell.schema in conflict.value.message.lower()
        assert str(base) in conflict.value.message or "was read" in conflict.value.message
        assert "repeat it" in conflict.value.message or "another name" in conflict.value.message
        assert cell.catalog.snapshot_id() == head
        assert cell.ids() == after_theirs
    elif (mine, theirs) == ("drop table", "rename"):
        with pytest.raises(NotFound, match="There is no table"):
            cell.catalog.commit(change)
    else:
        done = cell.catalog.commit(change)
        assert done.snapshot_id == head + 1
        effect = EFFECTS[mine] if mine in EFFECTS else THEIRS["nothing"].effect
        assert cell.ids() == effect(after_theirs)


def test_a_table_may_be_dropped_without_a_base_whatever_happened(cell: Cell) -> None:
    cell.run("INSERT INTO {t} VALUES (100, 'x')")
    cell.catalog.change(DropTable(cell.schema, "t"))
    assert cell.ids() is None


def test_names_that_differ_beyond_ascii_are_different_tables(cell: Cell) -> None:
    cell.run('CREATE TABLE {s}."straße" AS SELECT 1 AS id; CREATE TABLE {s}."Ä" AS SELECT 2 AS id')
    catalog = cell.catalog
    catalog.change(new_table(cell.schema, "STRASSE", ROWS), new_table(cell.schema, "ä", ROWS))
    assert catalog.table(cell.schema, "Ä").id != catalog.table(cell.schema, "ä").id
    catalog.drop_table(cell.schema, "strasse")
    catalog.drop_table(cell.schema, "ä")
    place = f"{catalog.name}.{cell.schema}"
    assert cell.world.ids(f'{place}."straße"') == [1]
    assert cell.world.ids(f'{place}."Ä"') == [2]
    with pytest.raises(NotFound):
        catalog.table(cell.schema, "ä")


def test_a_merge_takes_no_file_with_inlined_deletes_however_old(cell: Cell) -> None:
    cell.run("DELETE FROM {t} WHERE id = 3", inlined=True)
    operations = tuple(cell.mine("merge"))
    for base in (cell.catalog.snapshot_id(), None):
        with pytest.raises(CommitConflict, match=r"rows were deleted from data file \d+"):
            cell.catalog.commit(Commit(operations, base=base))
    assert cell.ids() == frozenset(range(30)) - {3}


def test_what_was_merged_reads_the_same_at_every_snapshot_and_can_be_cleaned_up(
    cell: Cell,
) -> None:
    before = cell.catalog.snapshot_id()
    cell.catalog.commit(Commit(tuple(cell.mine("merge")), base=before))
    cell.run("CALL ducklake_cleanup_old_files('{c}', cleanup_all => true)")
    assert cell.world.ids(cell.name, at=before) == cell.world.ids(cell.name) == list(range(30))
    assert cell.catalog.missing_files() == []


def test_two_inserts_of_one_commit_get_row_ids_of_their_own(cell: Cell) -> None:
    operation = new_table(cell.schema, "twice", ROWS)
    directory = f"{cell.catalog.info.data_path}{cell.schema}/twice/"
    table = Table(0, cell.schema, "twice", directory, operation.columns)
    files = [tuple(cell.world.write(table, ids)) for ids in PARTS]
    cell.catalog.change(operation, Insert(operation, files[0]), Insert(operation, files[1]))
    table = cell.catalog.table(cell.schema, "twice")
    cell.catalog.change(Insert(table, files[2]))
    name = f"{cell.catalog.name}.{cell.schema}.twice"
    cell.run("INSERT INTO {s}.twice VALUES (30, 'x')")
    found = cell.world.sql(f"SELECT rowid, id FROM {name} ORDER BY id")
    assert found == [(number, number) for number in range(31)]
    stats = cell.world.metadata(cell.catalog, "ducklake_table_stats")
    query = f"SELECT record_count, next_row_id FROM {stats} WHERE table_id = {table.id}"
    assert cell.world.sql(query) == [(31, 31)]


# ---- at the same time -------------------------------------------------------------------------


on_postgres = pytest.mark.parametrize("shared_world", ["postgres"], indirect=True)


@pytest.fixture
def hooked(shared_world: World, catalog: Catalog) -> Iterator[PostgresStore]:
    """A store of the catalog that tells where its commit is; a SQLite one is in another process."""
    engine = postgres_engine(str(shared_world.metabase))
    yield PostgresStore(catalog.name, f"lake_{catalog.info.place}", engine)
    engine.dispose()


@dataclass
class Meeting:
    """Holds our commit at a step until stock DuckDB waits for our lock."""

    store: PostgresStore
    metabase: str
    step: str
    sql: str
    error: Exception | None = None

    def run(self, world: World, cell: Cell, change: Commit) -> int:
        with world.another_engine(cell.catalog) as stock:
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
def test_a_stock_insert_that_meets_our_commit_waits_and_both_are_there(
    cell: Cell, hooked: PostgresStore, step: str
) -> None:
    sql = f"INSERT INTO {cell.name} VALUES (100, 'x')"
    meeting = Meeting(hooked, str(cell.world.metabase), step, sql)
    change = Commit(tuple(cell.mine("append")), base=cell.catalog.snapshot_id())
    ours = meeting.run(cell.world, cell, change)
    assert meeting.error is None
    assert cell.catalog.snapshot_id() == ours + 1
    assert cell.ids() == frozenset(range(30)) | {100, 200, 201}
    assert cell.catalog.check() == []


@on_postgres
def test_a_stock_delete_that_meets_ours_on_one_file_is_the_one_that_fails(
    cell: Cell, hooked: PostgresStore
) -> None:
    sql = f"DELETE FROM {cell.name} WHERE id IN (3, 7)"
    meeting = Meeting(hooked, str(cell.world.metabase), "planned", sql)
    change = Commit(tuple(cell.mine("delete")), base=cell.catalog.snapshot_id())
    ours = meeting.run(cell.world, cell, change)
    assert "conflict" in str(meeting.error)
    assert cell.catalog.snapshot_id() == ours
    assert cell.ids() == frozenset(range(30)) - {3, 5}
    assert cell.catalog.check() == []


@on_postgres
def test_a_stock_insert_that_meets_our_drop_fails_and_no_row_is_lost(
    cell: Cell, hooked: PostgresStore
) -> None:
    sql = f"INSERT INTO {cell.name} VALUES (100, 'x')"
    meeting = Meeting(hooked, str(cell.world.metabase), "planned", sql)
    change = Commit(tuple(cell.mine("drop table")), base=cell.catalog.snapshot_id())
    meeting.run(cell.world, cell, change)
    assert "conflict" in str(meeting.error)
    assert cell.ids() is None
