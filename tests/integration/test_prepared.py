"""Prepared statements and bound parameters through stock ADBC, and handles through plain Flight."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time
from typing import Any

import adbc_driver_manager
import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import encode, messages
from tests.flight import FlightSql
from tests.queries import rows


def affected_rows(cursor: Any, sql: str, parameters: Any) -> int:
    cursor.executemany(sql, parameters)
    return int(cursor.rowcount)


# ---- description without execution ---------------------------------------------------------------


def test_prepare_returns_the_parameter_names(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE described (i INTEGER, s VARCHAR)")
    assert cursor.adbc_prepare("SELECT * FROM described WHERE i = ? AND s = ?").names == ["1", "2"]
    assert cursor.adbc_prepare("SELECT $b, $a, $b").names == ["a", "b"]
    assert cursor.adbc_prepare("INSERT INTO described VALUES ($2, $1)").names == ["1", "2"]
    assert cursor.adbc_prepare("SELECT 1").names == []


def test_execute_schema_returns_the_result_columns(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE shaped (i INTEGER, s VARCHAR, u UUID)")
    expected = pa.schema([("i", pa.int32()), ("u", pa.string())])
    assert cursor.adbc_execute_schema("SELECT i, u FROM shaped WHERE s = ?") == expected
    returning = "INSERT INTO shaped (i) VALUES (?) RETURNING i, u"
    assert cursor.adbc_execute_schema(returning) == expected
    assert cursor.adbc_execute_schema("UPDATE shaped SET s = ? WHERE i = ?") == pa.schema([])
    assert cursor.adbc_execute_schema("WITH one AS (SELECT 1 AS x) FROM one").names == ["x"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO untouched VALUES (1)",
        "INSERT INTO untouched VALUES (?)",
        "INSERT INTO untouched VALUES (1) RETURNING i",
        "INSERT INTO untouched SELECT nextval('untouched_sequence')",
        "SELECT nextval('untouched_sequence') AS n",
        "INSERT INTO untouched VALUES (1); SELECT nextval('untouched_sequence')",
        "CREATE TABLE untouched_too (i INTEGER); INSERT INTO untouched VALUES (2); SELECT 1",
        "CREATE TABLE untouched_too AS SELECT 1 AS i",
        "DELETE FROM untouched",
        "DROP TABLE untouched",
    ],
)
def test_prepare_and_execute_schema_execute_nothing(cursor: Any, sql: str) -> None:
    cursor.execute("CREATE TEMP TABLE untouched AS SELECT 42 AS i")
    cursor.execute("CREATE TEMP SEQUENCE untouched_sequence")
    cursor.adbc_prepare(sql)
    cursor.adbc_execute_schema(sql)
    assert rows(cursor, "SELECT i FROM untouched") == [(42,)]
    assert rows(cursor, "SELECT nextval('untouched_sequence')") == [(1,)]
    created = "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'untouched_too'"
    assert rows(cursor, created) == [(0,)]


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "SELECT 1; SELECT 2 AS two",
        "SHOW TABLES",
        "PRAGMA version",
        "DESCRIBE SELECT 1",
        "SUMMARIZE SELECT 1 AS a",
        "CALL pragma_version()",
        "CALL ducklake_snapshots('swanlake')",
    ],
)
def test_execute_schema_is_that_of_the_result(cursor: Any, sql: str) -> None:
    announced = cursor.adbc_execute_schema(sql)
    cursor.execute(sql)
    assert announced == cursor.fetch_arrow_table().schema
    assert len(announced) > 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1,\n  no_such_column\nFROM pointed",
        "SELECT *\n FROM no_such_table WHERE i = ?",
        "INSERT INTO\n   no_such_table (i) VALUES (?)",
    ],
)
def test_error_of_prepare_points_at_the_text_of_the_client(cursor: Any, sql: str) -> None:
    cursor.execute("CREATE TEMP TABLE pointed (i INTEGER)")
    with pytest.raises(adbc_driver_manager.ProgrammingError) as prepared:
        cursor.adbc_prepare(sql)
    stock = duckdb.connect()
    stock.execute("CREATE TEMP TABLE pointed (i INTEGER)")
    with stock, pytest.raises(duckdb.Error) as executed:
        stock.execute(sql, [1] if "?" in sql else None)
    assert excerpt(str(prepared.value)) == excerpt(str(executed.value))


def excerpt(message: str) -> str:
    """The line at which a message points, and the place in it; empty if it points at none."""
    return message.partition("LINE ")[2].partition("^")[0]


def test_execute_schema_of_several_statements_is_empty(cursor: Any) -> None:
    sql = "CREATE TEMP TABLE made AS SELECT 1 AS i; SELECT i FROM made"
    assert cursor.adbc_execute_schema(sql) == pa.schema([])
    assert rows(cursor, sql) == [(1,)]


def test_prepare_reports_errors(cursor: Any) -> None:
    for sql, identifier in [
        ("SELECT * FROM no_such_table WHERE i = ?", "CATALOG_ERROR"),
        ("SELEC ?", "PARSER_ERROR"),
        ("SELECT ?; SELECT ?", "INVALID_REQUEST"),
    ]:
        with pytest.raises(adbc_driver_manager.ProgrammingError, match=f"{identifier}: "):
            cursor.adbc_prepare(sql)
    assert rows(cursor, "SELECT 42") == [(42,)]


# ---- parameters of queries -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "parameters", "expected"),
    [
        ("SELECT ?, ?", (1, "x"), (1, "x")),
        ("SELECT $2, $1, $2", (1, "x"), ("x", 1, "x")),
        ("SELECT $1 + $1", (21,), (42,)),
        ("SELECT $b, $a, $b", pa.table({"a": [1], "b": [2]}), (2, 1, 2)),
        ("SELECT $b, $a", pa.table({"b": [2], "a": [1]}), (2, 1)),
        ("SELECT $a, '?', '$b' -- ?, $c", pa.table({"$a": [1]}), (1, "?", "$b")),
        ("SELECT ?, ?::INTEGER, ? IS NULL", (None, None, None), (None, None, True)),
        ("SELECT coalesce(?, 'instead')", (None,), ("instead",)),
        ("SELECT count(*) FROM range(?) LIMIT ?", (5, 1), (5,)),
        ("SELECT list_sum(?)::INTEGER, ?.a", ([1, 2], {"a": "x"}), (3, "x")),
        ('SELECT \'é\', ? /* ? */, "?" FROM (SELECT 1 AS "?")', ("ü",), ("é", "ü", 1)),
    ],
)
def test_parameters_are_bound_by_position_or_name(
    cursor: Any, sql: str, parameters: Any, expected: tuple[Any, ...]
) -> None:
    assert rows(cursor, sql, parameters) == [expected]


def test_named_parameters_of_types_without_a_python_value(cursor: Any) -> None:
    bound = pa.table({"since": pa.array([(1, 0, 0)], pa.month_day_nano_interval()), "n": [3]})
    sql = "SELECT (DATE '2024-01-31' + $since)::DATE::VARCHAR AS d, $n AS n, $n + 1 AS m"
    assert rows(cursor, sql, bound) == [("2024-02-29", 3, 4)]


@pytest.mark.parametrize("parameters", [(1,), (1, 2, 3)])
@pytest.mark.parametrize("sql", ["SELECT ?, ?", "INSERT INTO narrow VALUES (?, ?)"])
def test_wrong_number_of_bound_columns_is_refused(
    cursor: Any, sql: str, parameters: tuple[Any, ...]
) -> None:
    cursor.execute("CREATE TEMP TABLE narrow (a INTEGER, b INTEGER)")
    message = f"takes 2 parameters; the client bound {len(parameters)} column"
    with pytest.raises(adbc_driver_manager.ProgrammingError, match=message):
        cursor.execute(sql, parameters)
    with pytest.raises(adbc_driver_manager.ProgrammingError, match=message):
        cursor.executemany(sql, [parameters])
    assert rows(cursor, "SELECT count(*) FROM narrow") == [(0,)]


def test_query_without_bound_values_is_refused(cursor: Any) -> None:
    with pytest.raises(adbc_driver_manager.ProgrammingError):
        cursor.execute("SELECT ?")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match=r"parameter \$b; .* a, c"):
        cursor.execute("SELECT $a, $b", pa.table({"a": [1], "c": [2]}))


def test_query_bound_to_many_rows_returns_the_rows_of_all_executions(cursor: Any) -> None:
    table = pa.Table.from_batches([pa.record_batch({"n": [2, 0]}), pa.record_batch({"n": [1, 3]})])
    sql = "SELECT ? AS n, range AS i FROM range(?)"
    doubled = pa.table({"a": table["n"], "b": table["n"]})
    assert rows(cursor, sql, doubled) == [(2, 0), (2, 1), (1, 0), (3, 0), (3, 1), (3, 2)]


def test_query_bound_to_many_rows_accepts_nested_values(cursor: Any) -> None:
    table = pa.table({"l": pa.array([[1, 2], None, []], pa.list_(pa.int32()))})
    assert rows(cursor, "SELECT ? AS l", table) == [([1, 2],), (None,), ([],)]


def test_parameters_work_in_other_kinds_of_statements(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE target AS SELECT ? AS i, ? AS s", (1, "a"))
    assert rows(cursor, "SELECT * FROM target") == [(1, "a")]
    merge = """
        MERGE INTO target USING (SELECT ? AS i, ? AS s) AS n ON target.i = n.i
        WHEN MATCHED THEN UPDATE SET s = n.s WHEN NOT MATCHED THEN INSERT VALUES (n.i, n.s)
    """
    assert affected_rows(cursor, merge, [(1, "b"), (2, "c")]) == 2
    assert rows(cursor, "SELECT * FROM target ORDER BY i") == [(1, "b"), (2, "c")]
    assert rows(cursor, "EXPLAIN SELECT ?", (1,))


def test_parameters_bind_to_the_last_of_several_statements(cursor: Any) -> None:
    sql = "CREATE OR REPLACE TEMP TABLE base AS SELECT 40 AS i; SELECT i + ? FROM base"
    assert rows(cursor, sql, (2,)) == [(42,)]
    assert rows(cursor, sql, (3,)) == [(43,)]


# ---- execution again -----------------------------------------------------------------------------


def test_prepared_statement_runs_again_with_new_values(cursor: Any) -> None:
    sql = "SELECT ? * 2"
    cursor.adbc_prepare(sql)
    assert [rows(cursor, sql, (i,)) for i in range(3)] == [[(0,)], [(2,)], [(4,)]]


def test_prepared_statement_follows_changes_of_the_table(connect: Callable[..., Any]) -> None:
    connection = connect()
    with connection.cursor() as reader, connection.cursor() as writer:
        writer.execute("CREATE TABLE becoming AS SELECT 1 AS i")
        sql = "SELECT * FROM becoming WHERE i >= ? ORDER BY i"
        assert rows(reader, sql, (0,)) == [(1,)]
        writer.execute("INSERT INTO becoming VALUES (2)")
        assert rows(reader, sql, (0,)) == [(1,), (2,)]
        writer.execute("ALTER TABLE becoming ADD COLUMN s VARCHAR DEFAULT 'new'")
        assert rows(reader, sql, (2,)) == [(2, "new")]
        writer.execute("DROP TABLE becoming")
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="CATALOG_ERROR: "):
            reader.execute(sql, (0,))
        writer.execute("CREATE TABLE becoming AS SELECT 9 AS i")
        assert rows(reader, sql, (0,)) == [(9,)]


def test_prepare_describes_the_table_as_it_is_now(connect: Callable[..., Any]) -> None:
    sql = "SELECT *, upper(s) AS u FROM described WHERE i = ?"

    def described() -> list[tuple[str, str]]:
        with reader.cursor() as cursor:  # a cursor prepares the same text once
            fields = [*cursor.adbc_prepare(sql), *cursor.adbc_execute_schema(sql)]
        return [(field.name, str(field.type)) for field in fields]

    reader = connect()
    with connect().cursor() as writer:
        writer.execute("CREATE TABLE described (i INTEGER, s VARCHAR)")
        text = ("s", "string"), ("u", "string")
        assert described() == described() == [("1", "int32"), ("i", "int32"), *text]
        writer.execute("ALTER TABLE described ALTER i SET DATA TYPE BIGINT")
        assert described() == [("1", "int64"), ("i", "int64"), *text]
        with reader.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE described AS SELECT 1::TINYINT AS i, 'a' AS s")
        assert described() == [("1", "int8"), ("i", "int8"), *text]


def test_prepared_insert_runs_again_with_more_rows(cursor: Any) -> None:
    cursor.execute("CREATE TABLE repeated (i INTEGER)")
    sql = "INSERT INTO repeated VALUES (?)"
    assert affected_rows(cursor, sql, [(1,)]) == 1
    assert affected_rows(cursor, sql, [(2,), (3,)]) == 2
    cursor.execute(sql, (4,))
    assert cursor.rowcount == 1
    assert rows(cursor, "SELECT i FROM repeated ORDER BY i") == [(1,), (2,), (3,), (4,)]


# ---- changes for one row and for many ------------------------------------------------------------


def test_update_and_delete_take_parameters(cursor: Any) -> None:
    cursor.execute("CREATE TABLE edited AS SELECT range AS i, 'old' AS s FROM range(6)")
    cursor.execute("UPDATE edited SET s = ? WHERE i < ?", ("new", 4))
    assert cursor.rowcount == 4
    cursor.execute("UPDATE edited SET s = ? WHERE i = ?", (None, 0))
    assert cursor.rowcount == 1
    cursor.execute("DELETE FROM edited WHERE i > ? AND s = ?", (2, "old"))
    assert cursor.rowcount == 2
    expected = [(0, None), (1, "new"), (2, "new"), (3, "new")]
    assert rows(cursor, "SELECT * FROM edited ORDER BY i") == expected


def test_update_and_delete_run_for_many_bound_rows(cursor: Any) -> None:
    cursor.execute("CREATE TABLE many_edits AS SELECT range AS i, 'old' AS s FROM range(5)")
    edits = [("a", 1), (None, 2), ("c", 77)]
    assert affected_rows(cursor, "UPDATE many_edits SET s = ? WHERE i = ?", edits) == 2
    assert affected_rows(cursor, "DELETE FROM many_edits WHERE i = ?", [(0,), (3,), (3,)]) == 2
    assert rows(cursor, "SELECT * FROM many_edits ORDER BY i") == [(1, "a"), (2, None), (4, "old")]


@pytest.mark.parametrize("count", [0, 1, 1000])
@pytest.mark.parametrize("kind", ["TABLE", "TEMP TABLE"])
def test_insert_of_many_rows_returns_their_count(cursor: Any, kind: str, count: int) -> None:
    name = f"bulk_{kind[:2]}_{count}"
    cursor.execute(f"CREATE {kind} {name} (i INTEGER, s VARCHAR)")
    table = pa.table({"i": pa.array(range(count), pa.int64()), "s": ["x"] * count})
    table = table.set_column(1, "s", pa.array(["x"] * count, pa.string()))
    assert affected_rows(cursor, f"INSERT INTO {name} VALUES (?, ?)", table) == count
    sql = f"SELECT count(*), count(DISTINCT i), count(s) FROM {name}"
    assert rows(cursor, sql) == [(count, count, count)]


def test_insert_of_several_batches_is_one_statement(cursor: Any) -> None:
    cursor.execute("CREATE TABLE batched (i INTEGER)")
    before = rows(cursor, "SELECT count(*) FROM swanlake.snapshots()")[0][0]
    batches = [pa.record_batch({"i": [n, n + 1]}) for n in range(0, 20, 2)]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert affected_rows(cursor, "INSERT INTO batched VALUES (?)", reader) == 20
    assert rows(cursor, "SELECT count(*) FROM swanlake.snapshots()") == [(before + 1,)]
    assert rows(cursor, "SELECT count(DISTINCT i) FROM batched") == [(20,)]


@pytest.mark.parametrize(
    ("sql", "parameters", "expected"),
    [
        (
            "INSERT INTO {} (s, i) VALUES (lower(?), ?)",
            [("A", 1), ("B", 2)],
            [(1, "a", 7), (2, "b", 7)],
        ),
        (
            "INSERT INTO {} (n, i, s) VALUES ($3, $1, $2)",
            [(1, "a", 10), (2, "b", 20)],
            [(1, "a", 10), (2, "b", 20)],
        ),
        (
            "INSERT INTO {} VALUES (?, ?, DEFAULT)",
            [(1, "a"), (2, "b")],
            [(1, "a", 7), (2, "b", 7)],
        ),
        (
            "INSERT INTO {} VALUES ($1, $2, $1 * 2)",
            [(1, "a"), (2, None)],
            [(1, "a", 2), (2, None, 4)],
        ),
        (
            "INSERT INTO {} VALUES (?, ?, 1), (?, ?, 2)",
            [(1, "a", 2, "b"), (3, "c", 4, "d")],
            [(1, "a", 1), (2, "b", 2), (3, "c", 1), (4, "d", 2)],
        ),
        (
            "INSERT INTO {} SELECT ?, ?, 3",
            [(1, "a"), (2, "b")],
            [(1, "a", 3), (2, "b", 3)],
        ),
        (
            "INSERT INTO {} BY NAME SELECT ? AS s, ? AS i",
            [("a", 1), ("b", 2)],
            [(1, "a", 7), (2, "b", 7)],
        ),
        (
            "/* ? */ INSERT INTO {} VALUES (?, ? || ' VALUES (?)', 1) -- ?",
            [(1, "a"), (2, "b")],
            [(1, "a VALUES (?)", 1), (2, "b VALUES (?)", 1)],
        ),
    ],
)
@pytest.mark.parametrize("kind", ["TABLE", "TEMP TABLE"])
def test_insert_of_many_rows_supports_all_insert_forms(
    cursor: Any, kind: str, sql: str, parameters: list[Any], expected: list[Any]
) -> None:
    cursor.execute(f"CREATE OR REPLACE {kind} forms (i INTEGER, s VARCHAR, n INTEGER DEFAULT 7)")
    assert affected_rows(cursor, sql.format("forms"), parameters) == len(expected)
    assert rows(cursor, "SELECT i, s, n FROM forms ORDER BY i") == expected


def test_insert_of_many_rows_uses_one_statement_time(cursor: Any) -> None:
    cursor.execute("CREATE TABLE stamped (i INTEGER, moment TIMESTAMPTZ)")
    assert affected_rows(cursor, "INSERT INTO stamped VALUES (?, now())", [(1,), (2,)]) == 2
    sql = "SELECT count(*), count(DISTINCT moment) FROM stamped WHERE moment <= now()"
    assert rows(cursor, sql) == [(2, 1)]


def test_insert_on_conflict_updates_or_ignores(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE keyed (i INTEGER PRIMARY KEY, s VARCHAR)")
    upsert = "INSERT INTO keyed VALUES (?, ?) ON CONFLICT (i) DO UPDATE SET s = excluded.s"
    assert affected_rows(cursor, upsert, [(1, "a"), (2, "b")]) == 2
    assert affected_rows(cursor, upsert, [(2, "c"), (3, "d")]) == 2
    ignore = "INSERT INTO keyed VALUES (?, ?) ON CONFLICT DO NOTHING"
    assert affected_rows(cursor, ignore, [(3, "x"), (4, "e"), (4, "x")]) == 1
    assert affected_rows(cursor, "INSERT OR REPLACE INTO keyed VALUES (?, ?)", [(4, "f")]) == 1
    assert rows(cursor, "SELECT s FROM keyed ORDER BY i") == [("a",), ("c",), ("d",), ("f",)]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO twice VALUES (?, ?) ON CONFLICT (i) DO UPDATE SET s = excluded.s",
        "INSERT OR REPLACE INTO twice VALUES (?, ?)",
    ],
)
def test_upsert_of_one_key_twice_keeps_the_last_row(cursor: Any, sql: str) -> None:
    cursor.execute("CREATE TEMP TABLE twice (i INTEGER PRIMARY KEY, s VARCHAR)")
    assert affected_rows(cursor, sql, [(1, "first"), (1, "last")]) == 2
    assert rows(cursor, "SELECT s FROM twice") == [("last",)]


def test_insert_from_its_own_table_reads_the_rows_before_it(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE numbered AS SELECT 1 AS i, 'a' AS s")
    sql = "INSERT INTO numbered VALUES ((SELECT max(i) + 1 FROM numbered), ?)"
    affected_rows(cursor, sql, [("b",), ("c",)])
    assert rows(cursor, "SELECT i FROM numbered ORDER BY s") == [(1,), (2,), (3,)]


def test_insert_returning_gives_rows_of_all_executions(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE answered (i INTEGER, s VARCHAR)")
    sql = "INSERT INTO answered VALUES (?, ?) RETURNING i * 10 AS x, s"
    assert rows(cursor, sql, (1, "a")) == [(10, "a")]
    table = pa.table({"i": [2, 3], "s": ["b", "c"]})
    assert rows(cursor, sql, table) == [(20, "b"), (30, "c")]
    cursor.executemany(sql, [(4, "d"), (5, "e")])
    assert rows(cursor, "SELECT count(*) FROM answered") == [(5,)]


def test_insert_returning_of_many_rows_returns_their_count(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE counted_too (i INTEGER)")
    sql = "INSERT INTO counted_too VALUES (?) RETURNING i"
    assert affected_rows(cursor, sql, [(1,), (2,)]) == 2


@pytest.mark.parametrize("kind", ["TABLE", "TEMP TABLE"])
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO whole VALUES (?)",
        "INSERT INTO whole SELECT ?::INTEGER",
        "UPDATE whole SET i = ?::INTEGER",
        "DELETE FROM whole WHERE i = ?::INTEGER",
    ],
)
def test_insert_with_one_bad_row_writes_nothing(cursor: Any, kind: str, sql: str) -> None:
    cursor.execute(f"CREATE OR REPLACE {kind} whole AS SELECT 0 AS i")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="CONVERSION_ERROR: "):
        cursor.executemany(sql, [("1",), ("2",), ("not a number",), ("4",)])
    assert rows(cursor, "SELECT i FROM whole") == [(0,)]


def test_bad_row_inside_a_transaction_can_be_rolled_back(connect: Callable[..., Any]) -> None:
    connection = connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE in_transaction (i INTEGER)")
        connection.commit()
        cursor.executemany("INSERT INTO in_transaction VALUES (?)", [(1,), (2,)])
        with pytest.raises(adbc_driver_manager.ProgrammingError):
            cursor.executemany("INSERT INTO in_transaction VALUES (?)", [("3",), ("x",)])
        connection.rollback()
        cursor.executemany("INSERT INTO in_transaction VALUES (?)", [(5,)])
        connection.commit()
        assert rows(cursor, "SELECT i FROM in_transaction") == [(5,)]


def test_unqualified_insert_uses_the_current_schema(cursor: Any) -> None:
    cursor.execute("CREATE SCHEMA landing")
    cursor.execute("CREATE TABLE landed (i INTEGER)")
    cursor.execute("CREATE TABLE landing.landed (i INTEGER)")
    cursor.execute("CREATE TABLE memory.main.landed (i INTEGER)")
    sql = "INSERT INTO landed VALUES (?)"
    affected_rows(cursor, sql, [(1,), (2,)])
    cursor.execute("USE swanlake.landing")
    affected_rows(cursor, sql, [(3,), (4,)])
    cursor.execute(sql, (5,))
    cursor.execute("USE memory.main")
    affected_rows(cursor, sql, [(6,)])
    for table, expected in [
        ("swanlake.main.landed", [1, 2]),
        ("swanlake.landing.landed", [3, 4, 5]),
        ("memory.main.landed", [6]),
    ]:
        assert rows(cursor, f"SELECT list(i ORDER BY i) FROM {table}") == [(expected,)]
    cursor.execute("DROP TABLE memory.main.landed")


# ---- the names of columns ------------------------------------------------------------------------


def test_column_names_do_not_depend_on_the_value(cursor: Any) -> None:
    for value in (1, [1], None):
        cursor.execute("SELECT ?, ? IS NULL", (value, value))
        assert [column[0] for column in cursor.description] == ["$1", "($2 IS NULL)"]


def test_query_bound_to_many_rows_accepts_nulls(cursor: Any) -> None:
    assert rows(cursor, "SELECT ?", pa.table({"s": ["a", None, "ccc"]})) == [
        ("a",),
        (None,),
        ("ccc",),
    ]


def test_row_count_covers_all_executions(cursor: Any) -> None:
    cursor.execute("SELECT ?", pa.table({"i": [1, 2, 3]}))
    assert cursor.rowcount in (3, -1)  # unknown if the first row took long
    assert len(cursor.fetchall()) == 3


def test_query_bound_to_no_rows_is_empty_and_keeps_its_columns(cursor: Any) -> None:
    nothing = pa.table({"i": pa.array([], pa.int32())})
    cursor.execute("SELECT 1 AS a, ?::INTEGER AS b", nothing)
    assert cursor.fetch_arrow_table().schema.names == ["a", "b"]


# ---- handles -------------------------------------------------------------------------------------


def prepare(client: FlightSql, sql: str) -> Any:
    request = messages.ActionCreatePreparedStatementRequest(query=sql)
    return client.action_result("CreatePreparedStatement", request)


def close(client: FlightSql, handle: bytes) -> None:
    request = messages.ActionClosePreparedStatementRequest(prepared_statement_handle=handle)
    client.action("ClosePreparedStatement", request)


def test_plain_flight_prepares_binds_and_executes(flight_sql: Callable[..., FlightSql]) -> None:
    client = flight_sql()
    prepared = prepare(client, "SELECT ? AS a, range AS b FROM range(2)")
    assert not prepared.is_update
    schema = pa.ipc.read_schema(pa.py_buffer(prepared.dataset_schema))
    assert schema.names == ["a", "b"]
    command = messages.CommandPreparedStatementQuery(
        prepared_statement_handle=prepared.prepared_statement_handle
    )
    answer = messages.DoPutPreparedStatementResult.FromString(
        client.put(command, pa.table({"p": ["x", "y"]}))
    )
    assert answer.prepared_statement_handle == prepared.prepared_statement_handle
    table = client.fetch(client.info(command)).read_all()
    assert table["a"].to_pylist() == ["x", "x", "y", "y"]
    assert table["b"].to_pylist() == [0, 1, 0, 1]


def test_prepare_marks_updates_in_its_result(flight_sql: Callable[..., FlightSql]) -> None:
    client = flight_sql()
    client.query("CREATE TEMP TABLE by_flight (i INTEGER)")
    prepared = prepare(client, "INSERT INTO by_flight VALUES (?)")
    assert prepared.is_update
    command = messages.CommandPreparedStatementUpdate(
        prepared_statement_handle=prepared.prepared_statement_handle
    )
    result = client.put(command, pa.table({"i": [1, 2, 3]}))
    assert messages.DoPutUpdateResult.FromString(result).record_count == 3
    assert client.query("SELECT count(*) AS n FROM by_flight")["n"].to_pylist() == [3]


def test_closing_a_handle_twice_is_harmless(flight_sql: Callable[..., FlightSql]) -> None:
    client = flight_sql()
    handle = prepare(client, "SELECT 1").prepared_statement_handle
    close(client, handle)
    close(client, handle)


@pytest.mark.parametrize("whose", ["closed", "foreign", "garbage", "empty"])
def test_unknown_handle_is_refused(flight_sql: Callable[..., FlightSql], whose: str) -> None:
    client, other = flight_sql(), flight_sql()
    handle = prepare(client, "SELECT 1 AS secret").prepared_statement_handle
    if whose == "closed":
        close(client, handle)
    elif whose == "foreign":
        client = other
    else:
        handle = b"\xff\x00garbage" if whose == "garbage" else b""
    query = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    update = messages.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
    bound = pa.table({"p": [1]})
    attempts: list[Callable[[], Any]] = [
        lambda: client.info(query),
        lambda: client.put(query, bound),
        lambda: client.put(update, bound),
        lambda: client.client.get_schema(flight_descriptor(query), client.options()),
    ]
    for attempt in attempts:
        with pytest.raises(KeyError, match="STATEMENT_NOT_FOUND: "):
            attempt()
    assert client.query("SELECT 1 AS one")["one"].to_pylist() == [1]


def flight_descriptor(command: Any) -> Any:
    return flight.FlightDescriptor.for_command(encode(command))


def test_parameter_schema_has_the_column_types(cursor: Any) -> None:
    """JDBC converts values to the types of this schema before it binds them."""
    cursor.execute("CREATE TABLE typed_parameters (i INTEGER, d DECIMAL(10, 2), t TIMESTAMP)")
    decimal, timestamp = pa.decimal128(10, 2), pa.timestamp("us")
    for sql, types in [
        ("INSERT INTO typed_parameters VALUES (?, ?, ?)", [pa.int32(), decimal, timestamp]),
        ("INSERT INTO typed_parameters (t, i) VALUES (?, abs(?))", [timestamp, pa.string()]),
        ("UPDATE typed_parameters SET d = ? WHERE t >= ?", [decimal, timestamp]),
        ("DELETE FROM typed_parameters WHERE i = ?", [pa.int32()]),
        ("SELECT * FROM typed_parameters WHERE i = ?", [pa.int32()]),
        ("SELECT i FROM typed_parameters AS p WHERE p.t < ? AND ? = i", [timestamp, pa.int32()]),
        ("SELECT i + ? FROM typed_parameters LIMIT ?", [pa.int32(), pa.int64()]),
        ("SELECT count(*) FROM range(?) WHERE range IN (?)", [pa.string(), pa.int64()]),
        ("WITH c AS (SELECT 1 AS x) SELECT x FROM c WHERE x = ?", [pa.int32()]),
        ("SELECT ?", [pa.string()]),
    ]:
        assert cursor.adbc_prepare(sql).types == types, sql


def test_parameters_and_columns_suit_the_jdbc_driver(flight_sql: Callable[..., FlightSql]) -> None:
    """tests/drivers runs the driver itself."""
    client = flight_sql(user_agent="grpc-java-netty/1.71.0")
    client.query("CREATE TEMP TABLE of_java (t TIMESTAMP, z TIMESTAMPTZ, c TIME, u UBIGINT)")
    prepared = prepare(client, "INSERT INTO of_java VALUES (?, ?, ?, ?)")
    parameters = pa.ipc.read_schema(pa.py_buffer(prepared.parameter_schema))
    zoned = parameters.field(1).type.tz
    assert parameters.types == [
        pa.timestamp("ms"),
        pa.timestamp("ms", zoned),
        pa.time32("ms"),
        pa.uint64(),
    ]
    values = [1709209815123, 1709209815123, 45015123, 2**64 - 1]
    row = pa.table(
        [pa.array([value], kind) for value, kind in zip(values, parameters.types, strict=True)],
        schema=parameters,
    )
    update = messages.CommandPreparedStatementUpdate(
        prepared_statement_handle=prepared.prepared_statement_handle
    )
    client.put(update, row)
    info = client.execute("FROM of_java")
    assert info.schema.types == [
        pa.timestamp("us"),
        pa.timestamp("us"),
        pa.time64("us"),
        pa.decimal128(20, 0),
    ]
    assert client.fetch(info).read_all().to_pylist() == [
        {
            "t": datetime(2024, 2, 29, 12, 30, 15, 123000),
            "z": datetime(2024, 2, 29, 12, 30, 15, 123000, UTC),
            "c": time(12, 30, 15, 123000),
            "u": 2**64 - 1,
        }
    ]


@pytest.mark.parametrize("scale", [0, 1, 3])
def test_decimal_parameter_takes_values_of_another_scale(cursor: Any, scale: int) -> None:
    cursor.execute("CREATE TEMP TABLE scaled AS SELECT 2.00::DECIMAL(10, 2) AS d")
    bound = pa.table({"1": pa.array([2], pa.int64()).cast(pa.decimal128(22, scale))})
    assert rows(cursor, "SELECT count(*) FROM scaled WHERE d = ?", bound) == [(1,)]
    assert rows(cursor, "SELECT d + ? FROM scaled", bound) == [(4,)]
    assert affected_rows(cursor, "INSERT INTO scaled VALUES (?)", bound) == 1
    assert affected_rows(cursor, "UPDATE scaled SET d = ?", bound) == 2


def test_parameters_are_typed_by_tables_of_the_transaction(cursor: Any) -> None:
    cursor.execute("BEGIN")
    cursor.execute("CREATE TABLE typed_in_transaction (d DATE)")
    assert cursor.adbc_prepare("FROM typed_in_transaction WHERE d < ?").types == [pa.date32()]
    cursor.execute("ROLLBACK")
