"""A slow change does not keep the other writers of its catalog waiting."""

from __future__ import annotations

from itertools import count

import pyarrow.flight as flight
import pytest

from tests.contenders import ContendedCatalog, Deployment, deployment_fixture, postgres_only
from tests.queries import ENDLESS_QUERY
from tests.waiting import eventually

deployment = deployment_fixture(servers=1, SWANLAKE_WRITER_LOCK_SECONDS="0.3")

#: Takes seconds: much longer than the lock may be held.
SLOW_QUERY = "SELECT count(*) FROM range(400_000_000) r(x) WHERE x % 7 = 3"
SLOW_COUNT = 57_142_857
ENDLESS = (
    f"UPDATE t SET i = s.n FROM ({ENDLESS_QUERY.replace('count(*)', 'count(*) AS n')}) s",
    f"MERGE INTO t USING ({ENDLESS_QUERY.replace('count(*)', 'count(*) AS n')}) s ON t.i = s.n "
    "WHEN MATCHED THEN DELETE",
    f"CREATE OR REPLACE VIEW v AS SELECT 1 AS i; DELETE FROM t WHERE i = ({ENDLESS_QUERY})",
)


def catalog_with_two_tables(deployment: Deployment) -> ContendedCatalog:
    return deployment.new_catalog(
        "CREATE TABLE t AS SELECT 0::BIGINT AS i", "CREATE TABLE e (i INT)"
    )


@pytest.mark.parametrize("statement", ENDLESS, ids=["update", "merge", "delete"])
def test_inserts_go_on_beside_a_change_without_end(deployment: Deployment, statement: str) -> None:
    catalog = catalog_with_two_tables(deployment)
    changing, inserting = catalog.session(name="slow"), catalog.session()
    change = changing.start(statement, x_swanlake_query_id="slow")
    catalog.wait_for_lock_queue("slow")
    for number in range(3):
        inserting(f"INSERT INTO e VALUES ({number})")
        inserting(f"INSERT INTO t VALUES ({number})")
    if change.is_running:  # on PostgreSQL it goes on without the lock
        catalog.session().cancel("slow")
    expected = r"QUERY_CANCELLED|COMMIT_LOCK_EXCEEDED: .* lock of its catalog for 0.3 s"
    with pytest.raises((flight.FlightCancelledError, flight.FlightTimedOutError), match=expected):
        change.get()
    assert inserting("SELECT count(*) FROM e") == [(3,)]
    assert inserting("SELECT count(*) FROM t") == [(4,)]
    assert changing("SELECT count(*) FROM t") == [(4,)]
    catalog.assert_sound("t", "e")


@postgres_only
def test_slow_change_completes_beside_inserts(deployment: Deployment) -> None:
    catalog = catalog_with_two_tables(deployment)
    changing, inserting = catalog.session(name="slow"), catalog.session()
    change = changing.start(
        f"UPDATE t SET i = s.n FROM ({SLOW_QUERY.replace('(*)', '(*) AS n')}) s"
    )
    catalog.wait_for_lock_queue("slow")
    inserted = 0
    for number in count():
        inserting(f"INSERT INTO e VALUES ({number})")
        inserted += 1
        if not change.is_running:
            break
    change.get()
    assert inserting("FROM t") == [(SLOW_COUNT,)]
    assert inserting("SELECT count(*) FROM e") == [(inserted,)]
    catalog.assert_sound("t", "e")


@postgres_only
def test_slow_change_of_a_table_that_others_change_has_a_conflict(deployment: Deployment) -> None:
    catalog = catalog_with_two_tables(deployment)
    changing, other = catalog.session(name="slow"), catalog.session()
    change = changing.start(
        f"UPDATE t SET i = s.n FROM ({SLOW_QUERY.replace('(*)', '(*) AS n')}) s"
    )
    catalog.wait_for_lock_queue("slow")
    other("INSERT INTO e VALUES (1)")  # takes the lock off the change, if it was not faster
    other("UPDATE t SET i = -1")
    change.join()
    if change.error is not None:
        assert str(change.error).startswith("COMMIT_CONFLICT: "), change.error
    assert other("FROM t") in ([(-1,)], [(SLOW_COUNT,)])
    catalog.assert_sound("t", "e")


def test_change_without_waiters_may_take_its_time(deployment: Deployment) -> None:
    catalog = catalog_with_two_tables(deployment)
    session = catalog.session()
    session(f"UPDATE t SET i = s.n FROM ({SLOW_QUERY.replace('(*)', '(*) AS n')}) s")
    assert session("FROM t") == [(SLOW_COUNT,)]


def test_stopped_change_leaves_its_session_usable(deployment: Deployment) -> None:
    catalog = catalog_with_two_tables(deployment)
    changing, inserting = catalog.session(name="slow"), catalog.session()
    change = changing.start(ENDLESS[0], x_swanlake_query_id="slow")
    catalog.wait_for_lock_queue("slow")
    inserting("INSERT INTO e VALUES (1)")
    if change.is_running:
        catalog.session().cancel("slow")
    change.join()
    changing("UPDATE t SET i = 5")
    changing("BEGIN; INSERT INTO e VALUES (2); COMMIT")
    assert changing("SELECT i FROM t") == [(5,)]
    eventually(lambda: catalog.lock_queue() == [])
