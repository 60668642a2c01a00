"""The last snapshot that a session committed, and the message of a commit."""

from __future__ import annotations

import pytest

from tests.integration.writes.both_sides import Ours, Stock, Writes, same, snapshots

CALLS = [
    "FROM ducklake_last_committed_snapshot('swanlake')",
    "FROM swanlake.last_committed_snapshot()",
    "FROM last_committed_snapshot()",
    "CALL ducklake_last_committed_snapshot('swanlake')",
    "CALL swanlake.last_committed_snapshot()",
    "SELECT x.id FROM swanlake.last_committed_snapshot() AS x WHERE x.id > 0",
]
MESSAGE = "CALL swanlake.set_commit_message('swan', 'it''s a message', extra_info => '{\"a\": 1}')"
INFORMATION = (
    "SELECT author, commit_message, commit_extra_info FROM ducklake_snapshots('swanlake') "
    "ORDER BY snapshot_id DESC LIMIT 1"
)


@pytest.mark.parametrize("call", CALLS)
def test_last_commit_is_that_of_the_session(
    schema: str, ours: Ours, writes: Writes, call: str
) -> None:
    other = Ours(writes.server)
    writing = [
        "CREATE TABLE t (i INTEGER)",
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET i = i + 1 FROM (SELECT 1)",
        "BEGIN; INSERT INTO t VALUES (2); DELETE FROM t WHERE i = 2; COMMIT",
        "DROP TABLE t",
    ]
    for sql in writing:
        ours.run(sql)
        committed = snapshots(ours)
        assert ours.run(call) == [(committed,)], sql
        other.run(f"CREATE TABLE swanlake.{schema}.o AS SELECT 1; DROP TABLE swanlake.{schema}.o")
        assert ours.run(call) == [(committed,)], sql
        assert other.run(call) == [(committed + 2,)], sql
    other.close()


@pytest.mark.parametrize("call", ["FROM", "CALL"])
def test_last_commit_of_a_bound_name(schema: str, ours: Ours, call: str) -> None:
    ours.run("CREATE TABLE t (i INTEGER)")
    query = f"{call} ducklake_last_committed_snapshot(?)"
    for name in ("swanlake", "SwanLake"):
        assert ours.run(query, [name]) == [(snapshots(ours),)]
    assert ours.run(query, ["missing"])[0] == "INVALID_INPUT_ERROR"


def test_session_without_a_commit_has_none(writes: Writes) -> None:
    new = Ours(writes.server)
    assert new.run(CALLS[0]) == [(None,)]
    new.run("BEGIN; CREATE TABLE swanlake.main.undone (i INTEGER); ROLLBACK")
    assert new.run(CALLS[0]) == [(None,)]
    new.close()


def test_message_is_that_of_a_transaction(schema: str, ours: Ours, stock: Stock) -> None:
    for sql in ("CREATE TABLE t (i INTEGER)", MESSAGE, "INSERT INTO t VALUES (1)"):
        same(ours, stock, sql)
    assert same(ours, stock, INFORMATION) == [(None, None, None)]  # its transaction ended before
    for sql in ("BEGIN", MESSAGE, "INSERT INTO t VALUES (2)", "COMMIT"):
        same(ours, stock, sql)
    assert same(ours, stock, INFORMATION) == [("swan", "it's a message", '{"a": 1}')]
    same(ours, stock, "INSERT INTO t VALUES (3)")
    assert same(ours, stock, INFORMATION) == [(None, None, None)]


def test_required_message_is_required_of_every_statement(
    schema: str, ours: Ours, stock: Stock
) -> None:
    option = "CALL swanlake.set_option('require_commit_message', {})"
    setup = ("CREATE TABLE t (i INTEGER)", "INSERT INTO t VALUES (1)", option.format("true"))
    for sql in setup:
        same(ours, stock, sql)
    try:
        for sql in (
            "INSERT INTO t VALUES (2)",
            "INSERT INTO t SELECT 3",
            "UPDATE t SET i = 4",
            "DELETE FROM t",
            "CREATE TABLE u (i INTEGER)",
            "CREATE TABLE u AS SELECT 1 AS i",
        ):
            assert same(ours, stock, sql)[0] == "TRANSACTIONCONTEXT_ERROR", sql
        for sql in ("BEGIN", MESSAGE, "INSERT INTO t VALUES (2)", "COMMIT"):
            same(ours, stock, sql)
    finally:
        same(ours, stock, option.format("false"))
    assert same(ours, stock, "FROM t ORDER BY i") == [(1,), (2,)]
