"""Model-based test: SwanLake and the stock extension change one catalog in any order."""

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

from swanlake.lake.model.types import ColumnSpec
from tests.differential.catalog_pair import AttachedCatalog, PairFactory

Rows = list[tuple[int, str]]

#: The rows that a statement selects, as divisor and remainder.
PICKS = st.tuples(st.integers(2, 5), st.integers(0, 4))
COUNTS = st.integers(1, 8)


class InterleavedWriters(RuleBasedStateMachine):
    """A table, and a model of its rows at the newest and at every older snapshot."""

    factory: PairFactory

    def __init__(self) -> None:
        super().__init__()
        #: Forked catalogs, and the rows they must have.
        self.parents: list[tuple[AttachedCatalog, dict[int, Rows]]] = []
        self.rows: Rows = []
        self.seen: dict[int, Rows] = {}
        self.next = 0
        self.altered = False

    @initialize(created_by_us=st.booleans())
    def create(self, created_by_us: bool) -> None:
        name = self.factory.new_name("goose")
        if created_by_us:
            self.catalog = self.factory.lake.create_catalog(name)
            self.catalog.create_table(
                "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
            )
            self.side = self.factory.attach(name)
        else:
            self.side = self.factory.attach(name)
            self.side("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
            self.catalog = self.factory.lake.adopt_catalog(name)
        self.compare()

    # ---- SwanLake ------------------------------------------------------------------------------

    @rule(count=COUNTS)
    def we_insert(self, count: int) -> None:
        query = self.new_rows(count, "ours")
        self.catalog.append(self.side.connection, query, "main", "t")
        self.compare()

    @precondition(lambda self: len(self.seen) > 2)
    @rule(data=st.data())
    def we_fork(self, data: st.DataObject) -> None:
        """Continues in a fork at any recorded snapshot."""
        at = data.draw(st.sampled_from(sorted(self.seen)))
        name = self.factory.new_name("goose")
        self.parents.append((self.side, self.seen))
        self.catalog = self.factory.lake.fork_catalog(self.catalog.name, name, at=at)
        self.side = self.factory.attach(name)
        self.seen = {version: rows for version, rows in self.seen.items() if version <= at}
        self.rows = self.seen[at]
        self.altered = len(self.catalog.table("main", "t").columns) > 2
        self.compare()

    # ---- the stock extension -------------------------------------------------------------------

    @rule(count=COUNTS)
    def stock_inserts(self, count: int) -> None:
        self.side(f"INSERT INTO lake.t {self.new_rows(count, 'stock')}")
        self.compare()

    @rule(pick=PICKS)
    def stock_deletes(self, pick: tuple[int, int]) -> None:
        self.side(f"DELETE FROM lake.t WHERE {self.where(pick)}")
        self.remove(pick)
        self.compare()

    @rule(pick=PICKS)
    def stock_updates(self, pick: tuple[int, int]) -> None:
        self.side(f"UPDATE lake.t SET t = 'updated' WHERE {self.where(pick)}")
        picked = self.picked(pick)
        self.rows = [(i, "updated" if picked(i) else t) for i, t in self.rows]
        self.compare()

    @rule()
    def stock_merges(self) -> None:
        self.side("CALL ducklake_merge_adjacent_files('lake')")
        self.compare()

    @rule()
    def stock_rewrites(self) -> None:
        self.side("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
        self.compare()

    @rule()
    def stock_cleans_up(self) -> None:
        oldest = sorted(self.seen)[: len(self.seen) // 3]
        if oldest:
            self.side(f"CALL ducklake_expire_snapshots('lake', versions => {oldest})")
        self.side("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        self.seen = {version: rows for version, rows in self.seen.items() if version not in oldest}
        self.compare()

    @precondition(lambda self: not self.altered)
    @rule()
    def stock_alters(self) -> None:
        self.side("ALTER TABLE lake.t ADD COLUMN x INTEGER DEFAULT 7")
        self.altered = True
        self.compare()

    # ---- checks --------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compares the rows of the newest and of all recorded snapshots with the model."""
        self.rows = sorted(self.rows)
        self.seen[self.catalog.newest_snapshot()] = self.rows
        numbers = [i for i, _ in self.rows]
        counted = self.side("SELECT count(*), sum(i), min(i), max(i) FROM lake.t")
        bounds = (min(numbers, default=None), max(numbers, default=None))
        assert counted == [(len(numbers), sum(numbers) if numbers else None, *bounds)]
        self.compare_history(self.side, self.seen)
        if self.altered:
            assert self.side("SELECT count(*) FROM lake.t WHERE x IS DISTINCT FROM 7") == [(0,)]

    def compare_history(self, side: AttachedCatalog, seen: dict[int, Rows]) -> None:
        for version, rows in seen.items():
            # Not sorted by DuckDB: see MirroredTable.compare_history.
            then = side(f"SELECT i, t FROM lake.t AT (VERSION => {version})")
            assert sorted(then) == rows, (side.name, version)

    def teardown(self) -> None:
        for side, seen in self.parents:
            self.compare_history(side, seen)
        assert self.catalog.check() == []
        self.factory.detach_all()

    def new_rows(self, count: int, text: str) -> str:
        """A query for new rows, which are added to the model."""
        first, self.next = self.next, self.next + count
        self.rows = self.rows + [(i, text) for i in range(first, self.next)]
        more = ", 7" if self.altered else ""
        return f"SELECT i, '{text}'{more} FROM range({first}, {self.next}) r(i)"

    def where(self, pick: tuple[int, int]) -> str:
        return f"i % {pick[0]} = {pick[1]}"

    def picked(self, pick: tuple[int, int]) -> Callable[[int], bool]:
        return lambda i: i % pick[0] == pick[1]

    def remove(self, pick: tuple[int, int]) -> None:
        picked = self.picked(pick)
        self.rows = [row for row in self.rows if not picked(row[0])]


def test_interleaved_writers_match_the_model(pair_factory: PairFactory) -> None:
    class Machine(InterleavedWriters):
        factory = pair_factory

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=4,
            stateful_step_count=10,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
