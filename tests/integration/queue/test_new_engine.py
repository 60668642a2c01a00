"""A session's inserts keep their target after a fatal DuckDB error."""

from __future__ import annotations

import pyarrow as pa

from swanlake.protocol import messages
from tests.integration.test_self_heal import (  # noqa: F401 - fixtures
    Open,
    break_engine,
    open_flight,
    server,
)


def test_prepared_insert_keeps_its_table(open_flight: Open) -> None:  # noqa: F811
    breaker, producer = open_flight(), open_flight()
    producer.query("CREATE TABLE a (i INTEGER); CREATE TABLE b (i INTEGER)")
    request = messages.ActionCreatePreparedStatementRequest(
        query="INSERT INTO duckling_queue.a VALUES (?)"
    )
    handle = producer.action_result("CreatePreparedStatement", request).prepared_statement_handle
    command = messages.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
    producer.put(command, pa.table({"i": pa.array([1], pa.int32())}))
    break_engine(breaker)
    producer.execute("INSERT INTO duckling_queue.b VALUES (20)")
    producer.put(command, pa.table({"i": pa.array([2], pa.int32())}))
    producer.put(command, pa.table({"i": ["3"]}))
    producer.execute("INSERT INTO duckling_queue.a VALUES (4)")
    assert producer.query("FROM duckling_queue.a ORDER BY i")["i"].to_pylist() == [1, 2, 3, 4]
    assert producer.query("FROM duckling_queue.b")["i"].to_pylist() == [20]
