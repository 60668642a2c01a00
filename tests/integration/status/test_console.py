"""The data of the console's pages, and what their buttons do, for each role."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.integration.status.console import Console
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS
from tests.server_process import ServerProcess
from tests.waiting import eventually

READER, WRITER = "reader/swanlake=read", "writer/swanlake=write"
STATIC = Path(__file__).parents[3] / "src/swanlake/status/console/static"
TOPICS = ("me", "server", "overview", "queue", "statements", "lake", "pipeline", "sql")


class RoleServer(ServerProcess):
    """Its callers have the role and the grants that their token says."""

    _program = ("-m", "tests.integration.access.role_server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("console") / "home"
    flags = ("--auth", "token", "--status", "on", "--status-port", "0")
    with RoleServer(home, *flags) as server:
        yield server
        assert "Traceback" not in server.log_text


@pytest.fixture
def console(server: ServerProcess) -> Iterator[Callable[..., Console]]:
    """Opens the console for a token; by default as an admin."""
    opened: list[Console] = []

    def open_console(token: str = "admin") -> Console:
        opened.append(Console(server.status_url, token))
        return opened[-1]

    yield open_console
    for each in opened:
        each.http.close()


@pytest.fixture
def admin(console: Callable[..., Console]) -> Console:
    return console()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[FlightSQLClient]:
    with FlightSQLClient(server.url, token="admin") as client:
        yield client


def run_in_thread(server: ServerProcess, sql: str, token: str = "admin") -> threading.Thread:
    """Runs a statement that another thread will cancel."""

    def run() -> None:
        with FlightSQLClient(server.url, token=token) as client:
            with pytest.raises(SwanLakeError):
                client.execute(sql)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# ---- pages -----------------------------------------------------------------------------------


def test_pages_and_their_files_are_served(admin: Console) -> None:
    for path in ("/", "/queue", "/statements", "/lake", "/pipeline", "/sql"):
        page = admin.http.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert 'type="module"' in page.text
    for file in STATIC.rglob("*.*"):
        served = admin.http.get(f"/static/{file.relative_to(STATIC)}")
        assert served.status_code == 200
        assert served.content == file.read_bytes()
        again = admin.http.get(
            f"/static/{file.relative_to(STATIC)}", headers={"if-none-match": served.headers["etag"]}
        )
        assert again.status_code == 304


def test_files_of_the_console_name_no_other_host() -> None:
    for file in STATIC.rglob("*.*"):
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file


def test_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page
    assert "style=" not in page
    assert " on" not in page.replace("xmlns", "").lower().split("<body>")[1].split("noscript")[0]
    assert page.count("<script") == page.count("<script src=")


def test_requests_without_credentials_are_refused(server: ServerProcess) -> None:
    stranger = Console(server.status_url)
    for path in (*(f"/api/{topic}" for topic in TOPICS), "/api/live?topic=queue"):
        assert stranger.http.get(path).status_code == 401
    assert stranger.post("call", procedure="duckling_queue_flush").status_code == 401
    assert stranger.run("SELECT 1").status_code == 401
    stranger.http.close()


@pytest.mark.parametrize("token", ["admin", READER, WRITER, "reader/nothing=read"])
def test_every_document_is_for_every_role(console: Callable[..., Console], token: str) -> None:
    caller = console(token)
    for topic in TOPICS:
        assert caller.get(topic)
    assert caller.get("me")["name"] == token


def test_unknown_topic_of_a_stream_is_refused(admin: Console) -> None:
    assert admin.http.get("/api/live?topic=secrets").status_code == 404
    assert admin.http.get("/api/secrets").status_code == 404


def test_stream_sends_a_document_when_it_changes(admin: Console, client: FlightSQLClient) -> None:
    client.execute("CREATE OR REPLACE TABLE live (i INTEGER)")
    with admin.live("queue") as events:
        name, document = next(events)
        assert name == "document"
        assert not any(table["name"].endswith(".live") for table in document["tables"])
        client.execute("INSERT INTO duckling_queue.live VALUES (1), (2)")
        for name, document in events:
            rows = [each["rows"] for each in document.get("tables", ()) if "live" in each["name"]]
            if name == "document" and rows == [2]:
                break


def test_stream_tells_a_failure_and_goes_on(admin: Console, client: FlightSQLClient) -> None:
    client.execute("DROP TABLE IF EXISTS later")
    with admin.live("lake", catalog="swanlake", schema="main", table="later") as events:
        name, failure = next(each for each in events if each[0] != "server")
        assert (name, failure["error"]) == ("failure", "TABLE_NOT_FOUND")
        client.execute("CREATE TABLE later (i INTEGER)")
        document = next(data for name, data in events if name == "document")
        assert document["table"]["name"] == "later"


# ---- queue -----------------------------------------------------------------------------------


def test_queue_is_flushed_paused_and_resumed(admin: Console, client: FlightSQLClient) -> None:
    client.execute("CREATE OR REPLACE TABLE q (i INTEGER)")
    client.execute("INSERT INTO duckling_queue.q VALUES (1), (2)")

    def queued() -> Any:
        return [each for each in admin.get("queue")["tables"] if each["name"] == "swanlake.main.q"]

    [table] = eventually(queued)
    assert (table["rows"], table["state"], table["may_write"]) == (2, "open", True)
    admin.call("duckling_queue_pause")
    eventually(lambda: admin.get("queue")["paused"])
    refused = admin.post("call", procedure="duckling_queue_flush", arguments={})
    assert (refused.status_code, refused.json()["error"]) == (503, "QUEUE_PAUSED")
    admin.call("duckling_queue_resume")
    [flushed] = admin.call("duckling_queue_flush", table=table["sql_name"])
    assert (flushed["table_name"], flushed["rows"]) == ("q", 2)
    eventually(lambda: not queued())
    jobs = eventually(lambda: admin.get("pipeline")["jobs"])
    [job] = [each for each in jobs if each["table"] == "swanlake.main.q"]
    assert (job["job"], job["state"], job["rows"], job["files"]) == ("flush", "done", 2, 1)


def test_dead_letter_is_shown_replayed_and_discarded(
    admin: Console, client: FlightSQLClient, console: Callable[..., Console]
) -> None:
    def letters() -> Any:
        found = admin.get("queue")["letters"]
        return [each for each in found if each["name"] == "swanlake.main.gone"]

    for _ in range(2):
        client.execute("CREATE TABLE gone (i BIGINT, s VARCHAR)")
        client.execute(
            "INSERT INTO duckling_queue.gone VALUES (7, 'seven'), (9007199254740993, NULL)"
        )
        client.execute("DROP TABLE gone")
        admin.call("duckling_queue_flush")
    eventually(lambda: len(letters()) == 2)
    first, second = letters()
    assert "does not exist" in first["reason"]
    shown = admin.get("queue/rows", segment=first["segment_id"])
    assert [column["name"] for column in shown["columns"]] == ["i", "s"]
    assert shown["rows"] == [[7, "seven"], ["9007199254740993", None]]
    hidden = console("reader/other=read").http.get(
        "/api/queue/rows", params={"segment": first["segment_id"]}
    )
    assert hidden.status_code == 404
    client.execute("CREATE TABLE gone (i BIGINT, s VARCHAR)")
    [replayed] = admin.call("duckling_queue_replay", segment=first["segment_id"])
    assert replayed["refused"] is None
    admin.call("duckling_queue_discard", segment=second["segment_id"])
    eventually(lambda: letters() == [])
    admin.call("duckling_queue_flush")
    assert client.execute("FROM gone").table.num_rows == 2


# ---- statements and sessions -----------------------------------------------------------------


def test_running_statement_is_shown_and_cancelled(admin: Console, server: ServerProcess) -> None:
    thread = run_in_thread(server, ENDLESS_QUERY)

    def running() -> Any:
        return [each for each in admin.get("statements")["running"] if each["sql"] == ENDLESS_QUERY]

    [statement] = eventually(running)
    assert statement["state"] == "executing"
    answer = admin.post("statements/cancel", query_id=statement["query_id"])
    assert (answer.status_code, answer.json()) == (200, {"was_running": True})
    thread.join()
    eventually(lambda: not running())
    errors = admin.get("statements")["errors"]
    [error] = [each for each in errors if each["query_id"] == statement["query_id"]]
    assert error["outcome"] == "QUERY_CANCELLED"
    assert admin.post("statements/cancel", query_id="unknown").status_code == 404


def test_session_is_shown_and_killed(admin: Console, server: ServerProcess) -> None:
    thread = run_in_thread(server, ENDLESS_QUERY, token=WRITER)

    def sessions() -> Any:
        return [each for each in admin.get("statements")["sessions"] if each["user"] == WRITER]

    [session] = eventually(lambda: [s for s in sessions() if s["state"] == "executing"])
    answer = admin.post("sessions/close", session_id=session["session_id"], user=WRITER)
    assert answer.status_code == 200
    thread.join()
    eventually(lambda: session["session_id"] not in {s["session_id"] for s in sessions()})


def test_others_see_and_stop_only_their_own_statements(
    console: Callable[..., Console], server: ServerProcess
) -> None:
    thread = run_in_thread(server, ENDLESS_QUERY, token=WRITER)
    writer, reader = console(WRITER), console(READER)
    [statement] = eventually(lambda: writer.get("statements")["running"])
    assert reader.get("statements")["running"] == []
    assert {each["user"] for each in reader.get("statements")["sessions"]} <= {READER}
    answer = reader.post("statements/cancel", query_id=statement["query_id"])
    assert answer.status_code == 404
    assert writer.post("statements/cancel", query_id=statement["query_id"]).status_code == 200
    thread.join()


# ---- roles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "procedure"),
    [
        (READER, "duckling_queue_flush"),
        (READER, "duckling_queue_pause"),
        (WRITER, "duckling_queue_pause"),
        (WRITER, "duckling_queue_resume"),
        (WRITER, "duckling_queue_replay"),
        (WRITER, "swanlake_compact"),
    ],
)
def test_change_of_a_higher_role_is_refused(
    console: Callable[..., Console], token: str, procedure: str
) -> None:
    answer = console(token).post("call", procedure=procedure, arguments={})
    assert (answer.status_code, answer.json()["error"]) == (403, "ACCESS_DENIED")


def test_only_procedures_of_buttons_are_called(admin: Console) -> None:
    for body in (
        {"procedure": "swanlake_drop_catalog", "arguments": {"name": "swanlake"}},
        {"procedure": "duckling_queue_flush", "arguments": {"table": 7}},
        {"procedure": "duckling_queue_flush", "arguments": {"x) --": "t"}},
        {"procedure": 7},
    ):
        assert admin.post("call", **body).status_code == 400


def test_change_without_the_header_of_a_page_is_refused(admin: Console) -> None:
    for path in ("call", "statements/cancel", "sessions/close", "sql/run"):
        assert admin.http.post(f"/api/{path}", json={}).status_code == 403


def test_catalogs_and_tables_of_others_are_hidden(
    admin: Console, console: Callable[..., Console], client: FlightSQLClient
) -> None:
    client.execute("CALL swanlake_create_catalog('hidden')")
    client.execute("CREATE TABLE hidden.main.t (i INTEGER)")
    eventually(lambda: "hidden" in {each["name"] for each in admin.get("sql")["catalogs"]})
    reader = console(READER)
    assert [each["name"] for each in reader.get("lake")["catalogs"]] == ["swanlake"]
    for path in ("lake", "schema"):
        refused = reader.http.get(f"/api/{path}", params={"catalog": "hidden"})
        assert (refused.status_code, refused.json()["error"]) == (403, "ACCESS_DENIED")
    assert reader.get("lake")["catalog"]["maintenance"] is None


# ---- lake ------------------------------------------------------------------------------------


def test_lake_shows_catalogs_forks_tables_and_snapshots(
    admin: Console, client: FlightSQLClient
) -> None:
    client.execute("CREATE SCHEMA IF NOT EXISTS shop")
    client.execute(
        "CREATE TABLE shop.sales (i INTEGER NOT NULL DEFAULT 3, s STRUCT(a DATE, b VARCHAR[]))"
    )
    client.execute("ALTER TABLE shop.sales SET PARTITIONED BY (bucket(4, i))")
    client.execute("CREATE VIEW shop.v AS FROM shop.sales")
    for _ in range(3):
        client.execute("INSERT INTO shop.sales SELECT i, NULL FROM range(1000) r(i)")
    client.execute("CALL swanlake_fork_catalog('swanlake', 'forked')")

    def document() -> Any:
        found = admin.get("lake", catalog="swanlake", schema="shop", table="sales")
        return found if any(each["name"] == "forked" for each in found["catalogs"]) else None

    found = eventually(document)
    [fork] = [each for each in found["catalogs"] if each["name"] == "forked"]
    assert fork["parent"] == "swanlake"
    [table] = [each for each in found["catalog"]["tables"] if each["name"] == "sales"]
    assert (table["schema"], table["live_rows"]) == ("shop", 3000)
    assert table["files"] == sum(each["files"] for each in found["table"]["sizes"]) > 3
    assert {"schema": "shop", "name": "v"} in found["catalog"]["views"]
    assert "inserted into shop.sales" in found["catalog"]["timeline"][0]["changes"]
    columns = {each["path"]: each for each in found["table"]["columns"]}
    assert (columns["i"]["type"], columns["i"]["nullable"]) == ("INTEGER", False)
    assert (columns["i"]["default"], columns["i"]["partition"]) == ("3", "bucket(4)")
    assert (columns["s.a"]["type"], columns["s.b.element"]["depth"]) == ("DATE", 2)
    assert found["table"]["partition_keys"] == ["bucket(4) of i"]
    assert admin.http.get("/api/lake?catalog=nowhere").status_code == 404
    assert "tables" in admin.get("schema")
    schema = admin.get("schema", catalog="swanlake", schema="shop", table="sales")
    assert [each["sql_name"] for each in schema["columns"]][:2] == ["i", "s"]


def test_compaction_is_planned_and_done(admin: Console, client: FlightSQLClient) -> None:
    client.execute('CREATE TABLE "Small files" (i INTEGER)')
    for _ in range(4):
        client.execute('INSERT INTO "Small files" SELECT i FROM range(5000) r(i)')
    found = admin.get("lake", catalog="swanlake", schema="main", table="Small files")["table"]
    assert found["sql_name"] == 'swanlake.main."Small files"'
    [step] = admin.call("swanlake_compact", table=found["sql_name"], dry_run=True)
    assert (step["action"], step["files"], step["rows"], step["dry_run"]) == (
        "merge",
        4,
        20000,
        True,
    )
    [done] = admin.call("swanlake_compact", table=found["sql_name"])
    assert (done["files"], done["files_made"]) == (4, 1)

    def entry() -> Any:
        history = admin.get("lake", catalog="swanlake")["catalog"]["maintenance"]
        return [each for each in history if each["table"] == "main.Small files"]

    [job] = eventually(entry)
    assert (job["job"], job["outcome"]) == ("compact", "done")
    assert "files merged 4" in job["report"]


def test_writer_at_the_commit_lock_is_shown(
    admin: Console, client: FlightSQLClient, server: ServerProcess
) -> None:
    client.execute("CREATE TABLE locked AS SELECT 0::BIGINT AS i")
    # The extension commits it, so the server locks the catalog for it.
    sql = f"UPDATE locked SET i = ({ENDLESS_QUERY})"
    thread = run_in_thread(server, sql)
    lock = eventually(lambda: admin.get("lake", catalog="swanlake")["catalog"]["lock"])
    assert lock["holder"]["seconds"] >= 0
    [running] = [each for each in admin.get("statements")["running"] if each["sql"] == sql]
    admin.post("statements/cancel", query_id=running["query_id"])
    thread.join()


# ---- SQL -------------------------------------------------------------------------------------


def test_statement_gives_rows_with_types(admin: Console) -> None:
    answer = admin.rows(
        "SELECT 1 AS i, 2.50::DECIMAL(5,2) AS d, 'x' AS s, NULL AS n, [1, 2] AS l, "
        "{'a': DATE '2026-01-02'} AS t, 'NaN'::DOUBLE AS f, 9007199254740993 AS b, "
        "'\\xAB'::BLOB AS o"
    )
    assert answer["rows"] == [
        [1, "2.50", "x", None, "[1, 2]", '{"a": "2026-01-02"}', "nan", "9007199254740993", "ab"]
    ]
    types = {column["name"]: (column["type"], column["numeric"]) for column in answer["columns"]}
    assert types["i"] == ("INTEGER", True)
    assert types["d"] == ("DECIMAL(5,2)", True)
    assert types["s"] == ("VARCHAR", False)
    assert answer["is_complete"]


def test_statements_of_a_page_share_a_session(
    admin: Console, console: Callable[..., Console]
) -> None:
    assert admin.rows("CREATE TEMP TABLE mine AS SELECT 42 AS i")["affected"] is not None
    assert admin.rows("BEGIN")["in_transaction"]
    assert admin.rows("FROM mine")["rows"] == [[42]]
    assert not admin.rows("ROLLBACK")["in_transaction"]
    other = console().run("FROM mine")
    assert (other.status_code, other.json()["error"]) == (404, "CATALOG_ERROR")


def test_affected_rows_and_errors_are_told(admin: Console) -> None:
    admin.rows("CREATE OR REPLACE TABLE changed (i INTEGER)")
    answer = admin.rows("INSERT INTO changed SELECT i FROM range(12) r(i)")
    assert (answer["affected"], answer["columns"], answer["result_id"]) == (12, [], None)
    failed = admin.run("SELECT 1 +")
    assert (failed.status_code, failed.json()["error"]) == (400, "PARSER_ERROR")


@pytest.mark.parametrize(
    "body", [{"limit": 0}, {"limit": "9"}, {"limit": 10**9}, {"session": "a b"}, {"sql": ""}]
)
def test_wrong_request_for_a_statement_is_refused(admin: Console, body: dict[str, Any]) -> None:
    more: dict[str, Any] = {"sql": "SELECT 1", "limit": 10, **body}
    assert admin.run(**more).status_code == 400


@pytest.mark.parametrize(
    "body",
    ["[" * 60_000, "NaN-", '{"sql": "\\udc00"}'],
)
def test_body_that_is_no_json_in_utf8_is_refused(admin: Console, body: str) -> None:
    headers = {"x-swanlake-request": "1"}
    refused = admin.http.post("/api/sql/run", content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]) == (400, "INVALID_REQUEST")
    assert "JSON" in refused.json()["message"]
    admin.rows("FROM swanlake_recent_queries()")
    admin.rows("FROM swanlake_audit()")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("DATE 'infinity'", "infinity"),
        ("TIMESTAMP '-infinity'", "-infinity"),
        ("TIMESTAMPTZ '20000-01-01 00:00:00+00'", "20000-01-01 00:00:00.000000Z"),
        ("[INTERVAL 1 DAY]", "[[0, 1, 0]]"),
        ("{'d': DATE '290000-01-01'}", "<value out of range>"),
    ],
)
def test_value_that_python_or_parquet_lacks_is_shown_and_downloaded(
    admin: Console, value: str, shown: str
) -> None:
    answer = admin.rows(f"SELECT {value} AS v")
    assert answer["rows"] == [[shown]]
    for format in ("csv", "parquet"):
        parameters = {"result": answer["result_id"], "format": format}
        assert admin.http.get("/api/sql/download", params=parameters).content


def test_page_gets_a_part_of_rows_with_large_values(admin: Console) -> None:
    answer = admin.rows("SELECT repeat('x', 20000) FROM range(9000)", limit=9000)
    assert 0 < len(answer["rows"]) < 9000
    assert not answer["is_complete"]
    path = "/api/sql/download"
    file = admin.http.get(path, params={"result": answer["result_id"], "format": "csv"})
    assert len(file.content.splitlines()) == 9001


def test_reader_cannot_write_and_sees_only_its_catalogs(console: Callable[..., Console]) -> None:
    reader = console(READER)
    refused = reader.run("CREATE TABLE t_of_reader (i INTEGER)")
    assert refused.status_code == 403
    assert reader.rows("SELECT 1 AS i")["rows"] == [[1]]


def test_statement_of_a_page_is_cancelled(admin: Console) -> None:
    query_id = str(uuid4())
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(admin.run(ENDLESS_QUERY, query_id=query_id))
    )
    thread.start()
    eventually(lambda: admin.post("statements/cancel", query_id=query_id).status_code == 200)
    thread.join()
    [answer] = answers
    assert (answer.status_code, answer.json()["error"]) == (409, "QUERY_CANCELLED")


def test_closing_the_page_stops_its_statement(admin: Console, server: ServerProcess) -> None:
    sql = f"{ENDLESS_QUERY} AND x > 5"
    with httpx.Client(base_url=server.status_url, timeout=1.0) as hasty:
        hasty.headers["authorization"] = "Bearer admin"
        body = {"sql": sql, "session": "hasty", "query_id": str(uuid4()), "limit": 5}
        with pytest.raises(httpx.ReadTimeout):
            hasty.post("/api/sql/run", json=body, headers={"x-swanlake-request": "1"})
    eventually(lambda: sql not in {each["sql"] for each in admin.get("statements")["running"]})


def test_repeated_request_does_not_run_its_statement_again(admin: Console) -> None:
    admin.run("CREATE TABLE once (i INTEGER)")
    body = {"sql": "INSERT INTO once VALUES (1)", "session": "again", "query_id": str(uuid4())}
    answers = [admin.post("sql/run", **body, limit=5).status_code for _ in range(2)]
    assert answers == [200, 400]
    assert admin.run("SELECT count(*) FROM once").json()["rows"] == [[1]]


def test_download_has_all_rows_and_the_statement_runs_once(admin: Console) -> None:
    admin.rows("CREATE OR REPLACE TEMP SEQUENCE runs")
    answer = admin.rows("SELECT nextval('runs') AS n, i FROM range(300000) r(i)", limit=10)
    assert len(answer["rows"]) == 10
    assert not answer["is_complete"]
    target = {"result": answer["result_id"], "format": "csv"}
    response = admin.http.get("/api/sql/download", params=target)
    assert response.headers["content-disposition"] == 'attachment; filename="result.csv"'
    table = csv.read_csv(pa.py_buffer(response.content))
    assert sorted(table["i"].to_pylist()) == list(range(300000))
    assert sorted(table["n"].to_pylist()) == list(range(1, 300001))
    again = admin.http.get("/api/sql/download", params=target)
    assert (again.status_code, again.json()["error"]) == (404, "RESULT_NOT_FOUND")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_whole_result_is_downloaded_more_than_once(admin: Console, format: str) -> None:
    sql = (
        "SELECT i, [i] AS l, i::DECIMAL(9,2) AS d, INTERVAL 1 DAY AS v, 'ü' AS s FROM range(5) r(i)"
    )
    target = {"result": admin.rows(sql, limit=2)["result_id"], "format": format}
    for _ in range(2):
        content = admin.http.get("/api/sql/download", params=target).content
        if format == "csv":
            table = csv.read_csv(pa.py_buffer(content))
            assert table["l"].to_pylist() == [f"[{i}]" for i in range(5)]
        else:
            table = parquet.read_table(pa.BufferReader(content))
            assert table["l"].to_pylist() == [[i] for i in range(5)]
        assert table["s"].to_pylist() == ["ü"] * 5


def test_endless_result_is_downloaded_in_pieces(admin: Console) -> None:
    answer = admin.rows(ENDLESS_ROWS, limit=1)
    target = {"result": answer["result_id"], "format": "csv"}
    with admin.http.stream("GET", "/api/sql/download", params=target) as response:
        pieces = response.iter_bytes()
        assert sum(len(next(pieces)) for _ in range(20)) > 1_000_000
    eventually(
        lambda: ENDLESS_ROWS not in {each["sql"] for each in admin.get("statements")["running"]}
    )


def test_result_belongs_to_its_caller_and_is_replaced_by_the_next(
    admin: Console, console: Callable[..., Console]
) -> None:
    first = admin.rows(ENDLESS_ROWS, limit=1)["result_id"]
    target = {"result": first, "format": "csv"}
    assert console(READER).http.get("/api/sql/download", params=target).status_code == 404
    admin.rows("SELECT 1 AS i")
    assert admin.http.get("/api/sql/download", params=target).status_code == 404
    assert admin.http.get("/api/sql/download?result=x&format=xls").status_code == 400
    eventually(
        lambda: ENDLESS_ROWS not in {each["sql"] for each in admin.get("statements")["running"]}
    )


# ---- a busy server ---------------------------------------------------------------------------


def test_pages_answer_while_the_engine_is_busy(admin: Console, server: ServerProcess) -> None:
    threads = [run_in_thread(server, f"{ENDLESS_QUERY} AND x > {n}") for n in range(6)]
    eventually(lambda: len(admin.get("statements")["running"]) >= 6)
    for topic in TOPICS:
        assert admin.get(topic)
    for statement in admin.get("statements")["running"]:
        admin.post("statements/cancel", query_id=statement["query_id"])
    for thread in threads:
        thread.join()
