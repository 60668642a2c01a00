"""Interleavings that spoil catalogs whose writers take no turns, by sessions of a server.

Without a lock that comes before the ids, or with the stock extension alone, each of them ends with
another past, rows that come back or count twice, or a catalog that nobody can read any more.

A transaction on SQLite sees one state of the file to its end, so there it conflicts with every
commit since it began; on PostgreSQL only with those that matter to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.rivals import House, Rivalry, Session, open_house

FORTY = "CREATE TABLE t AS SELECT range AS i FROM range(40)"


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("races")
    with open_house(request.param, lambda: request.getfixturevalue("postgres"), folder) as house:
        house.add_server()
        yield house


@pytest.fixture
def postgres_house(house: House) -> House:
    """Only a trigger in PostgreSQL can count what is undone."""
    if not house.on_postgres:
        pytest.skip("needs PostgreSQL")
    return house


def numbers(session: Session, table: str = "t") -> list[int]:
    """What is in a table; selected and counted rows must be the same."""
    found = sorted(i for (i,) in session(f"SELECT i FROM {table}"))
    assert session(f"SELECT count(*) FROM {table}") == [(len(found),)]
    return found


# ---- ids in the order of commits -----------------------------------------------------------------


def test_a_transaction_that_began_first_and_commits_last_changes_no_past(house: House) -> None:
    catalog = house.new_catalog(FORTY)
    slow, quick, reader = catalog.sessions(3)
    slow("BEGIN; INSERT INTO t VALUES (100)")
    quick("INSERT INTO t VALUES (200)")
    [(newest,)] = reader("SELECT max(snapshot_id) FROM ducklake_snapshots(current_catalog())")
    catalog.assert_sound("t")
    conflict = slow.commit()
    assert (conflict is None) == house.on_postgres
    catalog.assert_sound("t")
    assert reader(f"SELECT count(*) FROM t AT (VERSION => {newest})") == [(41,)]
    if conflict is not None:
        slow("BEGIN; INSERT INTO t VALUES (100); COMMIT")
    assert numbers(reader) == [*range(40), 100, 200]
    feed = "ducklake_table_changes(current_catalog(), 'main', 't', {}, {})"
    changes = [reader(f"SELECT i FROM {feed.format(at, at)}") for at in (newest, newest + 1)]
    assert changes == [[(200,)], [(100,)]]


def test_of_deletes_from_one_file_that_cross_only_one_is_committed(house: House) -> None:
    catalog = house.new_catalog(FORTY, "CREATE TABLE other (i INTEGER)")
    first, second, third = catalog.sessions(3)
    first("BEGIN; DELETE FROM t WHERE i IN (10, 11)")
    second("INSERT INTO other VALUES (1)")
    third("BEGIN; DELETE FROM t WHERE i < 5")
    conflicts = [first.commit(), third.commit()]
    assert conflicts.count(None) == 1
    assert "t" in named(conflicts)
    gone = {10, 11} if conflicts[0] is None else set(range(5))
    assert numbers(second) == sorted(set(range(40)) - gone)
    catalog.assert_sound("t", "other")


def test_tables_made_at_once_get_ids_of_their_own(house: House) -> None:
    catalog = house.new_catalog()
    one, other = catalog.sessions(2)
    for session, name in ((one, "a"), (other, "b")):
        session(f"BEGIN; CREATE TABLE {name} (i INTEGER); INSERT INTO {name} VALUES (1)")
    assert one.commit() is None
    if other.commit() is not None:
        assert not house.on_postgres
        other("BEGIN; CREATE TABLE b (i INTEGER); INSERT INTO b VALUES (1); COMMIT")
    ids = one("SELECT table_id FROM ducklake_table_info(current_catalog())")
    assert len(set(ids)) == 2
    catalog.assert_sound("a", "b")


def test_a_table_that_two_transactions_make_is_made_once(house: House) -> None:
    catalog = house.new_catalog()
    one, other = catalog.sessions(2)
    for session, number in ((one, 1), (other, 2)):
        session(f"BEGIN; CREATE TABLE n (i INTEGER); INSERT INTO n VALUES ({number})")
    conflicts = [other.commit(), one.commit()]
    assert conflicts[0] is None
    assert "n" in named(conflicts)
    assert numbers(one, "n") == [2]
    catalog.assert_sound("n")


def test_file_ids_do_not_fall_back_behind_those_of_an_older_transaction(house: House) -> None:
    catalog = house.new_catalog(FORTY)
    files, schemas = catalog.sessions(2)
    files("BEGIN; INSERT INTO t VALUES (100); INSERT INTO t VALUES (101)")
    schemas("BEGIN; CREATE SCHEMA s")
    first, last = files.commit(), schemas.commit()
    assert first is None
    assert (last is None) == house.on_postgres
    for number in (102, 103):
        files(f"INSERT INTO t VALUES ({number})")
    files("UPDATE t SET i = 104 WHERE i = 100")
    assert numbers(schemas) == [*range(40), 101, 102, 103, 104]
    catalog.assert_sound("t")


# ---- what the stock extension does not see -------------------------------------------------------


@pytest.mark.parametrize(
    ("rival", "in_transaction"),
    [("DELETE FROM t WHERE i BETWEEN 10 AND 12", True), ("UPDATE t SET i = -i", False)],
)
def test_of_two_deletes_from_a_file_with_a_delete_file_one_is_committed(
    house: House, rival: str, in_transaction: bool
) -> None:
    """The stock extension commits both; rows come back, and others count twice."""
    catalog = house.new_catalog(FORTY, "DELETE FROM t WHERE i >= 35")
    one, other, reader = catalog.sessions(3)
    one("BEGIN; DELETE FROM t WHERE i < 5")
    if in_transaction:
        other(f"BEGIN; {rival}")
        assert other.commit() is None
    else:
        other(rival)
    left = numbers(reader)
    assert "t" in named([one.commit()])
    assert numbers(reader) == left
    assert one("DELETE FROM t WHERE i < 5") == []
    catalog.assert_sound("t")


@pytest.mark.parametrize(("inlined_rows", "step"), [(0, "merge"), (10, "fold")])
def test_compaction_brings_no_row_back_that_a_transaction_deletes(
    house: House, inlined_rows: int, step: str
) -> None:
    """Stock merging goes past deletes that are kept in the metadata."""
    catalog = house.new_catalog(FORTY)
    deleter, compactor, reader = catalog.sessions(3)
    deleter(f"CALL {catalog.name}.set_option('data_inlining_row_limit', {inlined_rows})")
    for i in range(40, 45):
        deleter(f"INSERT INTO t VALUES ({i})")
    deleter("BEGIN; DELETE FROM t WHERE i IN (3, 41)")
    assert step in [done[3] for done in compactor("CALL swanlake_compact('t')")]
    assert "t" in named([deleter.commit()])
    assert numbers(reader) == list(range(45))
    deleter("DELETE FROM t WHERE i IN (3, 41)")
    assert numbers(reader) == sorted({*range(45)} - {3, 41})
    compactor("CALL swanlake_compact('t')")
    assert numbers(reader) == sorted({*range(45)} - {3, 41})
    catalog.assert_sound("t")


def test_rows_for_a_table_that_is_dropped_meanwhile_do_not_vanish_in_silence(house: House) -> None:
    catalog = house.new_catalog(FORTY)
    writer, dropper = catalog.sessions(2)
    writer("BEGIN; INSERT INTO t VALUES (100)")
    dropper("DROP TABLE t")
    assert "t" in named([writer.commit()])
    catalog.assert_sound("t")


@pytest.mark.parametrize("kept_rows", [0, 10])
@pytest.mark.parametrize("change", ["DELETE FROM t WHERE i = 0", "UPDATE t SET i = 50 WHERE i = 0"])
def test_two_changes_of_one_row_do_not_both_happen(
    house: House, change: str, kept_rows: int
) -> None:
    """In a transaction, small deletes are kept in the metadata; others are files."""
    catalog = house.new_catalog("CREATE TABLE t AS SELECT range AS i FROM range(3)")
    first, second = catalog.session(), catalog.session()
    first(f"CALL {catalog.name}.set_option('data_inlining_row_limit', {kept_rows})")
    first("BEGIN")
    first(change)
    second(change)
    assert "t" in named([first.commit()])
    second("DELETE FROM t WHERE i = 1")
    assert numbers(second) == ([2] if change.startswith("DELETE") else [2, 50])
    catalog.assert_sound("t")


# ---- other programs, which take no turns ---------------------------------------------------------

#: How a commit of the extension ends when that of another program came before it.
LOSSES = {
    "40001": "snapshot 9 conflict: concurrent commit moved the DuckLake head",
    "23505": 'duplicate key value violates unique constraint "ducklake_snapshot_pkey"',
    "40P01": "deadlock detected",
}
STATEMENTS = (
    "CREATE TABLE made (i INTEGER DEFAULT 1)",
    "UPDATE t SET i = 100 FROM (SELECT 0) AS old(i) WHERE t.i = old.i",
    "DROP TABLE t",
)


def lose(catalog: Rivalry, state: str, times: int) -> None:
    """Lets the next attempts to commit come second, as if another program were always faster."""
    assert isinstance(catalog.house.metabase, str)
    with psycopg.connect(catalog.house.metabase, autocommit=True) as admin:
        admin.execute(f"SET search_path = lake_{catalog.name}")
        # A sequence goes on where everything else of a transaction is undone.
        admin.execute("CREATE SEQUENCE attempts")
        admin.execute(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('lake_{catalog.name}.attempts') <= {times} THEN RAISE EXCEPTION "
            f"'{LOSSES[state]}' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$"
        )
        admin.execute(
            "CREATE TRIGGER a_rival BEFORE INSERT ON ducklake_snapshot "
            "FOR EACH ROW EXECUTE FUNCTION lose()"
        )


@pytest.mark.parametrize(("state", "statement"), [*zip(LOSSES, STATEMENTS, strict=True)])
def test_a_statement_that_always_came_second_is_repeated(
    postgres_house: House, state: str, statement: str
) -> None:
    catalog = postgres_house.new_catalog(FORTY)
    session = catalog.session()
    # The extension tries a deadlock once, and everything else fifteen times.
    lose(catalog, state, 2 if state == "40P01" else 20)
    assert session(statement) == []
    catalog.assert_sound("t")


def test_a_transaction_that_always_comes_second_is_refused_as_a_conflict(
    postgres_house: House,
) -> None:
    catalog = postgres_house.new_catalog(FORTY)
    session = catalog.session()
    session("BEGIN; UPDATE t SET i = 100 WHERE i = 0")
    lose(catalog, "40001", 1_000)
    assert "t" in named([session.commit()])
    assert "t" in named([session.conflict("DELETE FROM t USING (SELECT 1)")])
    assert numbers(session) == list(range(40))


def named(conflicts: list[str | None]) -> list[str]:
    """The tables that the one conflict among these names."""
    [conflict] = [conflict for conflict in conflicts if conflict is not None]
    words = conflict.replace('"', " ").replace(":", " ").replace(",", " ").split()
    return [word.removeprefix("main.") for word in words]
