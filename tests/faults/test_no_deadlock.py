"""Everything at once, on two servers and beside stock DuckDB: it all ends, and adds up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import duckdb
import pytest

from tests.ducks import stock_duckdb
from tests.flight import eventually
from tests.rivals import CALL_ERRORS, House, Running, Session, open_house

#: What may become of a statement among so many others; each says what to do next.
KNOWN = {
    "COMMIT_CONFLICT",
    "COMMIT_FAILED",
    "COMMIT_LOCK_TIMEOUT",
    "MAINTENANCE_RUNNING",
}
#: What stock DuckDB says when others came first, and SQLite when they are about to.
STOCK_LOSSES = ("Transaction conflict", "Exceeded the maximum retry count", "database is locked")


class Fray:
    """Those who do something again and again until the time is over, and what came of it."""

    def __init__(self, house: House, seconds: float) -> None:
        self.house = house
        self.done: Counter[str] = Counter()
        self.refused: list[str] = []
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def rounds(self) -> Iterator[int]:
        for number in count():
            if time.monotonic() > self._end:
                return
            yield number

    def count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def attempt(self, session: Session, what: str, *statements: str) -> bool:
        """Runs statements; if one is refused, the rest of them is not."""
        try:
            for statement in statements:
                session(statement)
        except CALL_ERRORS as error:
            self.refused.append(str(error))
            if statements[0] == "BEGIN" and "COMMIT_CONFLICT" not in str(error):
                session("ROLLBACK")
            return False
        self.count(what)
        return True

    # ---- who is in it ----------------------------------------------------------------------------

    def insert(self, session: Session, here: str, there: str) -> None:
        for number in self.rounds():
            self.attempt(session, f"rows {here}", f"INSERT INTO {here}.log VALUES ({number})")

    def update(self, session: Session, here: str, there: str) -> None:
        for _ in self.rounds():
            for catalog in (here, there):
                update = f"UPDATE {catalog}.counter SET i = i + 1"
                self.attempt(session, f"counted {catalog}", update)

    def transact(self, session: Session, here: str, there: str) -> None:
        """Writes in one catalog what it read in the other."""
        for number in self.rounds():
            self.attempt(
                session,
                f"counted {here}",
                "BEGIN",
                f"SELECT count(*) FROM {there}.log",
                f"UPDATE {here}.counter SET i = i + 1",
                f"SELECT i FROM {there}.counter",
                "COMMIT",
            )
            if number % 5 == 0:
                session("BEGIN")
                session(f"DELETE FROM {here}.counter")
                session("ROLLBACK")

    def define(self, session: Session, here: str, there: str) -> None:
        own = f"t_{session.name}"
        for number in self.rounds():
            table = f"{here}.{own}_{number}"
            if self.attempt(session, "made", f"CREATE TABLE {table} (i INTEGER)"):
                self.attempt(session, "altered", f"ALTER TABLE {table} ADD COLUMN j INTEGER")
                self.attempt(session, "dropped", f"DROP TABLE {table}")

    def fork(self, session: Session, here: str, there: str) -> None:
        for number in self.rounds():
            name = f"f_{session.name}_{number}"
            if self.attempt(session, "forked", f"CALL swanlake_fork_catalog('{here}', '{name}')"):
                self.attempt(session, "in fork", f"INSERT INTO {name}.log VALUES (0)")
                self.attempt(session, "unforked", f"CALL swanlake_drop_catalog('{name}')")

    def maintain(self, session: Session, here: str, there: str) -> None:
        for number in self.rounds():
            catalog = (here, there)[number % 2]
            self.attempt(
                session, "compacted", f"CALL swanlake_compact('log', catalog => '{catalog}')"
            )
            self.attempt(
                session,
                "expired",
                f"CALL swanlake_expire(keep_last => 100, catalog => '{catalog}')",
            )

    def be_stock(self, duck: duckdb.DuckDBPyConnection, here: str) -> None:
        """Holds transactions open, and ends each third without a commit."""
        for number in self.rounds():
            insert = f"INSERT INTO {here}.log VALUES ({number})"
            try:
                duck.execute("BEGIN").execute(insert).execute("FROM range(100000)").fetchall()
                duck.execute("COMMIT" if number % 3 else "ROLLBACK")
                if number % 3:
                    self.count(f"rows {here}")
            except duckdb.Error as error:
                if not any(words in str(error) for words in STOCK_LOSSES):
                    raise


@pytest.fixture(params=["postgres", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with open_house(request.param, lambda: request.getfixturevalue("postgres"), tmp_path) as house:
        house.add_server(SWANLAKE_COMMIT_LOCK_TIMEOUT_SECONDS="30")
        house.add_server(SWANLAKE_COMMIT_LOCK_TIMEOUT_SECONDS="30")
        yield house


@pytest.mark.parametrize(
    "seconds", [8, pytest.param(120, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_nobody_waits_for_ever_and_everything_adds_up(house: House, seconds: float) -> None:
    names = [
        house.new_catalog(
            "CREATE TABLE log (i INTEGER)", "CREATE TABLE counter AS SELECT 0::BIGINT AS i"
        ).name
        for _ in range(2)
    ]
    with stock_duckdb() as duck:
        for name in names:
            duck.execute(house.attach_statement(name))
        fray = Fray(house, seconds)
        running = [Running(lambda: fray.be_stock(duck, names[0]))]
        jobs: list[Callable[[Session, str, str], None]] = [
            fray.insert,
            fray.update,
            fray.transact,
            fray.define,
            fray.fork,
            fray.maintain,
        ]
        for server, (here, there) in enumerate((names, names[::-1])):
            for job in jobs:
                session = house.session(here, server)
                running.append(Running(lambda job=job, s=session, h=here, t=there: job(s, h, t)))  # type: ignore[misc]
        for one in running:
            one.join(seconds + 60).done()
    assert [one for one in fray.refused if one.split(":")[0] not in KNOWN] == []
    for what in (*(f"{kind} {name}" for kind in ("rows", "counted") for name in names), "made"):
        assert fray.done[what] > 0, what
    for server in range(2):
        for name in names:
            after = house.session(name, server)
            assert after("SELECT count(*) FROM log") == [(fray.done[f"rows {name}"],)]
            assert len(after("FROM log")) == fray.done[f"rows {name}"]
            assert after("FROM counter") == [(fray.done[f"counted {name}"],)]
    for name in names:
        after = house.session(name)
        for statement in ("UPDATE counter SET i = -1", "CREATE TABLE after_all (i INTEGER)"):
            after(statement, x_swanlake_query_timeout_seconds="10")
        past = house.history(name)
        assert (past.shared_ids, past.findings) == ([], [])
        ids = [snapshot[0] for snapshot in past.snapshots]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert house.writers(0) == house.writers(1) == []
    if house.on_postgres:
        eventually(lambda: house.advisory_locks() == 0)
