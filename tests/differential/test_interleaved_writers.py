"""Whatever we and the stock extension do to one catalog in turns, both see the same rows."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from swanlake.lake.datafile import write_files
from swanlake.lake.operations import Commit, Insert
from swanlake.lake.types import ColumnSpec
from tests.differential.twins import Side, TwinMaker, deletion

Rows = list[tuple[int, str]]

#: Which rows a statement is for: every number that leaves this rest.
PICKS = st.tuples(st.integers(2, 5), st.integers(0, 4))
COUNTS = st.integers(1, 8)


class Turns(RuleBasedStateMachine):
    """A table, and a list of the rows that must be in it now and at every snapshot before."""

    maker: TwinMaker

    def __init__(self) -> None:
        super().__init__()
        #: Catalogs of which a fork was made, and what must be in them.
        self.parents: list[tuple[Side, dict[int, Rows]]] = []
        self.rows: Rows = []
        self.seen: dict[int, Rows] = {}
        self.next = 0
        self.altered = False

    @initialize(made_by_us=st.booleans())
    def make(self, made_by_us: bool) -> None:
        name = self.maker.new_name("goose")
        if made_by_us:
            self.catalog = self.maker.lake.create_catalog(name)
            self.catalog.create_table(
                "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
            )
            self.side = self.maker.attach(name)
        else:
            self.side = self.maker.attach(name)
            self.side("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
            self.catalog = self.maker.lake.adopt_catalog(name)
        self.look()

    # ---- our turn ------------------------------------------------------------------------------

    @rule(count=COUNTS)
    def we_insert(self, count: int) -> None:
        query = self.new_rows(count, "ours")
        self.catalog.append(self.side.connection, query, "main", "t")
        self.look()

    @rule(pick=PICKS)
    def we_delete(self, pick: tuple[int, int]) -> None:
        table = self.catalog.table("main", "t")
        deleted = deletion(self.side, table, self.where(pick))
        self.catalog.commit(Commit((deleted,), base=table.snapshot_id))
        self.forget(pick)
        self.look()

    @rule(pick=PICKS, count=COUNTS)
    def we_replace(self, pick: tuple[int, int], count: int) -> None:
        table = self.catalog.table("main", "t")
        deleted = deletion(self.side, table, self.where(pick))
        self.forget(pick)
        files = write_files(self.side.connection, self.new_rows(count, "replaced"), table)
        insert = Insert(table, tuple(files))
        self.catalog.commit(Commit((deleted, insert), base=table.snapshot_id))
        self.look()

    @precondition(lambda self: len(self.seen) > 2)
    @rule(data=st.data())
    def we_fork(self, data: st.DataObject) -> None:
        """Goes on in a fork of some snapshot."""
        at = data.draw(st.sampled_from(sorted(self.seen)))
        name = self.maker.new_name("goose")
        self.parents.append((self.side, self.seen))
        self.catalog = self.maker.lake.fork_catalog(self.catalog.name, name, at=at)
        self.side = self.maker.attach(name)
        self.seen = {version: rows for version, rows in self.seen.items() if version <= at}
        self.rows = self.seen[at]
        self.altered = len(self.catalog.table("main", "t").columns) > 2
        self.look()

    # ---- the stock extension's turn ------------------------------------------------------------

    @rule(count=COUNTS)
    def stock_inserts(self, count: int) -> None:
        self.side(f"INSERT INTO lake.t {self.new_rows(count, 'stock')}")
        self.look()

    @rule(pick=PICKS)
    def stock_deletes(self, pick: tuple[int, int]) -> None:
        self.side(f"DELETE FROM lake.t WHERE {self.where(pick)}")
        self.forget(pick)
        self.look()

    @rule(pick=PICKS)
    def stock_updates(self, pick: tuple[int, int]) -> None:
        self.side(f"UPDATE lake.t SET t = 'updated' WHERE {self.where(pick)}")
        picked = self.picked(pick)
        self.rows = [(i, "updated" if picked(i) else t) for i, t in self.rows]
        self.look()

    @rule()
    def stock_merges(self) -> None:
        self.side("CALL ducklake_merge_adjacent_files('lake')")
        self.look()

    @rule()
    def stock_rewrites(self) -> None:
        self.side("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
        self.look()

    @rule()
    def stock_cleans_up(self) -> None:
        oldest = sorted(self.seen)[: len(self.seen) // 3]
        if oldest:
            self.side(f"CALL ducklake_expire_snapshots('lake', versions => {oldest})")
        self.side("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        self.seen = {version: rows for version, rows in self.seen.items() if version not in oldest}
        self.look()

    @precondition(lambda self: not self.altered)
    @rule()
    def stock_alters(self) -> None:
        self.side("ALTER TABLE lake.t ADD COLUMN x INTEGER DEFAULT 7")
        self.altered = True
        self.look()

    # ---- what must be so -----------------------------------------------------------------------

    def look(self) -> None:
        """Compares the rows of now, and of all times."""
        self.rows = sorted(self.rows)
        self.seen[self.catalog.snapshot_id()] = self.rows
        numbers = [i for i, _ in self.rows]
        counted = self.side("SELECT count(*), sum(i), min(i), max(i) FROM lake.t")
        bounds = (min(numbers, default=None), max(numbers, default=None))
        assert counted == [(len(numbers), sum(numbers) if numbers else None, *bounds)]
        self.look_back(self.side, self.seen)
        if self.altered:
            assert self.side("SELECT count(*) FROM lake.t WHERE x IS DISTINCT FROM 7") == [(0,)]

    def look_back(self, side: Side, seen: dict[int, Rows]) -> None:
        for version, rows in seen.items():
            # Not sorted by stock DuckDB: see the note in test_exchange.py.
            then = side(f"SELECT i, t FROM lake.t AT (VERSION => {version})")
            assert sorted(then) == rows, (side.name, version)

    def teardown(self) -> None:
        for side, seen in self.parents:
            self.look_back(side, seen)
        assert self.catalog.check() == []
        self.maker.detach()

    def new_rows(self, count: int, text: str) -> str:
        """A query for rows that are not there yet, which from now on must be."""
        first, self.next = self.next, self.next + count
        self.rows = self.rows + [(i, text) for i in range(first, self.next)]
        more = ", 7" if self.altered else ""
        return f"SELECT i, '{text}'{more} FROM range({first}, {self.next}) r(i)"

    def where(self, pick: tuple[int, int]) -> str:
        return f"i % {pick[0]} = {pick[1]}"

    def picked(self, pick: tuple[int, int]) -> Callable[[int], bool]:
        return lambda i: i % pick[0] == pick[1]

    def forget(self, pick: tuple[int, int]) -> None:
        picked = self.picked(pick)
        self.rows = [row for row in self.rows if not picked(row[0])]


def test_any_sequence_of_turns(twin_maker: TwinMaker) -> None:
    class TurnsHere(Turns):
        maker = twin_maker

    run_state_machine_as_test(
        TurnsHere,
        settings=settings(
            max_examples=4,
            stateful_step_count=10,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
