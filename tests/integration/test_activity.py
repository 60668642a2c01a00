"""What the server shows of running statements and sessions, and how an admin stops them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.access.identity import Identity, Role
from swanlake.config import Settings
from swanlake.errors import InvalidRequest, NotFound
from swanlake.protocol import messages
from swanlake.server.app import Server
from swanlake.sessions.activity import Activity
from tests.contenders import BackgroundCall, Session
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS
from tests.waiting import eventually

ADMIN = Identity("root", Role.ADMIN)
ANONYMOUS = Identity("anonymous", Role.READER)
OTHER = Identity("other", Role.WRITER)
#: The extension runs it, under the writer lock.
LONG_UPDATE = f"UPDATE t SET i = ({ENDLESS_QUERY})"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in this process; its callers are anonymous."""
    home: Path = tmp_path_factory.mktemp("activity") / "home"
    server = Server(Settings(home=home, port=0, pipeline="inline"))
    yield server
    server.stop(grace=0)


@pytest.fixture
def activity(server: Server) -> Activity:
    return server.registry.services.activity


@pytest.fixture
def open_session(server: Server) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def open_session(name: str = "") -> Session:
        opened.append(Session(server.url, name))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def wait_for_state(activity: Activity, query_id: str, state: str) -> None:
    eventually(
        lambda: (
            [one.state for one in activity.running(ADMIN) if one.query_id == query_id] == [state]
        )
    )


def assert_cancelled(call: BackgroundCall) -> None:
    assert isinstance(call.join().error, flight.FlightCancelledError), call.error


def test_finished_statement_has_its_rows_and_its_caller(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session("finished")
    session("SELECT * FROM range(5000)", x_swanlake_query_id="five-thousand")
    [one] = eventually(
        lambda: [one for one in activity.recent(ADMIN) if one.query_id == "five-thousand"]
    )
    assert (one.sql, one.kind, one.rows) == ("SELECT * FROM range(5000)", "SELECT", 5000)
    assert (one.outcome, one.error, one.may_change) == ("ok", None, False)
    assert (one.user, one.session_id) == ("anonymous", "finished")
    assert one.address.startswith("127.0.0.1:")
    assert one.started_at <= one.ended_at


def test_change_has_the_number_of_its_rows(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session()
    session("CREATE TABLE changed AS SELECT 1 AS i")
    inserts = {
        "INSERT INTO changed VALUES (1), (2)": 2,
        "INSERT INTO duckling_queue.changed VALUES (1), (2), (3)": 3,
    }
    for sql, rows in inserts.items():
        session(sql)
        one = next(one for one in activity.recent(ADMIN) if one.sql == sql)
        assert (one.kind, one.may_change, one.outcome, one.rows) == ("INSERT", True, "ok", rows)


def test_failed_statement_is_an_error_once(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session()
    with pytest.raises(pa.ArrowInvalid):
        session("SELECT no_such_column")
    errors = [one for one in activity.errors(ADMIN) if one.sql == "SELECT no_such_column"]
    assert [one.outcome for one in errors] == ["BINDER_ERROR"]


def test_executing_statement_is_shown_and_cancelled_by_an_admin(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session("busy")
    call = session.start(ENDLESS_QUERY, x_swanlake_query_id="endless")
    wait_for_state(activity, "endless", "executing")
    [one] = activity.running(ANONYMOUS)
    assert (one.sql, one.kind, one.session_id, one.rows) == (ENDLESS_QUERY, "SELECT", "busy", 0)
    assert activity.running(OTHER) == []
    with pytest.raises(NotFound):
        activity.cancel("endless", by=OTHER)
    eventually(lambda: any(one.was_running for one in activity.cancel("endless", by=ADMIN)))
    assert_cancelled(call)
    assert "cancelled by root" in str(call.error)
    error = activity.errors(ADMIN)[0]
    assert (error.query_id, error.outcome) == ("endless", "QUERY_CANCELLED")


def test_statement_that_waits_for_its_session_is_cancelled(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session()
    running = session.start(ENDLESS_QUERY, x_swanlake_query_id="first")
    wait_for_state(activity, "first", "executing")
    waiting = session.start("SELECT 1", x_swanlake_query_id="second")
    wait_for_state(activity, "second", "waiting for its session")
    activity.cancel("second", by=ADMIN)
    assert_cancelled(waiting)
    activity.cancel("first", by=ADMIN)
    assert_cancelled(running)


def test_statement_that_waits_for_the_commit_lock_is_cancelled(
    server: Server, activity: Activity, open_session: Callable[..., Session]
) -> None:
    holder, waiter = open_session(), open_session()
    holder("CREATE TABLE t AS SELECT 0::BIGINT AS i")
    running = holder.start(LONG_UPDATE, x_swanlake_query_id="holder")
    eventually(server.registry.services.lake.writers)
    waiting = waiter.start("INSERT INTO t VALUES (1)", x_swanlake_query_id="waiter")
    wait_for_state(activity, "waiter", "waiting for the commit lock of swanlake")
    activity.cancel("waiter", by=ADMIN)
    assert_cancelled(waiting)
    activity.cancel("holder", by=ADMIN)
    assert_cancelled(running)
    assert holder("FROM t") == [(0,)]


def test_statement_that_delivers_rows_is_cancelled(server: Server, activity: Activity) -> None:
    connection = FlightSql(server.url)
    reader = connection.fetch(connection.execute(ENDLESS_ROWS, x_swanlake_query_id="rows"))
    reader.read_chunk()
    wait_for_state(activity, "rows", "delivering")
    [one] = [one for one in activity.running(ADMIN) if one.query_id == "rows"]
    assert one.rows > 0
    activity.cancel("rows", by=ADMIN)

    def read_to_the_end() -> None:
        while True:
            reader.read_chunk()

    with pytest.raises(flight.FlightCancelledError):
        read_to_the_end()
    eventually(lambda: activity.errors(ADMIN)[0].query_id == "rows")
    connection.close()


def test_unread_result_is_shown_and_dropped(server: Server, activity: Activity) -> None:
    connection = FlightSql(server.url)
    info = connection.execute("SELECT 1", x_swanlake_query_id="unread")
    wait_for_state(activity, "unread", "queued result")
    assert [one.was_running for one in activity.cancel("unread", by=ANONYMOUS)] == [False]
    with pytest.raises(pa.ArrowKeyError, match="RESULT_NOT_FOUND"):
        connection.fetch(info)
    connection.close()


def test_sessions_tell_what_they_do(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session("shown")

    def shown() -> Any:
        return next(one for one in activity.sessions(ADMIN) if one.session_id == "shown")

    assert (shown().user, shown().state, shown().in_transaction) == ("anonymous", "idle", False)
    before = shown().statements
    session("BEGIN")
    session("SELECT 1")
    assert (shown().state, shown().in_transaction) == ("idle in transaction", True)
    assert shown().statements == before + 2
    assert activity.sessions(OTHER) == []


def test_admin_closes_a_session_with_all_its_statements(
    activity: Activity, open_session: Callable[..., Session]
) -> None:
    session = open_session("doomed")
    running = session.start(ENDLESS_QUERY, x_swanlake_query_id="doomed-1")
    wait_for_state(activity, "doomed-1", "executing")
    waiting = session.start("SELECT 1", x_swanlake_query_id="doomed-2")
    wait_for_state(activity, "doomed-2", "waiting for its session")
    with pytest.raises(NotFound):
        activity.close_session("doomed", by=OTHER)
    closed = activity.close_session("doomed", by=ADMIN)
    assert {one.query_id for one in closed} == {"doomed-1", "doomed-2"}
    assert_cancelled(running)
    assert waiting.join().error is not None  # cancelled, or its session is closed
    assert "doomed" not in {one.session_id for one in activity.sessions(ADMIN)}


def test_admin_names_the_user_if_several_have_the_session(
    server: Server, activity: Activity
) -> None:
    owners = [
        FlightSql(server.url, authorization=f"Bearer user:{user}", x_swanlake_session_id="both")
        for user in ("ann", "bob")
    ]
    for owner in owners:
        owner.query("SELECT 1")
    with pytest.raises(InvalidRequest, match="name the user"):
        activity.close_session("both", by=ADMIN)
    activity.close_session("both", by=ADMIN, user="ann")
    activity.close_session("both", by=Identity("bob", Role.READER))
    for owner in owners:
        owner.close()


def test_prepared_statement_is_listed_when_it_is_executed(
    server: Server, activity: Activity
) -> None:
    connection = FlightSql(server.url)
    sql = "SELECT 'prepared'"
    create = messages.ActionCreatePreparedStatementRequest(query=sql)
    handle = connection.action_result("CreatePreparedStatement", create).prepared_statement_handle
    assert sql not in {one.sql for one in activity.recent(ADMIN)}
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    connection.fetch(connection.info(command)).read_all()
    eventually(lambda: [one.sql for one in activity.recent(ADMIN)].count(sql) == 1)
    connection.close()
