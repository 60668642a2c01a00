"""Flight SQL metadata: catalogs, schemas, tables, keys, types and SQL info."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from swanlake._version import __version__
from swanlake.protocol import messages
from swanlake.server import sql_info
from tests.flight import FlightSql

Open = Callable[..., FlightSql]


@pytest.fixture
def connection(flight_sql: Open) -> FlightSql:
    opened = flight_sql()
    opened.query(
        """
        CREATE SCHEMA IF NOT EXISTS meta;
        CREATE TABLE IF NOT EXISTS meta.places (
            id BIGINT NOT NULL, name VARCHAR, price DECIMAL(10, 2), tags VARCHAR[],
            spot STRUCT(x DOUBLE, y DOUBLE), "odd ""name" UUID
        );
        CREATE OR REPLACE VIEW meta.place_names AS SELECT name FROM meta.places;
        CREATE OR REPLACE TABLE meta."100%_real" (i INTEGER);
        """
    )
    return opened


def test_catalogs_exclude_ducklakes_internal_ones(connection: FlightSql) -> None:
    names = connection.metadata(messages.CommandGetCatalogs())["catalog_name"].to_pylist()
    assert "swanlake" in names
    assert not [name for name in names if name.startswith("__ducklake") or name == "system"]


def test_schemas_are_filtered_by_catalog_and_pattern(connection: FlightSql) -> None:
    command = messages.CommandGetDbSchemas(catalog="swanlake", db_schema_filter_pattern="met_")
    assert connection.metadata(command).to_pylist() == [
        {"catalog_name": "swanlake", "db_schema_name": "meta"}
    ]
    schemas = connection.metadata(messages.CommandGetDbSchemas()).to_pylist()
    assert {"catalog_name": "swanlake", "db_schema_name": "main"} in schemas
    assert not [row for row in schemas if row["db_schema_name"] == "information_schema"]
    assert connection.metadata(messages.CommandGetDbSchemas(catalog="")).num_rows == 0


def tables(connection: FlightSql, **filters: Any) -> list[tuple[str, str]]:
    command = messages.CommandGetTables(catalog="swanlake", **filters)
    rows = connection.metadata(command).to_pylist()
    return [(row["table_name"], row["table_type"]) for row in rows]


def test_tables_are_filtered_by_schema_and_type(connection: FlightSql) -> None:
    assert tables(connection, db_schema_filter_pattern="meta") == [
        ("100%_real", "TABLE"),
        ("place_names", "VIEW"),
        ("places", "TABLE"),
    ]
    assert tables(connection, db_schema_filter_pattern="meta", table_types=["VIEW"]) == [
        ("place_names", "VIEW")
    ]
    assert tables(connection, db_schema_filter_pattern="meta", table_types=["NOTHING"]) == []


def test_table_patterns_can_be_escaped(connection: FlightSql) -> None:
    assert tables(connection, table_name_filter_pattern="100\\%\\_real") == [("100%_real", "TABLE")]
    assert tables(connection, table_name_filter_pattern="place\\_%") == [("place_names", "VIEW")]
    hostile = "x' OR true --"
    assert tables(connection, table_name_filter_pattern=hostile) == []


def test_tables_exclude_ducklakes_internal_ones(connection: FlightSql) -> None:
    rows = connection.metadata(messages.CommandGetTables(include_schema=True)).to_pylist()
    assert not [row for row in rows if row["table_name"].startswith("ducklake_")]
    assert not [row for row in rows if row["catalog_name"].startswith("__ducklake")]


def test_temporary_tables_are_visible_to_their_session_only(
    connection: FlightSql, flight_sql: Open
) -> None:
    connection.query("CREATE TEMP TABLE passing (i INTEGER)")
    command = messages.CommandGetTables(table_name_filter_pattern="passing")
    assert connection.metadata(command)["table_type"].to_pylist() == ["LOCAL TEMPORARY"]
    assert flight_sql().metadata(command).num_rows == 0


def test_tables_include_their_arrow_schema(connection: FlightSql) -> None:
    command = messages.CommandGetTables(
        catalog="swanlake",
        db_schema_filter_pattern="meta",
        table_name_filter_pattern="places",
        include_schema=True,
    )
    (row,) = connection.metadata(command).to_pylist()
    schema = pa.ipc.read_schema(pa.py_buffer(row["table_schema"]))
    assert schema.equals(connection.query("FROM meta.places").schema.set(0, schema.field(0)))
    assert not schema.field("id").nullable
    details = schema.field("price").metadata
    assert details[b"ARROW:FLIGHT:SQL:TYPE_NAME"] == b"DECIMAL(10,2)"
    assert details[b"ARROW:FLIGHT:SQL:PRECISION"] == b"10"
    assert details[b"ARROW:FLIGHT:SQL:IS_AUTO_INCREMENT"] == b"0"
    assert schema.field("id").metadata[b"ARROW:FLIGHT:SQL:PRECISION"] == b"19"


def test_result_columns_have_their_type_precision_and_scale(connection: FlightSql) -> None:
    sql = "SELECT 1::DECIMAL(12, 3) AS d, 2::BIGINT AS b, uuid() AS u"
    prepared = connection.action_result(
        "CreatePreparedStatement", messages.ActionCreatePreparedStatementRequest(query=sql)
    )
    handle = prepared.prepared_statement_handle
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    for schema in (
        connection.execute(sql).schema,
        connection.info(command).schema,
        pa.ipc.read_schema(pa.py_buffer(prepared.dataset_schema)),
    ):
        assert [field.metadata for field in schema] == [
            {
                b"ARROW:FLIGHT:SQL:TYPE_NAME": b"DECIMAL(12,3)",
                b"ARROW:FLIGHT:SQL:PRECISION": b"12",
                b"ARROW:FLIGHT:SQL:SCALE": b"3",
            },
            {
                b"ARROW:FLIGHT:SQL:TYPE_NAME": b"BIGINT",
                b"ARROW:FLIGHT:SQL:PRECISION": b"19",
                b"ARROW:FLIGHT:SQL:SCALE": b"0",
            },
            {b"ARROW:FLIGHT:SQL:TYPE_NAME": b"UUID", b"ARROW:FLIGHT:SQL:PRECISION": b"36"},
        ]


def test_metadata_includes_uncommitted_tables_of_the_session(connection: FlightSql) -> None:
    connection.query("BEGIN; CREATE TABLE meta.uncommitted (i INTEGER)")
    assert ("uncommitted", "TABLE") in tables(connection)
    connection.query("ROLLBACK")
    assert ("uncommitted", "TABLE") not in tables(connection)


def test_metadata_request_keeps_an_open_result(connection: FlightSql) -> None:
    info = connection.execute("SELECT x FROM range(900000) r(x)")
    connection.metadata(messages.CommandGetTables())
    assert connection.fetch(info).read_all().num_rows == 900_000


def test_primary_and_foreign_keys_are_listed(connection: FlightSql) -> None:
    connection.query(
        """
        USE memory.main;
        CREATE OR REPLACE TABLE memory.main.parent (a INTEGER, b INTEGER, PRIMARY KEY (b, a));
        CREATE TABLE IF NOT EXISTS memory.main.child (
            x INTEGER, y INTEGER, FOREIGN KEY (x, y) REFERENCES parent (b, a));
        """
    )
    keys = connection.metadata(messages.CommandGetPrimaryKeys(catalog="memory", table="parent"))
    columns = [(row["column_name"], row["key_sequence"]) for row in keys.to_pylist()]
    assert columns == [("b", 1), ("a", 2)]
    expected = [("parent", "b", "child", "x", 1), ("parent", "a", "child", "y", 2)]
    for command in (
        messages.CommandGetImportedKeys(catalog="memory", db_schema="main", table="child"),
        messages.CommandGetExportedKeys(table="parent"),
        messages.CommandGetCrossReference(pk_table="parent", fk_catalog="memory", fk_table="child"),
    ):
        rows = connection.metadata(command).to_pylist()
        names = ("pk_table_name", "pk_column_name", "fk_table_name", "fk_column_name")
        keyed = [(*(row[name] for name in names), row["key_sequence"]) for row in rows]
        assert keyed == expected
    connection.query("DROP TABLE memory.main.child; DROP TABLE memory.main.parent")
    assert connection.metadata(messages.CommandGetPrimaryKeys(table="parent")).num_rows == 0


def test_table_types_are_listed(connection: FlightSql) -> None:
    types = connection.metadata(messages.CommandGetTableTypes())
    assert types["table_type"].to_pylist() == ["LOCAL TEMPORARY", "TABLE", "VIEW"]


def test_sql_info_returns_the_requested_entries(connection: FlightSql) -> None:
    chosen = messages.CommandGetSqlInfo(info=[0, 1, 8, 9, 10, 504, 999_999])
    values = {row["info_name"]: row["value"] for row in connection.metadata(chosen).to_pylist()}
    assert values == {0: "SwanLake", 1: __version__, 8: 1, 9: True, 10: True, 504: '"'}


def test_sql_info_without_filter_is_complete(connection: FlightSql) -> None:
    info = connection.metadata(messages.CommandGetSqlInfo())
    names = set(info["info_name"].to_pylist())
    assert names == {*range(12), 100, 101, *range(500, 577)}
    assert info.schema.equals(sql_info.SQL_INFO)


def test_xdbc_types_are_listed_and_filtered(connection: FlightSql) -> None:
    types = connection.metadata(messages.CommandGetXdbcTypeInfo()).to_pylist()
    assert {"INTEGER", "VARCHAR", "DECIMAL", "TIMESTAMP"} <= {row["type_name"] for row in types}
    order = [(row["data_type"], row["type_name"]) for row in types]
    assert order == sorted(order)
    varchar = connection.metadata(messages.CommandGetXdbcTypeInfo(data_type=12)).to_pylist()
    assert {row["type_name"] for row in varchar} == {"VARCHAR", "JSON"}


def test_get_schema_describes_without_executing(connection: FlightSql) -> None:
    import pyarrow.flight as flight

    from swanlake.protocol import encode

    connection.query("CREATE SEQUENCE IF NOT EXISTS memory.main.described")

    def schema_of(sql: str) -> Any:
        command = encode(messages.CommandStatementQuery(query=sql))
        descriptor = flight.FlightDescriptor.for_command(command)
        return connection.client.get_schema(descriptor, connection.options()).schema

    schema = schema_of("SELECT nextval('memory.main.described') AS n, 'x' AS s")
    assert schema == pa.schema([("n", pa.int64()), ("s", pa.string())])
    first = connection.query("SELECT nextval('memory.main.described') AS n")
    assert first["n"].to_pylist() == [1]
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        schema_of("FROM nowhere")


def test_stock_adbc_reads_objects_and_table_schemas(
    connect: Callable[..., Any], connection: FlightSql
) -> None:
    adbc = connect()
    objects = adbc.adbc_get_objects(
        depth="all", catalog_filter="swanlake", db_schema_filter="meta", table_name_filter="places"
    ).read_all()
    (catalog,) = [row for row in objects.to_pylist() if row["catalog_name"] == "swanlake"]
    (schema,) = [s for s in catalog["catalog_db_schemas"] if s["db_schema_name"] == "meta"]
    (table,) = schema["db_schema_tables"]
    columns = [column["column_name"] for column in table["table_columns"]]
    assert columns == ["id", "name", "price", "tags", "spot", 'odd "name']
    assert adbc.adbc_get_table_types() == ["LOCAL TEMPORARY", "TABLE", "VIEW"]
    table_schema = adbc.adbc_get_table_schema("places", db_schema_filter="meta")
    assert table_schema.names == columns
    assert adbc.adbc_get_info()["vendor_name"] == "SwanLake"
