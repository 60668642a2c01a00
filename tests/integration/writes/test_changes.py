"""UPDATE and DELETE have the outcomes of stock DuckDB, native or not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.contenders import Deployment, deployment_fixture
from tests.integration.writes.both_sides import (
    Ours,
    Stock,
    Transcript,
    Writes,
    play,
    same,
    set_inline_limit,
    snapshots,
)
from tests.integration.writes.change_scripts import SCRIPTS

deployment = deployment_fixture(servers=1)


@pytest.mark.parametrize("inline_limit", [0, 10], ids=["files", "metadata"])
@pytest.mark.parametrize("subject", SCRIPTS)
def test_outcome_is_that_of_stock(
    writes: Writes,
    ours: Ours,
    stock_transcript: Callable[..., Transcript],
    schema: str,
    subject: str,
    inline_limit: int,
) -> None:
    if inline_limit and subject == "nested":
        pytest.skip("the stock extension spoils structs that it keeps in the metadata")
    expected = stock_transcript(
        subject, SCRIPTS[subject], inline_limit, each_content=writes.is_native
    )
    set_inline_limit(ours, schema, inline_limit)
    with writes.counted() as counted:
        found = play(ours, SCRIPTS[subject], {"{schema}": schema}, each_content=writes.is_native)
    assert found == expected
    assert counted["repeated"] == 0
    if inline_limit and subject == "few":  # all its rows are inlined
        assert counted["extension"] <= found.refused
        assert writes.orphans(schema) == []


_INITIAL = "SELECT range AS id, 0 AS v FROM range(5)"


@pytest.mark.parametrize("inline_limit", [0, 10], ids=["files", "metadata"])
@pytest.mark.parametrize(
    ("sql", "change", "rows"),
    [
        ("UPDATE t SET v = v + 1 WHERE id = 1", "UPDATE t SET v = v + 10 WHERE id = 1", (5, 11)),
        ("UPDATE t SET v = v + 1 WHERE id = 1", "UPDATE t SET v = 7 WHERE id = 2", (5, 8)),
        ("UPDATE t SET v = v + 1", "INSERT INTO t VALUES (5, 3)", (6, 9)),
        ("UPDATE t SET v = v + 1 WHERE id = 1", "DELETE FROM t WHERE id = 1", (4, 0)),
        ("UPDATE t SET v = v + 1", "DELETE FROM t", (0, 0)),
        ("DELETE FROM t WHERE id = 1", "UPDATE t SET v = 5", (4, 20)),
        ("DELETE FROM t WHERE v = 0", "UPDATE t SET v = 5 WHERE id = 1", (1, 5)),
        ("DELETE FROM t WHERE id = 1", "DELETE FROM t WHERE id < 3", (2, 0)),
        ("DELETE FROM t WHERE id < 3", "ALTER TABLE t ADD COLUMN x INTEGER", (2, 0)),
        ("UPDATE t SET v = 2", "CALL ducklake_flush_inlined_data('swanlake')", (5, 10)),
        ("UPDATE t SET v = 2", "CALL ducklake_merge_adjacent_files('swanlake')", (5, 10)),
        ("CREATE OR REPLACE TABLE t AS FROM t", "DELETE FROM t WHERE id = 1", (4, 0)),
        ("CREATE OR REPLACE TABLE t AS FROM t", "UPDATE t SET v = 5 WHERE id = 1", (5, 5)),
        ("CREATE OR REPLACE TABLE t AS FROM t", "INSERT INTO t VALUES (5, 3)", (6, 3)),
    ],
)
def test_concurrent_changes_are_kept(
    writes: Writes,
    ours: Ours,
    other_program: duckdb.DuckDBPyConnection,
    schema: str,
    inline_limit: int,
    sql: str,
    change: str,
    rows: tuple[int, int],
) -> None:
    set_inline_limit(ours, schema, inline_limit)
    ours.run("CREATE TABLE t (id BIGINT, v BIGINT)")
    ours.run(f"INSERT INTO t {_INITIAL} WHERE id < 3")
    ours.run(f"INSERT INTO t {_INITIAL} WHERE id >= 3")
    other_program.execute(f"USE swanlake.{schema}")
    with writes.meanwhile(lambda: ours.run(sql)):
        other_program.execute(change)
    assert not isinstance(writes.outcome, tuple)
    counted = "SELECT count(*), coalesce(sum(v), 0)::BIGINT FROM t"
    assert ours.run(counted) == [rows]
    assert other_program.execute(counted).fetchall() == [rows]
    assert writes.orphans(schema) == []


@pytest.mark.parametrize("inline_limit", [0, 10], ids=["files", "metadata"])
def test_concurrent_increments_are_all_applied(
    writes: Writes, ours: Ours, schema: str, inline_limit: int
) -> None:
    set_inline_limit(ours, schema, inline_limit)
    ours.run("CREATE TABLE t (id BIGINT, v BIGINT)")
    ours.run("INSERT INTO t VALUES (1, 0), (2, 0)")

    def increment(number: int) -> None:
        with closing(Ours(writes.server)) as session:
            for _ in range(4):
                sql = f"UPDATE swanlake.{schema}.t SET v = v + 1 WHERE id = {1 + number % 2}"
                assert session.run(sql) == 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(increment, range(6)))
    assert ours.run("SELECT id, v FROM t ORDER BY id") == [(1, 12), (2, 12)]


def test_earlier_snapshots_do_not_change(
    writes: Writes, ours: Ours, other_program: duckdb.DuckDBPyConnection, schema: str
) -> None:
    set_inline_limit(ours, schema, 3)
    ours.run("CREATE TABLE t (id BIGINT, v BIGINT)")
    table = f"swanlake.{schema}.t"
    seen: dict[int, Any] = {}
    for sql in (
        f"INSERT INTO t {_INITIAL}",
        "INSERT INTO t VALUES (10, 1), (11, 1)",
        "UPDATE t SET v = v + 1 WHERE id IN (1, 10)",
        "UPDATE t SET v = v + 1",
        "DELETE FROM t WHERE id IN (2, 11)",
        "UPDATE t SET v = v + 1 WHERE id < 2",
        "DELETE FROM t WHERE id < 4",
        "DELETE FROM t",
    ):
        ours.run(sql)
        seen[snapshots(ours)] = ours.run("SELECT rowid, id, v FROM t ORDER BY ALL")
    assert writes.lake.catalog("swanlake").check() == []
    for again in ("", "CALL ducklake_flush_inlined_data('swanlake')"):
        if again:
            other_program.execute(again)
        for snapshot, rows in seen.items():
            sql = f"SELECT rowid, id, v FROM {table} AT (VERSION => {snapshot}) ORDER BY ALL"
            assert (again, other_program.execute(sql).fetchall()) == (again, rows or [])
            assert (again, ours.run(sql)) == (again, rows)


def test_rows_keep_their_ids(ours: Ours, schema: str) -> None:
    ours.run("CREATE TABLE t (id BIGINT, v BIGINT)")
    ours.run(f"INSERT INTO t {_INITIAL}")
    for sql in ("UPDATE t SET v = 1 WHERE id = 2", "UPDATE t SET v = 2"):
        ours.run(sql)
    ours.run("INSERT INTO t VALUES (9, 9)")
    kept = ours.run("SELECT rowid, id FROM t WHERE id < 9 ORDER BY ALL")
    assert kept == [(number, number) for number in range(5)]
    changes = f"ducklake_table_changes('swanlake', '{schema}', 't', 0, {snapshots(ours)})"
    new = f"SELECT count(*) FROM {changes} WHERE change_type = 'update_postimage'"
    assert ours.run(new) == [(6,)]


def test_inlined_rows_are_changed_natively(writes: Writes, ours: Ours, schema: str) -> None:
    set_inline_limit(ours, schema, 10)
    ours.run("CREATE TABLE t (id BIGINT NOT NULL, v BIGINT)")
    for first in (0, 10):
        ours.run(f"INSERT INTO t SELECT range, 0 FROM range({first}, {first} + 10)")
    with writes.counted() as counted:
        assert ours.run("UPDATE t SET v = id + 1 WHERE id < 10") == 10
        assert ours.run("UPDATE t x SET v = x.v * 2 WHERE x.id = 3") == 1
        assert ours.run("UPDATE t SET v = 1 WHERE id = -1") is None
        assert ours.run("DELETE FROM t WHERE id >= 4") == 16
    assert counted == writes.expected(4)
    assert ours.run("FROM t ORDER BY id") == [(0, 1), (1, 2), (2, 3), (3, 8)]


@pytest.mark.parametrize(
    ("sql", "changed"),
    [
        ("UPDATE t SET v = 1", 20),  # more rows than an INSERT inlines
        ("UPDATE t SET d = 'infinity' WHERE id = 1", 1),
        ("UPDATE t SET v = (SELECT max(id) FROM t) WHERE id = 1", 1),
        ("UPDATE t SET v = rowid WHERE id = 1", 1),
        ("DELETE FROM t WHERE id IN (SELECT id FROM t WHERE id < 3)", 3),
    ],
)
def test_changes_that_the_metadata_cannot_hold_are_left_to_the_extension(
    writes: Writes, ours: Ours, schema: str, sql: str, changed: int
) -> None:
    set_inline_limit(ours, schema, 10)
    ours.run("CREATE TABLE t (id BIGINT, v BIGINT, d DATE)")
    for first in (0, 10):
        ours.run(f"INSERT INTO t SELECT range, 0, NULL FROM range({first}, {first} + 10)")
    with writes.counted() as counted:
        assert ours.run(sql) == changed
    assert counted == writes.expected(0, 1)


def test_rows_in_files_are_left_to_the_extension(writes: Writes, ours: Ours, schema: str) -> None:
    ours.run("CREATE TABLE t AS SELECT range AS id, 0 AS v FROM range(100)")
    with writes.counted() as counted:
        assert ours.run("UPDATE t SET v = 1 WHERE id < 10") == 10
        assert ours.run("DELETE FROM t WHERE v = 1") == 10
    assert counted == writes.expected(0, 2)
    set_inline_limit(ours, schema, 10)
    ours.run("INSERT INTO t VALUES (100, 0)")
    with writes.counted() as counted:
        assert ours.run("DELETE FROM t WHERE id = 100") == 1
        assert ours.run("DELETE FROM t WHERE id = 99") == 1
    assert counted == writes.expected(0, 2)
    assert ours.run("SELECT count(*), sum(v)::BIGINT FROM t") == [(89, 0)]


def test_parameters(writes: Writes, ours: Ours, schema: str) -> None:
    set_inline_limit(ours, schema, 10)
    ours.run("CREATE TABLE t (id BIGINT, v BIGINT, s VARCHAR)")
    ours.run("INSERT INTO t VALUES (1, 0, 'a'), (2, 0, 'b')")
    with writes.counted() as counted:
        assert ours.run("UPDATE t SET s = ?, v = ? + id WHERE id = ?", ["x", 5, 1]) == 1
        assert ours.run("UPDATE t SET s = $2 WHERE id = $1", [2, "y"]) == 1
        assert ours.run("DELETE FROM t WHERE s = ?", ["missing"]) is None
    assert counted == writes.expected(3, 0, 0)
    assert ours.run("FROM t ORDER BY id") == [(1, 6, "x"), (2, 0, "y")]


@pytest.mark.parametrize("inline_limit", [0, 10], ids=["files", "metadata"])
def test_change_feed_lists_each_deleted_row_once(
    deployment: Deployment, tmp_path: Path, inline_limit: int
) -> None:
    catalog = deployment.new_catalog()
    session = catalog.session()
    with closing(Stock(tmp_path)) as stock:
        stock.run("USE swanlake")
        feeds = [
            change_feed(run, name, inline_limit)
            for run, name in ((session, catalog.name), (stock.run, "swanlake"))
        ]
    assert feeds[0] == feeds[1]
    both = feeds[0]["changes", -1, 0]
    assert [(snapshot, i) for snapshot, _, i, _ in both] == [(-1, 0), (0, 1)]
    assert {kind for *_, kind in both} == {"delete"}
    catalog.assert_sound("t")


def change_feed(
    run: Callable[[str], Any], catalog: str, inline_limit: int
) -> dict[tuple[str, int, int], list[Any]]:
    """The changes and deletions of a table by first and last snapshot; the newest one counts as 0.

    The last two snapshots delete a row each.
    """
    run(f"CALL {catalog}.set_option('data_inlining_row_limit', {inline_limit})")
    run("CREATE TABLE t AS SELECT range::INT i FROM range(3)")
    for number in (0, 1):
        run(f"DELETE FROM t WHERE i = {number}")
    ((newest,),) = run(f"SELECT max(snapshot_id) FROM ducklake_snapshots('{catalog}')")
    feed = {}
    for first, last in combinations_with_replacement((-2, -1, 0), 2):
        for function, more in (("changes", ", change_type"), ("deletions", "")):
            rows = run(
                f"SELECT snapshot_id - {newest}, rowid, i{more} FROM ducklake_table_{function}("
                f"'{catalog}', 'main', 't', {newest + first}, {newest + last}) ORDER BY ALL"
            )
            feed[function, first, last] = rows or []
    return feed


# ---- concurrency ---------------------------------------------------------------------------------


def test_change_applies_to_the_table_that_has_the_name_now(
    ours: Ours, other_program: duckdb.DuckDBPyConnection, schema: str
) -> None:
    for inline_limit in (0, 10):
        set_inline_limit(ours, schema, inline_limit)
        for table in ("x", "y"):
            ours.run(f"CREATE TABLE {table}{inline_limit} (id BIGINT, v VARCHAR)")
            ours.run(f"INSERT INTO {table}{inline_limit} VALUES (1, 'of {table}')")
        other_program.execute(f"USE swanlake.{schema}")
        other_program.execute(f"ALTER TABLE x{inline_limit} RENAME TO old{inline_limit}")
        other_program.execute(f"ALTER TABLE y{inline_limit} RENAME TO x{inline_limit}")
        assert ours.run(f"INSERT INTO x{inline_limit} VALUES (2, 'new')") == 1
        assert ours.run(f"UPDATE x{inline_limit} SET v = 'changed' WHERE id = 1") == 1
        assert ours.run(f"FROM x{inline_limit} ORDER BY id") == [(1, "changed"), (2, "new")]
        assert ours.run(f"FROM old{inline_limit}") == [(1, "of x")]


def test_deletes_of_both_kinds_keep_earlier_snapshots(
    ours: Ours, other_program: duckdb.DuckDBPyConnection, schema: str
) -> None:
    ours.run("CREATE TABLE t AS SELECT range AS id FROM range(30)")
    other_program.execute(f"USE swanlake.{schema}")
    seen: dict[int, Any] = {}
    for side, sql in (
        (ours, "DELETE FROM t WHERE id = 1"),
        (other_program, "DELETE FROM t WHERE id = 2"),
        (ours, "DELETE FROM t WHERE id = 3"),
        (other_program, "DELETE FROM t WHERE id = 4"),
        (ours, "DELETE FROM t WHERE id BETWEEN 5 AND 20"),
    ):
        side.run(sql) if isinstance(side, Ours) else side.execute(sql)
        seen[snapshots(ours)] = ours.run("SELECT id FROM t ORDER BY id")
    other_program.execute("CALL ducklake_flush_inlined_data('swanlake')")
    for snapshot, rows in seen.items():
        sql = f"SELECT id FROM swanlake.{schema}.t AT (VERSION => {snapshot}) ORDER BY id"
        assert (snapshot, ours.run(sql)) == (snapshot, rows)


def test_internal_names_are_not_visible_to_statements(
    ours: Ours, stock: Stock, schema: str
) -> None:
    same(ours, stock, "CREATE TABLE t (id BIGINT, v BIGINT)")
    same(ours, stock, "INSERT INTO t VALUES (1, 1)")
    for name in ("value_0", "__swanlake_1"):
        assert same(ours, stock, f"UPDATE t SET v = 2 WHERE {name} = 1")[0] == "BINDER_ERROR"
