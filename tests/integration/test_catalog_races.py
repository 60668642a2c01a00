"""Catalogs, schemas and forks that sessions of two servers make at once, while others write."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tests.rivals import House, Rivalry, Running, Session, open_house

SESSIONS = 6


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """Two servers on one lake."""
    folder = tmp_path_factory.mktemp("catalogs")
    with open_house(request.param, lambda: request.getfixturevalue("postgres"), folder) as house:
        house.add_server()
        house.add_server()
        yield house


@pytest.fixture
def catalog(house: House) -> Rivalry:
    return house.new_catalog("CREATE TABLE t AS SELECT 0 AS i")


@pytest.fixture
def written(catalog: Rivalry) -> Iterator[list[int]]:
    """The numbers that somebody inserts into the table as long as the test runs."""
    done, stop = [0], threading.Event()
    session = catalog.session(server=1)

    def write() -> None:
        while not stop.is_set():
            session(f"INSERT INTO t VALUES ({len(done)})")
            done.append(len(done))

    writer = threading.Thread(target=write)
    writer.start()
    yield done
    stop.set()
    writer.join()
    assert sorted(i for (i,) in session("FROM t")) == done
    assert len(done) > 1
    catalog.assert_sound()


def all_at_once(sessions: Sequence[Session], statements: Sequence[str]) -> list[str]:
    """What those of the statements failed with that did."""
    ready = threading.Barrier(len(sessions))

    def run(session: Session, statement: str) -> None:
        ready.wait(30)
        session(statement)

    running = [
        Running(partial(run, session, statement))
        for session, statement in zip(sessions, statements, strict=True)
    ]
    return [str(one.error) for one in running if one.join().error is not None]


def sessions_on(catalog: Rivalry) -> list[Session]:
    return [catalog.session(server=number % 2) for number in range(SESSIONS)]


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("CALL swanlake_create_catalog('{name}')", "ALREADY_EXISTS: There is a catalog {name}"),
        (
            "CALL swanlake_fork_catalog('{catalog}', '{name}')",
            "ALREADY_EXISTS: There is a catalog {name}",
        ),
        ("CALL swanlake_create_schema('{catalog}', '{name}')", "ALREADY_EXISTS: "),
        ("CREATE SCHEMA {name}", 'CATALOG_ERROR: Catalog Error: Schema with name "{name}" already'),
        ("CREATE TABLE {name} AS SELECT 1 AS i", 'Table with name "{name}" already exists'),
        ("CREATE TABLE {name} (i INTEGER)", 'Table with name "{name}" already exists'),
    ],
)
def test_of_many_who_want_one_name_one_gets_it(
    catalog: Rivalry, written: list[int], statement: str, refusal: str
) -> None:
    name = f"n_{catalog.name}"
    given = {"name": name, "catalog": catalog.name}
    refused = all_at_once(sessions_on(catalog), [statement.format(**given)] * SESSIONS)
    assert len(refused) == SESSIONS - 1
    assert [one for one in refused if refusal.format(**given) not in one] == []


def test_those_who_want_different_names_all_get_them(catalog: Rivalry, written: list[int]) -> None:
    for statement in (
        "CALL swanlake_create_catalog('c{n}_{catalog}')",
        "CALL swanlake_fork_catalog('{catalog}', 'f{n}_{catalog}')",
        "CREATE SCHEMA s{n}",
        "CREATE TABLE t{n} (i INTEGER)",
    ):
        statements = [statement.format(n=n, catalog=catalog.name) for n in range(SESSIONS)]
        assert all_at_once(sessions_on(catalog), statements) == []
    session = catalog.session()
    places = [row[3] for row in session("CALL swanlake_catalogs()")]
    assert len(places) == len(set(places))
    ids = session("SELECT table_id FROM ducklake_table_info(current_catalog())")
    assert len(ids) == len(set(ids)) == SESSIONS + 1
    for n in range(SESSIONS):
        fork = f"f{n}_{catalog.name}"
        [(at,)] = session(f"SELECT max(snapshot_id) FROM ducklake_snapshots('{fork}')")
        past = session(f"SELECT count(*) FROM t AT (VERSION => {at})")
        assert session(f"SELECT count(*) FROM {fork}.main.t") == past
