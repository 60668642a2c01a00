"""The commit lock of a catalog: FIFO, visible in the status, and released when its holder dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow.flight as flight
import pytest

from tests.contenders import (
    BackgroundCall,
    ContendedCatalog,
    Deployment,
    Session,
    deployment_fixture,
)
from tests.queries import ENDLESS_QUERY
from tests.waiting import eventually

#: The extension runs it, under the writer lock.
LONG_UPDATE = f"UPDATE t SET i = ({ENDLESS_QUERY}) FROM (SELECT 1)"
ONE_ROW = "CREATE TABLE t AS SELECT 0::BIGINT AS i"
#: A write of each kind: one that SwanLake commits, and one that the extension commits.
WRITES = ("INSERT INTO t VALUES (1)", "UPDATE t SET i = 1 FROM (SELECT 1)")

_CLIENT = f"""
import sys
from tests.contenders import Session
Session(*sys.argv[1:])({LONG_UPDATE!r})
"""


deployment = deployment_fixture(servers=2)


def snapshots_of(catalog: ContendedCatalog) -> list[tuple[Any, ...]]:
    """The snapshots of a catalog, in their order."""
    return sorted(catalog.session()(f"CALL swanlake_snapshots('{catalog.name}')"))


def all_wait(catalog: ContendedCatalog, writes: list[BackgroundCall]) -> bool:
    """True if every write that has not ended waits for the lock on the second server."""
    return len(catalog.lock_queue(server=1)) == sum(write.is_running for write in writes)


def created_tables(catalog: ContendedCatalog) -> list[str]:
    """The tables in the order in which snapshots created them."""
    changes = " ".join(row[3] for row in snapshots_of(catalog))
    return re.findall(r'created_table:"main"."(\w+)"', changes)


# ---- order ---------------------------------------------------------------------------------------


def test_writers_commit_in_the_order_they_queued(deployment: Deployment) -> None:
    catalog = deployment.new_catalog(ONE_ROW)
    holder, observer = catalog.session(name="holder"), catalog.session()
    names = [f"w{number}" for number in range(6)]
    writers = [catalog.session(name=name) for name in names]
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
    catalog.wait_for_lock_queue("holder")
    running = []
    for number, writer in enumerate(writers):
        body = "AS SELECT 1 AS i" if number % 3 else "(i INTEGER)"
        running.append(writer.start(f"CREATE TABLE {names[number]} {body}"))
        catalog.wait_for_lock_queue("holder", *names[: number + 1])
    [queue] = [queue for queue in deployment.writers() if queue["catalog"] == catalog.name]
    waited = [writer["seconds"] for writer in (queue["holder"], *queue["waiters"])]
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] > 0
    observer.cancel("long")
    assert isinstance(held.join().error, flight.FlightCancelledError)
    for call in running:
        call.get()
    assert created_tables(catalog) == ["t", *names]
    assert catalog.lock_queue() == []
    catalog.assert_sound("t")


def test_lock_alternates_between_servers(deployment: Deployment) -> None:
    """Many writers on one server do not starve the writers of the other."""
    catalog = deployment.new_catalog(
        ONE_ROW, "CREATE TABLE a (i INTEGER)", "CREATE TABLE b (i INTEGER)"
    )
    stop = threading.Event()

    def write_on(session: Session, *statements: str) -> None:
        while not stop.is_set():
            for statement in statements:
                session(statement)

    insert, update = "INSERT INTO a VALUES (1)", "UPDATE a SET i = 2 WHERE i = 1"
    many = [catalog.session() for _ in range(4)]
    holder = catalog.session(name="holder")
    few = [catalog.session(server=1) for _ in range(2)]
    jobs = [threading.Thread(target=write_on, args=(session, insert)) for session in many[1:]]
    jobs.append(threading.Thread(target=write_on, args=(many[0], insert, update)))
    for job in jobs:
        job.start()
    heads: list[int] = []
    try:
        for number in range(4):
            held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
            eventually(lambda: catalog.lock_queue()[:1] == ["holder"])
            eventually(lambda: len(catalog.lock_queue()) == 1 + len(many))
            # Both wait before the lock is free, unless they were faster than the holder.
            writes = [session.start(f"INSERT INTO b VALUES ({number})") for session in few]
            eventually(partial(all_wait, catalog, writes))
            heads.append(max(row[0] for row in snapshots_of(catalog)))
            holder.cancel("long")
            held.join()
            for write in writes:
                write.get()
    finally:
        stop.set()
        for job in jobs:
            job.join()
    commits = [row[0] for row in snapshots_of(catalog) if row[3] == "inserted_into_table:3"]
    assert len(commits) == 2 * len(heads)
    if deployment.on_postgres:  # locks of files are granted in no strict order
        waited = [last - head for head, last in zip(heads, commits[1::2], strict=True)]
        assert max(waited) <= 40
    catalog.assert_sound("b")


# ---- release -------------------------------------------------------------------------------------


def cancel(catalog: ContendedCatalog) -> None:
    catalog.session().cancel("long")


def time_out(catalog: ContendedCatalog) -> None:
    """Does nothing: the holder's statement has a time-out of its own."""


def close_session(catalog: ContendedCatalog) -> None:
    catalog.close_session("holder")


@pytest.mark.parametrize(
    ("end", "write"), [(cancel, WRITES[0]), (time_out, WRITES[1]), (close_session, WRITES[1])]
)
def test_lock_is_released_when_the_holders_statement_ends(
    deployment: Deployment, end: Callable[[ContendedCatalog], None], write: str
) -> None:
    catalog = deployment.new_catalog(ONE_ROW)
    holder, waiter, remote = (
        catalog.session(server=server, name=name)
        for server, name in ((0, "holder"), (0, "waiter"), (1, "remote"))
    )
    limit = {"x_swanlake_query_timeout_seconds": "5"} if end is time_out else {}
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long", **limit)
    catalog.wait_for_lock_queue("holder")
    waiting = waiter.start(write)
    catalog.wait_for_lock_queue("holder", "waiter")
    remote_write = remote.start("INSERT INTO t VALUES (2)")
    catalog.wait_for_lock_queue("remote", server=1)
    end(catalog)
    assert held.join().error is not None
    waiting.get()
    remote_write.get()
    assert catalog.lock_queue(0) == catalog.lock_queue(1) == []
    catalog.assert_sound("t")


def test_lock_is_released_when_the_holders_client_is_killed(deployment: Deployment) -> None:
    catalog = deployment.new_catalog(ONE_ROW)
    waiter = catalog.session(name="waiter")
    name = f"victim_{catalog.name}"
    command = [sys.executable, "-c", _CLIENT, deployment.servers[0].url, name, catalog.name]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
        try:
            catalog.wait_for_lock_queue("victim")
            waiting = waiter.start("UPDATE t SET i = 1")
            catalog.wait_for_lock_queue("victim", "waiter")
        finally:
            client.kill()
    waiting.get()
    assert waiter("FROM t") == [(1,)]
    catalog.assert_sound("t")


def test_lock_is_released_when_the_holders_server_is_killed(deployment: Deployment) -> None:
    killed = deployment.add_server()
    number = len(deployment.servers) - 1
    catalog = deployment.new_catalog(ONE_ROW)
    holder = catalog.session(server=number, name="holder")
    local, remote = catalog.session(name="local"), catalog.session(server=1, name="remote")
    held = holder.start(LONG_UPDATE)
    catalog.wait_for_lock_queue("holder", server=number)
    waiting = [local.start(WRITES[0])]
    catalog.wait_for_lock_queue("local")
    waiting.append(remote.start(WRITES[1]))
    catalog.wait_for_lock_queue("remote", server=1)
    os.kill(killed.process.pid, signal.SIGKILL)
    assert held.join().error is not None
    for call in waiting:
        call.get()
    catalog.assert_sound("t")


def test_long_native_update_does_not_hold_the_lock(deployment: Deployment) -> None:
    catalog = deployment.new_catalog(ONE_ROW)
    long, other = catalog.session(name="long"), catalog.session(name="other")
    running = long.start(f"UPDATE t SET i = ({ENDLESS_QUERY})", x_swanlake_query_id="long")
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
def test_cancelled_waiter_leaves_the_queue(deployment: Deployment, write: str) -> None:
    catalog = deployment.new_catalog(ONE_ROW)
    holder, first, second = (catalog.session(name=name) for name in ("holder", "first", "second"))
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
    catalog.wait_for_lock_queue("holder")
    waiting = [first.start(write, x_swanlake_query_id="first")]
    catalog.wait_for_lock_queue("holder", "first")
    waiting.append(second.start("INSERT INTO t VALUES (2)"))
    catalog.wait_for_lock_queue("holder", "first", "second")
    catalog.session().cancel("first")
    assert "QUERY_CANCELLED" in str(waiting[0].join().error)
    catalog.wait_for_lock_queue("holder", "second")
    catalog.session().cancel("long")
    held.join()
    waiting[1].get()
    assert sorted(first("FROM t")) == [(0,), (2,)]
    catalog.assert_sound("t")


@pytest.mark.parametrize("write", WRITES)
def test_waiter_for_another_server_can_be_cancelled(deployment: Deployment, write: str) -> None:
    catalog = deployment.new_catalog(ONE_ROW)
    holder = catalog.session(server=1, name="holder")
    first, second = catalog.session(name="first"), catalog.session(name="second")
    held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
    catalog.wait_for_lock_queue("holder", server=1)
    waiting = [first.start(write, x_swanlake_query_id="first")]
    catalog.wait_for_lock_queue("first")
    waiting.append(second.start("INSERT INTO t VALUES (2)"))
    catalog.wait_for_lock_queue("first", "second")
    catalog.session().cancel("first")
    assert "QUERY_CANCELLED" in str(waiting[0].join().error)
    catalog.wait_for_lock_queue("second")
    catalog.session(server=1).cancel("long")
    held.join()
    waiting[1].get()
    assert sorted(first("FROM t")) == [(0,), (2,)]
    catalog.assert_sound("t")


def test_waiter_times_out(deployment: Deployment) -> None:
    """The holder is a session of the same server, then of another."""
    deployment.add_server("--commit-lock-timeout-seconds", "0.5")
    hasty = len(deployment.servers) - 1
    catalog = deployment.new_catalog(ONE_ROW)
    waiter = catalog.session(server=hasty)
    for server in (hasty, 0):
        holder = catalog.session(server=server, name=f"holder{server}")
        held = holder.start(LONG_UPDATE, x_swanlake_query_id="long")
        catalog.wait_for_lock_queue(f"holder{server}", server=server)
        for write in WRITES:
            with pytest.raises(flight.FlightUnavailableError) as timed_out:
                waiter(write)
            assert str(timed_out.value).startswith("COMMIT_LOCK_TIMEOUT: ")
        holder.cancel("long")
        held.join()
    assert waiter("FROM t") == [(0,)]
    catalog.assert_sound("t")
