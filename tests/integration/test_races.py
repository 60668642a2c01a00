"""Interleavings of sessions that corrupt a catalog whose writers hold no lock.

Without a lock taken before ids are assigned, or with the stock extension alone, each of them ends
with a changed past, rows that reappear or count twice, or an unreadable catalog.

A transaction on SQLite reads one state of the file until its end, so it conflicts with every commit
since it began; on PostgreSQL only with commits that touch the same objects.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.contenders import (
    ContendedCatalog,
    Deployment,
    Session,
    deployment_fixture,
    postgres_only,
)

FORTY = "CREATE TABLE t AS SELECT range AS i FROM range(40)"


deployment = deployment_fixture(servers=1, SWANLAKE_MAX_SESSIONS="1000")


def numbers(session: Session, table: str = "t") -> list[int]:
    """The numbers in a table; also checks that count(*) agrees."""
    rows = sorted(i for (i,) in session(f"SELECT i FROM {table}"))
    assert session(f"SELECT count(*) FROM {table}") == [(len(rows),)]
    return rows


# ---- ids in the order of commits -----------------------------------------------------------------


def test_late_commit_does_not_change_earlier_snapshots(
    deployment: Deployment,
) -> None:
    catalog = deployment.new_catalog(FORTY)
    slow, quick, reader = catalog.sessions(3)
    slow("BEGIN; INSERT INTO t VALUES (100)")
    quick("INSERT INTO t VALUES (200)")
    [(newest,)] = reader("SELECT max(snapshot_id) FROM ducklake_snapshots(current_catalog())")
    catalog.assert_sound("t")
    conflict = slow.commit()
    assert (conflict is None) == deployment.on_postgres
    catalog.assert_sound("t")
    assert reader(f"SELECT count(*) FROM t AT (VERSION => {newest})") == [(41,)]
    if conflict is not None:
        slow("BEGIN; INSERT INTO t VALUES (100); COMMIT")
    assert numbers(reader) == [*range(40), 100, 200]
    feed = "ducklake_table_changes(current_catalog(), 'main', 't', {}, {})"
    changes = [reader(f"SELECT i FROM {feed.format(at, at)}") for at in (newest, newest + 1)]
    assert changes == [[(200,)], [(100,)]]


def test_crossing_deletes_from_one_file_commit_once(deployment: Deployment) -> None:
    catalog = deployment.new_catalog(FORTY, "CREATE TABLE other (i INTEGER)")
    first, second, third = catalog.sessions(3)
    first("BEGIN; DELETE FROM t WHERE i IN (10, 11)")
    second("INSERT INTO other VALUES (1)")
    third("BEGIN; DELETE FROM t WHERE i < 5")
    conflicts = [first.commit(), third.commit()]
    assert conflicts.count(None) == 1
    assert "t" in tables_in_conflict(conflicts)
    deleted = {10, 11} if conflicts[0] is None else set(range(5))
    assert numbers(second) == sorted(set(range(40)) - deleted)
    catalog.assert_sound("t", "other")


def test_tables_created_concurrently_get_different_ids(deployment: Deployment) -> None:
    catalog = deployment.new_catalog()
    first, second = catalog.sessions(2)
    for session, name in ((first, "a"), (second, "b")):
        session(f"BEGIN; CREATE TABLE {name} (i INTEGER); INSERT INTO {name} VALUES (1)")
    assert first.commit() is None
    if second.commit() is not None:
        assert not deployment.on_postgres
        second("BEGIN; CREATE TABLE b (i INTEGER); INSERT INTO b VALUES (1); COMMIT")
    ids = first("SELECT table_id FROM ducklake_table_info(current_catalog())")
    assert len(set(ids)) == 2
    catalog.assert_sound("a", "b")


def test_table_created_by_two_transactions_is_created_once(deployment: Deployment) -> None:
    catalog = deployment.new_catalog()
    first, second = catalog.sessions(2)
    for session, number in ((first, 1), (second, 2)):
        session(f"BEGIN; CREATE TABLE n (i INTEGER); INSERT INTO n VALUES ({number})")
    conflicts = [second.commit(), first.commit()]
    assert conflicts[0] is None
    assert "n" in tables_in_conflict(conflicts)
    assert numbers(first, "n") == [2]
    catalog.assert_sound("n")


def test_file_ids_never_decrease_after_an_older_transaction(
    deployment: Deployment,
) -> None:
    catalog = deployment.new_catalog(FORTY)
    files, schemas = catalog.sessions(2)
    files("BEGIN; INSERT INTO t VALUES (100); INSERT INTO t VALUES (101)")
    schemas("BEGIN; CREATE SCHEMA s")
    first, last = files.commit(), schemas.commit()
    assert first is None
    assert (last is None) == deployment.on_postgres
    for number in (102, 103):
        files(f"INSERT INTO t VALUES ({number})")
    files("UPDATE t SET i = 104 WHERE i = 100")
    assert numbers(schemas) == [*range(40), 101, 102, 103, 104]
    catalog.assert_sound("t")


# ---- conflicts that the stock extension misses ---------------------------------------------------


@pytest.mark.parametrize(
    ("concurrent", "in_transaction"),
    [("DELETE FROM t WHERE i BETWEEN 10 AND 12", True), ("UPDATE t SET i = -i", False)],
)
def test_two_deletes_from_a_file_with_a_delete_file_commit_once(
    deployment: Deployment, concurrent: str, in_transaction: bool
) -> None:
    """The stock extension commits both: rows reappear, and others count twice."""
    catalog = deployment.new_catalog(FORTY, "DELETE FROM t WHERE i >= 35")
    first, second, reader = catalog.sessions(3)
    first("BEGIN; DELETE FROM t WHERE i < 5")
    if in_transaction:
        second(f"BEGIN; {concurrent}")
        assert second.commit() is None
    else:
        second(concurrent)
    left = numbers(reader)
    assert "t" in tables_in_conflict([first.commit()])
    assert numbers(reader) == left
    assert first("DELETE FROM t WHERE i < 5") == []
    catalog.assert_sound("t")


@pytest.mark.parametrize(("inlined_rows", "step"), [(0, "merge"), (10, "fold")])
def test_compaction_does_not_restore_rows_deleted_meanwhile(
    deployment: Deployment, inlined_rows: int, step: str
) -> None:
    """The stock extension's merge ignores inlined deletes."""
    catalog = deployment.new_catalog(FORTY)
    deleter, compactor, reader = catalog.sessions(3)
    deleter(f"CALL {catalog.name}.set_option('data_inlining_row_limit', {inlined_rows})")
    for i in range(40, 45):
        deleter(f"INSERT INTO t VALUES ({i})")
    deleter("BEGIN; DELETE FROM t WHERE i IN (3, 41)")
    assert step in [done[3] for done in compactor("CALL swanlake_compact('t')")]
    assert "t" in tables_in_conflict([deleter.commit()])
    assert numbers(reader) == list(range(45))
    deleter("DELETE FROM t WHERE i IN (3, 41)")
    assert numbers(reader) == sorted({*range(45)} - {3, 41})
    compactor("CALL swanlake_compact('t')")
    assert numbers(reader) == sorted({*range(45)} - {3, 41})
    catalog.assert_sound("t")


def test_commit_fails_when_the_table_was_dropped(
    deployment: Deployment,
) -> None:
    catalog = deployment.new_catalog(FORTY)
    writer, dropper = catalog.sessions(2)
    writer("BEGIN; INSERT INTO t VALUES (100)")
    dropper("DROP TABLE t")
    assert "t" in tables_in_conflict([writer.commit()])
    catalog.assert_sound("t")


@pytest.mark.parametrize("inlined_rows", [0, 10])
@pytest.mark.parametrize("change", ["DELETE FROM t WHERE i = 0", "UPDATE t SET i = 50 WHERE i = 0"])
def test_concurrent_changes_of_one_row_commit_once(
    deployment: Deployment, change: str, inlined_rows: int
) -> None:
    """Small deletes are inlined in the metadata; others are files."""
    catalog = deployment.new_catalog("CREATE TABLE t AS SELECT range AS i FROM range(3)")
    first, second = catalog.session(), catalog.session()
    first(f"CALL {catalog.name}.set_option('data_inlining_row_limit', {inlined_rows})")
    first("BEGIN")
    first(change)
    second(change)
    assert "t" in tables_in_conflict([first.commit()])
    second("DELETE FROM t WHERE i = 1")
    assert numbers(second) == ([2] if change.startswith("DELETE") else [2, 50])
    catalog.assert_sound("t")


@postgres_only
@pytest.mark.parametrize("in_transaction", [False, True], ids=["autocommit", "transaction"])
@pytest.mark.parametrize("order", [1, -1], ids=["inlined first", "file first"])
def test_inlined_delete_and_delete_file_for_one_data_file_conflict(
    deployment: Deployment, order: int, in_transaction: bool
) -> None:
    """The stock extension overlooks it (ducklake #1215)."""
    catalog = deployment.new_catalog(FORTY)
    first, second = catalog.sessions(2)
    first(f"CALL {catalog.name}.set_option('data_inlining_row_limit', 10)")
    deletes = ("DELETE FROM t WHERE i IN (1, 2)", "DELETE FROM t WHERE i < 20")[::order]
    first(f"BEGIN; {deletes[0]}")
    second(f"BEGIN; {deletes[1]}; COMMIT" if in_transaction else deletes[1])
    assert "t" in tables_in_conflict([first.commit()])
    first(deletes[0])
    assert numbers(first) == list(range(20, 40))
    catalog.assert_sound("t")


@postgres_only
def test_deletes_from_other_tables_do_not_conflict(deployment: Deployment) -> None:
    catalog = deployment.new_catalog(FORTY, FORTY.replace("TABLE t", "TABLE other"))
    first, second = catalog.sessions(2)
    first(f"CALL {catalog.name}.set_option('data_inlining_row_limit', 10)")
    first("BEGIN; DELETE FROM t WHERE i < 20")
    second("DELETE FROM other WHERE i IN (1, 2)")
    assert first.commit() is None
    catalog.assert_sound("t")


# ---- other programs, which take no lock ----------------------------------------------------------

#: Errors of an extension's commit when another program committed first, by SQL state.
LOST_COMMITS = {
    "40001": "snapshot 9 conflict: concurrent commit moved the DuckLake head",
    "23505": 'duplicate key value violates unique constraint "ducklake_snapshot_pkey"',
    "40P01": "deadlock detected",
}
STATEMENTS = (
    "CREATE TABLE made (i INTEGER DEFAULT 1)",
    "UPDATE t SET i = 100 WHERE i = 0",
    "DROP TABLE t",
)


def fail_next_commits(catalog: ContendedCatalog, state: str, times: int) -> None:
    """Makes the next commits fail as if another program had always committed first."""
    assert isinstance(catalog.deployment.metabase, str)
    with psycopg.connect(catalog.deployment.metabase, autocommit=True) as admin:
        admin.execute(f"SET search_path = lake_{catalog.name}")
        # A sequence keeps its value when the transaction is rolled back.
        admin.execute("CREATE SEQUENCE attempts")
        admin.execute(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('lake_{catalog.name}.attempts') <= {times} THEN RAISE EXCEPTION "
            f"'{LOST_COMMITS[state]}' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$"
        )
        admin.execute(
            "CREATE TRIGGER other_program BEFORE INSERT ON ducklake_snapshot "
            "FOR EACH ROW EXECUTE FUNCTION lose()"
        )


@postgres_only
@pytest.mark.parametrize(("state", "statement"), [*zip(LOST_COMMITS, STATEMENTS, strict=True)])
def test_statement_that_lost_the_race_is_retried(
    deployment: Deployment, state: str, statement: str
) -> None:
    catalog = deployment.new_catalog(FORTY)
    session = catalog.session()
    # The extension tries once after a deadlock, and fifteen times after other conflicts.
    fail_next_commits(catalog, state, 2 if state == "40P01" else 20)
    assert session(statement) == []
    catalog.assert_sound("t")


@postgres_only
def test_transaction_that_lost_the_race_fails_with_a_conflict(deployment: Deployment) -> None:
    catalog = deployment.new_catalog(FORTY)
    session = catalog.session()
    session("BEGIN; UPDATE t SET i = 100 WHERE i = 0")
    fail_next_commits(catalog, "40001", 1_000)
    assert "t" in tables_in_conflict([session.commit()])
    assert "t" in tables_in_conflict([session.conflict("DELETE FROM t")])
    assert numbers(session) == list(range(40))


def tables_in_conflict(conflicts: list[str | None]) -> list[str]:
    """The words of the only conflict in the list, table names among them."""
    [conflict] = [conflict for conflict in conflicts if conflict is not None]
    words = conflict.replace('"', " ").replace(":", " ").replace(",", " ").split()
    return [word.removeprefix("main.") for word in words]
