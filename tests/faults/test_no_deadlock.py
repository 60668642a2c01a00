"""All kinds of writes at once, on two servers and in stock DuckDB: no deadlock, no lost row."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import duckdb
import pytest

from tests.contenders import CALL_ERRORS, BackgroundCall, Deployment, Session, deployment_fixture
from tests.stock_duckdb import stock_duckdb
from tests.waiting import eventually

#: Errors that a statement may get under contention.
EXPECTED_ERRORS = {
    "COMMIT_CONFLICT",
    "COMMIT_FAILED",
    "COMMIT_LOCK_TIMEOUT",
    "MAINTENANCE_RUNNING",
}
#: Errors of stock DuckDB when it loses a race for the catalog.
STOCK_CONFLICTS = ("Transaction conflict", "Exceeded the maximum retry count", "database is locked")


#: Generous: how long jobs may take beyond their time on a busy machine.
PATIENCE_SECONDS = 120.0


class MixedLoad:
    """Jobs that run for some time and until each goal was counted, and the counts."""

    def __init__(self, deployment: Deployment, seconds: float, goals: Sequence[str]) -> None:
        self.deployment = deployment
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self.goals = goals
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def rounds(self) -> Iterator[int]:
        for number in count():
            now = time.monotonic()
            if now > self._end and (not self.missing() or now > self._end + PATIENCE_SECONDS):
                return
            yield number

    def missing(self) -> list[str]:
        """The goals that were not counted yet."""
        return [goal for goal in self.goals if not self.done[goal]]

    def count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def attempt(self, session: Session, what: str, *statements: str) -> bool:
        """Runs statements until one fails; counts them if none does."""
        try:
            for statement in statements:
                session(statement)
        except CALL_ERRORS as error:
            self.errors.append(str(error))
            if statements[0] == "BEGIN" and "COMMIT_CONFLICT" not in str(error):
                session("ROLLBACK")
            return False
        self.count(what)
        return True

    # ---- jobs ------------------------------------------------------------------------------------

    def insert(self, session: Session, own: str, other: str) -> None:
        for number in self.rounds():
            self.attempt(session, f"rows {own}", f"INSERT INTO {own}.log VALUES ({number})")

    def update(self, session: Session, own: str, other: str) -> None:
        for _ in self.rounds():
            for catalog in (own, other):
                update = f"UPDATE {catalog}.counter SET i = i + 1"
                self.attempt(session, f"counted {catalog}", update)

    def transact(self, session: Session, own: str, other: str) -> None:
        """Reads one catalog and writes to the other in one transaction."""
        for number in self.rounds():
            self.attempt(
                session,
                f"counted {own}",
                "BEGIN",
                f"SELECT count(*) FROM {other}.log",
                f"UPDATE {own}.counter SET i = i + 1",
                f"SELECT i FROM {other}.counter",
                "COMMIT",
            )
            if number % 5 == 0:
                session("BEGIN")
                session(f"DELETE FROM {own}.counter")
                session("ROLLBACK")

    def define(self, session: Session, own: str, other: str) -> None:
        prefix = f"t_{session.name}"
        for number in self.rounds():
            table = f"{own}.{prefix}_{number}"
            if self.attempt(session, "made", f"CREATE TABLE {table} (i INTEGER)"):
                self.attempt(session, "altered", f"ALTER TABLE {table} ADD COLUMN j INTEGER")
                self.attempt(session, "dropped", f"DROP TABLE {table}")

    def fork(self, session: Session, own: str, other: str) -> None:
        for number in self.rounds():
            name = f"f_{session.name}_{number}"
            if self.attempt(session, "forked", f"CALL swanlake_fork_catalog('{own}', '{name}')"):
                self.attempt(session, "in fork", f"INSERT INTO {name}.log VALUES (0)")
                self.attempt(session, "unforked", f"CALL swanlake_drop_catalog('{name}')")

    def maintain(self, session: Session, own: str, other: str) -> None:
        for number in self.rounds():
            catalog = (own, other)[number % 2]
            self.attempt(
                session, "compacted", f"CALL swanlake_compact('log', catalog => '{catalog}')"
            )
            self.attempt(
                session,
                "expired",
                f"CALL swanlake_expire(keep_last => 100, catalog => '{catalog}')",
            )

    def run_stock(self, duck: duckdb.DuckDBPyConnection, own: str) -> None:
        """Holds transactions open, and rolls back every third."""
        for number in self.rounds():
            insert = f"INSERT INTO {own}.log VALUES ({number})"
            try:
                duck.execute("BEGIN").execute(insert).execute("FROM range(100000)").fetchall()
                duck.execute("COMMIT" if number % 3 else "ROLLBACK")
                if number % 3:
                    self.count(f"rows {own}")
            except duckdb.Error as error:
                if not any(words in str(error) for words in STOCK_CONFLICTS):
                    raise


deployment = deployment_fixture(
    servers=2, scope="function", SWANLAKE_COMMIT_LOCK_TIMEOUT_SECONDS="30"
)


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_mixed_load_neither_deadlocks_nor_loses_rows(
    deployment: Deployment, seconds: float
) -> None:
    names = [
        deployment.new_catalog(
            "CREATE TABLE log (i INTEGER)", "CREATE TABLE counter AS SELECT 0::BIGINT AS i"
        ).name
        for _ in range(2)
    ]
    with stock_duckdb() as duck:
        for name in names:
            duck.execute(deployment.attach_statement(name))
        goals = [*(f"{kind} {name}" for kind in ("rows", "counted") for name in names), "made"]
        load = MixedLoad(deployment, seconds, goals)
        running = [BackgroundCall(lambda: load.run_stock(duck, names[0]))]
        jobs: list[Callable[[Session, str, str], None]] = [
            load.insert,
            load.update,
            load.transact,
            load.define,
            load.fork,
            load.maintain,
        ]
        for server, (own, other) in enumerate((names, names[::-1])):
            for job in jobs:
                session = deployment.session(own, server)
                running.append(BackgroundCall(partial(job, session, own, other)))
        for call in running:
            call.join(seconds + 2 * PATIENCE_SECONDS).get()
    assert [error for error in load.errors if error.split(":")[0] not in EXPECTED_ERRORS] == []
    assert load.missing() == []
    for server in range(2):
        for name in names:
            after = deployment.session(name, server)
            assert after("SELECT count(*) FROM log") == [(load.done[f"rows {name}"],)]
            assert len(after("FROM log")) == load.done[f"rows {name}"]
            assert after("FROM counter") == [(load.done[f"counted {name}"],)]
    for name in names:
        after = deployment.session(name)
        for statement in ("UPDATE counter SET i = -1", "CREATE TABLE after_all (i INTEGER)"):
            after(statement, x_swanlake_query_timeout_seconds="60")
        history = deployment.history(name)
        assert (history.shared_ids, history.findings) == ([], [])
        ids = [snapshot[0] for snapshot in history.snapshots]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert deployment.writers(0) == deployment.writers(1) == []
    if deployment.on_postgres:
        eventually(lambda: deployment.advisory_locks() == 0)
