"""Names that one process holds at a time, in files and in PostgreSQL."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from swanlake.errors import CatalogUnreachable
from swanlake.lake.claims import Claims, FileClaims, PostgresClaims, lock_file

Process = Callable[[], Claims]


@pytest.fixture(params=["files", "postgres"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    """Makes the claims of one process after the other."""
    made: list[Claims] = []

    def claims() -> Claims:
        if request.param == "files":
            made.append(FileClaims(tmp_path / "claims"))
        else:
            made.append(PostgresClaims(request.getfixturevalue("postgres_database")))
        return made[-1]

    if request.param == "postgres":
        request.getfixturevalue("postgres_database")
    yield claims
    for one in made:
        one.close()


def test_a_name_has_one_holder(process: Process) -> None:
    one, other = process(), process()
    assert one.take("queue:a")
    assert not other.take("queue:a")
    assert other.take("queue:b")


def test_a_name_that_is_held_can_be_taken_again_by_its_holder(process: Process) -> None:
    one, other = process(), process()
    assert one.take("a")
    assert one.take("a")
    one.give("a")
    assert other.take("a")


def test_a_name_is_free_when_it_is_given_back(process: Process) -> None:
    one, other = process(), process()
    one.take("a")
    one.give("a")
    assert other.take("a")
    assert not one.take("a")


def test_all_names_are_free_when_a_process_is_gone(process: Process) -> None:
    one, other = process(), process()
    names = [f"queue:{number}" for number in range(20)]
    assert all(one.take(name) for name in names)
    one.close()
    assert all(other.take(name) for name in names)


def test_a_name_that_is_not_held_can_be_given_back(process: Process) -> None:
    one, other = process(), process()
    one.take("a")
    other.give("a")
    assert not other.take("a")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "é", "a b", "%2F", "'; --", "x" * 60])
def test_any_text_is_a_name(process: Process, name: str) -> None:
    one, other = process(), process()
    assert one.take(name)
    assert not other.take(name)
    assert other.take(name + "!")


def test_a_file_that_is_removed_while_another_wants_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.lock"
    flock = fcntl.flock

    def flock_after_removal(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_after_removal)
    assert lock_file(path) is not None
    assert path.exists()
    assert lock_file(path) is None


def lose_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_lost_connection_is_replaced_and_the_name_taken_again(postgres_database: str) -> None:
    one, other = PostgresClaims(postgres_database), PostgresClaims(postgres_database)
    one.take("a")
    lose_connections(postgres_database)
    assert one.take("a")
    assert not other.take("a")
    one.close()
    other.close()


def test_a_name_that_another_took_meanwhile_is_lost(postgres_database: str) -> None:
    one, other = PostgresClaims(postgres_database), PostgresClaims(postgres_database)
    one.take("a")
    lose_connections(postgres_database)
    assert other.take("a")
    assert not one.take("a")
    one.close()
    other.close()


def test_a_database_that_does_not_answer_is_said_to_be_unreachable() -> None:
    claims = PostgresClaims("postgresql://127.0.0.1:1/none?connect_timeout=2")
    with pytest.raises(CatalogUnreachable, match="to claim a"):
        claims.take("a")
    claims.give("a")
    claims.close()
