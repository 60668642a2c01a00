"""Statements that DuckDB's parser expands: one result, one count, and all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adbc_driver_manager
import duckdb
import pytest

from tests.queries import rows

PIVOT = "PIVOT measured ON city USING sum(n)"


@pytest.fixture
def cursor(connect: Callable[..., Any]) -> Any:
    cursor = connect().cursor()
    cursor.execute("CREATE TEMP TABLE measured (year INT, city VARCHAR, n INT)")
    cursor.execute("INSERT INTO measured VALUES (1, 'A', 5), (2, 'B', 6)")
    cursor.execute("CREATE TEMP TABLE altered AS FROM range(2) AS r(i)")
    return cursor


@pytest.fixture(params=["autocommit", "transaction"])
def mode(request: pytest.FixtureRequest, cursor: Any) -> Any:
    if request.param == "transaction":
        cursor.execute("BEGIN")
    yield request.param
    if request.param == "transaction":
        cursor.execute("ROLLBACK")


@pytest.mark.usefixtures("mode")
def test_column_with_a_computed_default_is_added(cursor: Any) -> None:
    cursor.execute("ALTER TABLE altered ADD COLUMN j INT DEFAULT (20 + 1)")
    assert cursor.rowcount == 0  # as for every ALTER; not the rows that DuckDB fills
    cursor.execute("INSERT INTO altered (i) VALUES (2)")
    assert rows(cursor, "FROM altered ORDER BY i") == [(0, 21), (1, 21), (2, 21)]


def test_column_is_added_to_a_table_in_memory(cursor: Any) -> None:
    cursor.execute("CREATE TABLE memory.main.widened AS SELECT 1 AS i")
    text = "SELECT 1; ALTER TABLE memory.main.widened ADD j DATE DEFAULT today(); SELECT 42"
    assert rows(cursor, text) == [(42,)]
    assert rows(cursor, "SELECT j = today() FROM memory.main.widened") == [(True,)]


@pytest.mark.usefixtures("mode")
def test_lake_refuses_a_computed_default_in_its_own_words(cursor: Any) -> None:
    cursor.execute("CREATE TABLE IF NOT EXISTS not_widened (i INTEGER)")
    with pytest.raises(adbc_driver_manager.NotSupportedError, match="non-literal default value"):
        cursor.execute("ALTER TABLE not_widened ADD COLUMN j TIMESTAMP DEFAULT now()")


def test_expanded_statement_that_fails_changes_nothing(cursor: Any) -> None:
    widening = "ALTER TABLE altered ADD COLUMN j INT DEFAULT ('x' || 1)::INT"
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="CONVERSION_ERROR"):
        cursor.execute(widening)
    assert rows(cursor, "FROM altered ORDER BY i") == [(0,), (1,)]


def test_expanded_write_that_fails_aborts_its_transaction(cursor: Any) -> None:
    cursor.execute("BEGIN")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="no_such_function"):
        cursor.execute("ALTER TABLE altered ADD COLUMN j INT DEFAULT no_such_function()")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="TRANSACTION_ABORTED"):
        cursor.execute("FROM altered")
    cursor.execute("ROLLBACK")
    assert rows(cursor, "FROM altered ORDER BY i") == [(0,), (1,)]


@pytest.mark.usefixtures("mode")
def test_pivot_gives_its_rows_wherever_a_query_may_stand(cursor: Any, tmp_path: Path) -> None:
    pivoted = [(1, 5, None), (2, None, 6)]
    assert rows(cursor, f"{PIVOT} ORDER BY year") == pivoted
    assert rows(cursor, f"SELECT 1; {PIVOT} ORDER BY year") == pivoted
    assert rows(cursor, f"{PIVOT}; SELECT 1") == [(1,)]
    assert rows(cursor, f"SELECT ?, year FROM ({PIVOT}) ORDER BY 2", ("x",)) == [("x", 1), ("x", 2)]
    assert len(rows(cursor, f"EXPLAIN {PIVOT}")) == 1
    assert [row[0] for row in rows(cursor, f"DESCRIBE {PIVOT}")] == ["year", "A", "B"]
    cursor.execute(f"COPY ({PIVOT}) TO '{tmp_path}/pivoted.csv'")
    assert cursor.rowcount == 2
    cursor.adbc_prepare(f"{PIVOT} ORDER BY year")
    cursor.execute(f"{PIVOT} ORDER BY year")
    assert cursor.fetchall() == pivoted


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("created", ["TABLE", "TEMP TABLE"])
def test_pivot_is_written_to_a_table(cursor: Any, created: str) -> None:
    cursor.execute(f"CREATE OR REPLACE {created} pivoted AS {PIVOT}")
    assert cursor.rowcount == 2
    cursor.execute(f"INSERT INTO pivoted {PIVOT}")
    assert cursor.rowcount == 2
    update = f"UPDATE pivoted SET year = ? WHERE 2 = (SELECT count(*) FROM ({PIVOT}))"
    cursor.executemany(update, [(3,), (4,)])
    assert rows(cursor, "SELECT DISTINCT year FROM pivoted") == [(4,)]


def test_pivot_of_the_queue_and_into_the_queue(cursor: Any) -> None:
    cursor.execute("CREATE TABLE queued_pivot (city VARCHAR, n BIGINT)")
    cursor.execute("INSERT INTO duckling_queue.queued_pivot VALUES ('A', 1), ('B', 2)")
    counted = "PIVOT duckling_queue.queued_pivot ON city USING sum(n)::INT"
    assert rows(cursor, counted) == [(1, 2)]
    cursor.execute(f"INSERT INTO duckling_queue.queued_pivot SELECT 'C', A + B FROM ({counted})")
    assert cursor.rowcount == 1
    assert rows(cursor, "SELECT n FROM duckling_queue.queued_pivot WHERE city = 'C'") == [(3,)]


def test_copy_and_import_of_a_database(cursor: Any, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "source.duckdb")) as source:
        source.execute("CREATE TABLE imported AS SELECT 1 AS i; CREATE TABLE imported2 (i INT)")
        source.execute(f"EXPORT DATABASE '{tmp_path}/first'")
        source.execute("INSERT INTO imported VALUES (2)")
        source.execute(f"EXPORT DATABASE '{tmp_path}/second'")
    cursor.execute(f"ATTACH '{tmp_path}/source.duckdb' AS copied_from (READ_ONLY)")
    cursor.execute("ATTACH ':memory:' AS copied_to")
    cursor.execute("COPY FROM DATABASE copied_from TO copied_to")
    assert rows(cursor, "FROM copied_to.imported ORDER BY i") == [(1,), (2,)]
    # The same text again: the parser reads the files of an IMPORT.
    (tmp_path / "current").symlink_to(tmp_path / "first")
    for expected in ([(1,)], [(1,), (2,)]):
        cursor.execute("ATTACH ':memory:' AS imported_to; USE imported_to")
        cursor.execute(f"IMPORT DATABASE '{tmp_path}/current'")
        assert rows(cursor, "FROM imported ORDER BY i") == expected
        cursor.execute("USE swanlake; DETACH imported_to")
        (tmp_path / "current").unlink()
        (tmp_path / "current").symlink_to(tmp_path / "second")
