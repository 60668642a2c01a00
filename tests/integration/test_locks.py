"""The lock of a catalog: first come, first served, seen by all, and never left with the dead."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pyarrow.flight as flight
import pytest

from tests.flight import eventually
from tests.rivals import ENDLESS, House, Rivalry, Session, open_house

LONG_UPDATE = f"UPDATE t SET i = ({ENDLESS})"
ONE_ROW = "CREATE TABLE t AS SELECT 0::BIGINT AS i"
#: A write of each kind: one that we commit, and one that the extension commits.
WRITES = ("INSERT INTO t VALUES (1)", "UPDATE t SET i = 1 FROM (SELECT 1)")

_CLIENT = f"""
import sys
from tests.rivals import Session
Session(*sys.argv[1:])({LONG_UPDATE!r})
"""


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """Two servers on one lake."""
    folder = tmp_path_factory.mktemp("locks")
    with open_house(request.param, lambda: request.getfixturevalue("postgres"), folder) as house:
        house.add_server()
        house.add_server()
        yield house


def made_tables(catalog: Rivalry) -> list[str]:
    """The tables in the order of the snapshots in which they were made."""
    snapshots = catalog.session()(f"CALL swanlake_snapshots('{catalog.name}')")
    return re.findall(r'created_table:"main"."(\w+)"', " ".join(row[3] for row in snapshots))


# ---- the order -----------------------------------------------------------------------------------


def test_writers_commit_in_the_order_in_which_they_came(house: House) -> None:
    catalog = house.new_catalog(ONE_ROW)
    holder, observer = catalog.session(name="holder"), catalog.session()
    names = [f"w{number}" for number in range(6)]
    writers = [catalog.session(name=name) for name in names]
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
    catalog.wait_for_line("holder")
    running = []
    for number, writer in enumerate(writers):
        body = "AS SELECT 1 AS i" if number % 3 else "(i INTEGER)"
        running.append(writer.start(f"CREATE TABLE {names[number]} {body}"))
        catalog.wait_for_line("holder", *names[: number + 1])
    [gate] = [gate for gate in house.writers() if gate["catalog"] == catalog.name]
    waited = [writer["seconds"] for writer in (gate["holder"], *gate["waiters"])]
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] > 0
    observer.cancel("long")
    assert isinstance(held.join().error, flight.FlightCancelledError)
    for one in running:
        one.done()
    assert made_tables(catalog) == ["t", *names]
    assert catalog.line() == []
    catalog.assert_sound("t")


def test_two_servers_take_turns(house: House) -> None:
    """However many writers one server has, those of the other get through between them."""
    catalog = house.new_catalog("CREATE TABLE a (i INTEGER)", "CREATE TABLE b (i INTEGER)")
    stop = threading.Event()

    def write_on(session: Session, *statements: str) -> None:
        while not stop.is_set():
            for statement in statements:
                session(statement)

    insert, update = "INSERT INTO a VALUES (1)", "UPDATE a SET i = 2 WHERE i = 1"
    many = [catalog.session() for _ in range(4)]
    jobs = [threading.Thread(target=write_on, args=(one, insert)) for one in many[1:]]
    jobs.append(threading.Thread(target=write_on, args=(many[0], insert, update)))
    for job in jobs:
        job.start()
    few = [catalog.session(server=1) for _ in range(2)]
    for number in range(6):
        started = [one.start(f"INSERT INTO b VALUES ({number})") for one in few]
        for one in started:
            one.done()
    stop.set()
    for job in jobs:
        job.join()
    snapshots = few[0](f"CALL swanlake_snapshots('{catalog.name}')")
    places = [row[0] for row in snapshots if row[3] == "inserted_into_table:2"]
    assert len(places) == 12
    between = [later - earlier - 1 for earlier, later in pairwise(places)]
    assert sum(between) > 0
    assert max(between) <= 40
    catalog.assert_sound("b")


# ---- its end -------------------------------------------------------------------------------------


def cancel(catalog: Rivalry) -> None:
    catalog.session().cancel("long")


def time_out(catalog: Rivalry) -> None:
    """Its statement has but some seconds anyway."""


def close_session(catalog: Rivalry) -> None:
    catalog.close_session("holder")


@pytest.mark.parametrize(
    ("end", "write"), [(cancel, WRITES[0]), (time_out, WRITES[1]), (close_session, WRITES[1])]
)
def test_the_lock_goes_back_with_the_statement_that_held_it(
    house: House, end: Callable[[Rivalry], None], write: str
) -> None:
    catalog = house.new_catalog(ONE_ROW)
    holder, waiter, elsewhere = (
        catalog.session(server=server, name=name)
        for server, name in ((0, "holder"), (0, "waiter"), (1, "elsewhere"))
    )
    limit = {"x_swanlake_query_timeout_seconds": "5"} if end is time_out else {}
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long", **limit)
    catalog.wait_for_line("holder")
    waiting = waiter.start(write)
    catalog.wait_for_line("holder", "waiter")
    far = elsewhere.start("INSERT INTO t VALUES (2)")
    catalog.wait_for_line("elsewhere", server=1)
    end(catalog)
    assert held.join().error is not None
    waiting.done()
    far.done()
    assert catalog.line(0) == catalog.line(1) == []
    catalog.assert_sound("t")


def test_the_lock_goes_back_when_the_client_that_held_it_is_killed(house: House) -> None:
    catalog = house.new_catalog(ONE_ROW)
    waiter = catalog.session(name="waiter")
    name = f"victim_{catalog.name}"
    command = [sys.executable, "-c", _CLIENT, house.servers[0].url, name, catalog.name]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
        try:
            catalog.wait_for_line("victim")
            waiting = waiter.start("UPDATE t SET i = 1")
            catalog.wait_for_line("victim", "waiter")
        finally:
            client.kill()
    waiting.done()
    assert waiter("FROM t") == [(1,)]
    catalog.assert_sound("t")


def test_the_lock_goes_back_when_the_server_that_held_it_is_killed(house: House) -> None:
    doomed = house.add_server()
    number = len(house.servers) - 1
    catalog = house.new_catalog(ONE_ROW)
    holder = catalog.session(server=number, name="holder")
    here, elsewhere = catalog.session(name="here"), catalog.session(server=1, name="elsewhere")
    held = holder.start(LONG_UPDATE)
    catalog.wait_for_line("holder", server=number)
    waiting = [here.start(WRITES[0])]
    catalog.wait_for_line("here")
    waiting.append(elsewhere.start(WRITES[1]))
    catalog.wait_for_line("elsewhere", server=1)
    os.kill(doomed.process.pid, signal.SIGKILL)
    assert held.join().error is not None
    for one in waiting:
        one.done()
    catalog.assert_sound("t")


def test_a_long_update_of_ours_holds_nobody_up(house: House) -> None:
    catalog = house.new_catalog(ONE_ROW)
    long, other = catalog.session(name="long"), catalog.session(name="other")
    endless = "SELECT max(a.range + b.range) FROM range(1_000_000_000) a, range(1_000_000_000) b"
    running = long.start(f"UPDATE t SET i = ({endless})", x_swanlake_query_id="long")
    eventually(lambda: other.flight.status()["statements_running"])
    other("INSERT INTO t VALUES (2)")
    other("UPDATE t SET i = 3 WHERE i = 2")
    assert other.flight.status()["writers"] == []
    other.cancel("long")
    assert "QUERY_CANCELLED" in str(running.join().error)
    assert sorted(other("FROM t")) == [(0,), (3,)]
    catalog.assert_sound("t")


# ---- waiters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITES)
def test_a_waiter_can_be_cancelled_and_those_behind_it_move_up(house: House, write: str) -> None:
    catalog = house.new_catalog(ONE_ROW)
    holder, first, second = (catalog.session(name=name) for name in ("holder", "one", "two"))
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
    catalog.wait_for_line("holder")
    waiting = [first.start(write, x_swanlake_query_id="first")]
    catalog.wait_for_line("holder", "one")
    waiting.append(second.start("INSERT INTO t VALUES (2)"))
    catalog.wait_for_line("holder", "one", "two")
    catalog.session().cancel("first")
    assert "QUERY_CANCELLED" in str(waiting[0].join().error)
    catalog.wait_for_line("holder", "two")
    catalog.session().cancel("long")
    held.join()
    waiting[1].done()
    assert sorted(first("FROM t")) == [(0,), (2,)]
    catalog.assert_sound("t")


@pytest.mark.parametrize("write", WRITES)
def test_who_waits_for_another_server_can_be_cancelled(house: House, write: str) -> None:
    catalog = house.new_catalog(ONE_ROW)
    holder = catalog.session(server=1, name="holder")
    first, second = catalog.session(name="one"), catalog.session(name="two")
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
    catalog.wait_for_line("holder", server=1)
    waiting = [first.start(write, x_swanlake_query_id="first")]
    catalog.wait_for_line("one")
    waiting.append(second.start("INSERT INTO t VALUES (2)"))
    catalog.wait_for_line("one", "two")
    catalog.session().cancel("first")
    assert "QUERY_CANCELLED" in str(waiting[0].join().error)
    catalog.wait_for_line("two")
    catalog.session(server=1).cancel("long")
    held.join()
    waiting[1].done()
    assert sorted(first("FROM t")) == [(0,), (2,)]
    catalog.assert_sound("t")


def test_a_waiter_has_a_deadline(house: House) -> None:
    """Whether the one that has the catalog is of its own server or of another."""
    house.add_server("--commit-lock-timeout-seconds", "0.5")
    hasty = len(house.servers) - 1
    catalog = house.new_catalog(ONE_ROW)
    waiter = catalog.session(server=hasty)
    for server in (hasty, 0):
        holder = catalog.session(server=server, name=f"holder{server}")
        held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
        catalog.wait_for_line(f"holder{server}", server=server)
        for write in WRITES:
            with pytest.raises(flight.FlightUnavailableError) as given_up:
                waiter(write)
            assert str(given_up.value).startswith("COMMIT_LOCK_TIMEOUT: ")
        holder.cancel("long")
        held.join()
    assert waiter("FROM t") == [(0,)]
    catalog.assert_sound("t")
