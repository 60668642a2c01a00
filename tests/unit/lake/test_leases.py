"""Leases, which one process holds at a time, in files and in PostgreSQL."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from swanlake.errors import CatalogUnreachable
from swanlake.lake.lifecycle.leases import FileLeases, Leases, PostgresLeases, try_lock_file
from tests.waiting import eventually

Process = Callable[[], Leases]


@pytest.fixture(params=["files", "postgres"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    """Each call gives the leases of another process."""
    made: list[Leases] = []

    def leases() -> Leases:
        if request.param == "files":
            made.append(FileLeases(tmp_path / "claims"))
        else:
            made.append(PostgresLeases(request.getfixturevalue("postgres_database")))
        return made[-1]

    if request.param == "postgres":
        request.getfixturevalue("postgres_database")
    yield leases
    for one in made:
        one.close()


def test_lease_has_one_holder(process: Process) -> None:
    one, other = process(), process()
    assert one.acquire("queue:a")
    assert not other.acquire("queue:a")
    assert other.acquire("queue:b")


def test_holder_can_acquire_its_lease_again(process: Process) -> None:
    one, other = process(), process()
    assert one.acquire("a")
    assert one.acquire("a")
    one.release("a")
    assert other.acquire("a")


def test_released_lease_is_free(process: Process) -> None:
    one, other = process(), process()
    one.acquire("a")
    one.release("a")
    assert other.acquire("a")
    assert not one.acquire("a")


def test_leases_of_a_closed_process_are_free(process: Process) -> None:
    one, other = process(), process()
    names = [f"queue:{number}" for number in range(20)]
    assert all(one.acquire(name) for name in names)
    one.close()
    # PostgreSQL ends a backend a moment after its client disconnects.
    eventually(lambda: all(other.acquire(name) for name in names))


def test_release_by_another_process_has_no_effect(process: Process) -> None:
    one, other = process(), process()
    one.acquire("a")
    other.release("a")
    assert not other.acquire("a")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "é", "a b", "%2F", "'; --", "x" * 60])
def test_lease_name_can_be_any_text(process: Process, name: str) -> None:
    one, other = process(), process()
    assert one.acquire(name)
    assert not other.acquire(name)
    assert other.acquire(name + "!")


def test_lock_file_removed_before_the_lock_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.lock"
    flock = fcntl.flock

    def flock_after_removal(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_after_removal)
    assert try_lock_file(path) is not None
    assert path.exists()
    assert try_lock_file(path) is None


def lose_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_lost_connection_is_replaced_and_the_lease_acquired_again(postgres_database: str) -> None:
    one, other = PostgresLeases(postgres_database), PostgresLeases(postgres_database)
    one.acquire("a")
    lose_connections(postgres_database)
    assert one.acquire("a")
    assert not other.acquire("a")
    one.close()
    other.close()


def test_lease_acquired_by_another_after_connection_loss_is_lost(postgres_database: str) -> None:
    one, other = PostgresLeases(postgres_database), PostgresLeases(postgres_database)
    one.acquire("a")
    lose_connections(postgres_database)
    assert other.acquire("a")
    assert not one.acquire("a")
    one.close()
    other.close()


def test_unreachable_database_is_reported() -> None:
    leases = PostgresLeases("postgresql://127.0.0.1:1/none?connect_timeout=2")
    with pytest.raises(CatalogUnreachable, match="to acquire the lease a"):
        leases.acquire("a")
    leases.release("a")
    leases.close()
