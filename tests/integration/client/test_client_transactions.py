"""What ends a client's transaction, and what does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import swanlake
from swanlake.errors import OperationalError
from tests.queries import ENDLESS_ROWS
from tests.server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[swanlake.FlightSQLClient]:
    with swanlake.connect(server.url) as client:
        yield client


@pytest.fixture
def other(server: ServerProcess) -> Iterator[swanlake.FlightSQLClient]:
    with swanlake.connect(server.url) as client:
        yield client


def test_closing_a_result_early_does_not_end_the_transaction(
    client: swanlake.FlightSQLClient,
) -> None:
    client.execute("CREATE TABLE closed_early (i INTEGER)")
    with client.transaction():
        client.update("INSERT INTO closed_early VALUES (1)")
        for _ in range(3):
            with client.stream(ENDLESS_ROWS) as stream:
                assert stream.read() is not None
        client.update("INSERT INTO closed_early VALUES (2)")
    assert client.query("SELECT count(*) FROM closed_early").scalar() == 2


def test_rollback_after_failed_commit_recovers(
    client: swanlake.FlightSQLClient, other: swanlake.FlightSQLClient
) -> None:
    client.execute("CREATE TABLE both_changed AS SELECT 1 AS i")
    client.begin_transaction()
    client.update("UPDATE both_changed SET i = 2")
    other.update("UPDATE both_changed SET i = 3")
    with pytest.raises(OperationalError):
        client.commit()
    client.rollback()
    assert not client.in_transaction
    assert client.query("FROM both_changed").rows() == [(3,)]


def test_block_with_failed_commit_leaves_no_transaction(
    client: swanlake.FlightSQLClient, other: swanlake.FlightSQLClient
) -> None:
    client.execute("CREATE TABLE block_changed AS SELECT 1 AS i")

    def both_change_it() -> None:
        with client.transaction():
            client.update("UPDATE block_changed SET i = 2")
            other.update("UPDATE block_changed SET i = 3")

    with pytest.raises(OperationalError):
        both_change_it()
    assert not client.in_transaction
    assert client.query("FROM block_changed").rows() == [(3,)]


def test_rollback_after_sql_ended_the_transaction(
    client: swanlake.FlightSQLClient,
) -> None:
    client.begin_transaction()
    client.execute("ROLLBACK")
    client.rollback()
    assert client.query("SELECT 1").scalar() == 1
