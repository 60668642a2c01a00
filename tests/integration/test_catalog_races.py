"""Concurrent creation of catalogs, schemas, tables and forks on two servers, during writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tests.contenders import (
    BackgroundCall,
    ContendedCatalog,
    Deployment,
    Session,
    deployment_fixture,
)

SESSIONS = 6


deployment = deployment_fixture(servers=2)


@pytest.fixture
def catalog(deployment: Deployment) -> ContendedCatalog:
    return deployment.new_catalog("CREATE TABLE t AS SELECT 0 AS i")


@pytest.fixture
def written(catalog: ContendedCatalog) -> Iterator[list[int]]:
    """The numbers that a background session inserts into the table while the test runs."""
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


def errors_of_concurrent_runs(sessions: Sequence[Session], statements: Sequence[str]) -> list[str]:
    """Runs a statement per session at the same moment; the errors of those that failed."""
    ready = threading.Barrier(len(sessions))

    def run(session: Session, statement: str) -> None:
        ready.wait(120)
        session(statement)

    calls = [
        BackgroundCall(partial(run, session, statement))
        for session, statement in zip(sessions, statements, strict=True)
    ]
    return [str(call.error) for call in calls if call.join().error is not None]


def sessions_on_both_servers(catalog: ContendedCatalog) -> list[Session]:
    return [catalog.session(server=number % 2) for number in range(SESSIONS)]


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("CALL swanlake_create_catalog('{name}')", "ALREADY_EXISTS: The catalog {name}"),
        (
            "CALL swanlake_fork_catalog('{catalog}', '{name}')",
            "ALREADY_EXISTS: The catalog {name}",
        ),
        ("CALL swanlake_create_schema('{catalog}', '{name}')", "ALREADY_EXISTS: "),
        ("CREATE SCHEMA {name}", 'CATALOG_ERROR: Catalog Error: Schema with name "{name}" already'),
        ("CREATE TABLE {name} AS SELECT 1 AS i", 'Table with name "{name}" already exists'),
        ("CREATE TABLE {name} (i INTEGER)", 'Table with name "{name}" already exists'),
    ],
)
def test_concurrent_creation_of_one_name_succeeds_once(
    catalog: ContendedCatalog, written: list[int], statement: str, refusal: str
) -> None:
    name = f"n_{catalog.name}"
    names = {"name": name, "catalog": catalog.name}
    errors = errors_of_concurrent_runs(
        sessions_on_both_servers(catalog), [statement.format(**names)] * SESSIONS
    )
    assert len(errors) == SESSIONS - 1
    assert [error for error in errors if refusal.format(**names) not in error] == []


def test_concurrent_creation_of_different_names_all_succeeds(
    catalog: ContendedCatalog, written: list[int]
) -> None:
    for statement in (
        "CALL swanlake_create_catalog('c{n}_{catalog}')",
        "CALL swanlake_fork_catalog('{catalog}', 'f{n}_{catalog}')",
        "CREATE SCHEMA s{n}",
        "CREATE TABLE t{n} (i INTEGER)",
    ):
        statements = [statement.format(n=n, catalog=catalog.name) for n in range(SESSIONS)]
        assert errors_of_concurrent_runs(sessions_on_both_servers(catalog), statements) == []
    session = catalog.session()
    data_paths = [row[3] for row in session("CALL swanlake_catalogs()")]
    assert len(data_paths) == len(set(data_paths))
    ids = session("SELECT table_id FROM ducklake_table_info(current_catalog())")
    assert len(ids) == len(set(ids)) == SESSIONS + 1
    for n in range(SESSIONS):
        fork = f"f{n}_{catalog.name}"
        [(at,)] = session(f"SELECT max(snapshot_id) FROM ducklake_snapshots('{fork}')")
        past = session(f"SELECT count(*) FROM t AT (VERSION => {at})")
        assert session(f"SELECT count(*) FROM {fork}.main.t") == past
