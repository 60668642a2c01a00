"""The metadata commands of Flight SQL: catalogs, schemas, tables, keys. Each is one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message

from swanlake.errors import QueryError
from swanlake.protocol import messages
from swanlake.server.sql_info import SQL_INFO, sql_info
from swanlake.server.xdbc import XDBC_TYPE_INFO, xdbc_type_info
from swanlake.sessions.execution.prepared import arrow_types
from swanlake.sessions.results.columns import PREFIX, type_metadata
from swanlake.sessions.run import Run
from swanlake.sessions.session import Session


def _texts(names: str) -> list[Any]:
    """Text columns; a question mark stands for nullable."""
    return [
        pa.field(name.rstrip("?"), pa.string(), nullable=name.endswith("?"))
        for name in names.split()
    ]


_KEY_SEQUENCE = pa.field("key_sequence", pa.int32(), nullable=False)

CATALOGS = pa.schema(_texts("catalog_name"))
DB_SCHEMAS = pa.schema(_texts("catalog_name? db_schema_name"))
TABLES = pa.schema(_texts("catalog_name? db_schema_name? table_name table_type"))
TABLES_WITH_SCHEMA = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
TABLE_TYPES = pa.schema(_texts("table_type"))
PRIMARY_KEYS = pa.schema(
    [*_texts("catalog_name? db_schema_name? table_name column_name key_name?"), _KEY_SEQUENCE]
)
FOREIGN_KEYS = pa.schema(
    [
        *_texts("pk_catalog_name? pk_db_schema_name? pk_table_name pk_column_name"),
        *_texts("fk_catalog_name? fk_db_schema_name? fk_table_name fk_column_name"),
        _KEY_SEQUENCE,
        *_texts("fk_key_name? pk_key_name?"),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)
_NO_ACTION = 3  # DuckDB has no other rule

# Hides the catalogs of DuckLake's own tables, and the views over bound parameters.
_VISIBLE_CATALOG = "NOT internal AND NOT starts_with(database_name, '__ducklake_metadata')"
_RELATIONS = f"""
    SELECT database_name, schema_name, table_name,
           CASE WHEN temporary THEN 'LOCAL TEMPORARY' ELSE 'TABLE' END AS table_type
    FROM duckdb_tables() WHERE {_VISIBLE_CATALOG}
    UNION ALL
    SELECT database_name, schema_name, view_name, 'VIEW'
    FROM duckdb_views() WHERE {_VISIBLE_CATALOG} AND NOT starts_with(view_name, '__swanlake_')
"""


class _Filter:
    """A WHERE clause with a condition on the column of each field that the command sets."""

    def __init__(self, command: Any, **columns: str) -> None:
        self._conditions = ["true"]
        self.parameters: list[Any] = []
        for field, column in columns.items():
            if command.DESCRIPTOR.fields_by_name[field].has_presence and not command.HasField(
                field
            ):
                continue
            operator = r"LIKE ? ESCAPE '\'" if field.endswith("_pattern") else "= ?"
            self.add(f"{column} {operator}", getattr(command, field))

    def add(self, condition: str, value: Any) -> None:
        self._conditions.append(condition)
        self.parameters.append(value)

    def __str__(self) -> str:
        return " AND ".join(self._conditions)


def catalogs(session: Session, run: Run, command: messages.CommandGetCatalogs) -> Any:
    sql = f"""
        SELECT database_name FROM duckdb_databases() WHERE {_VISIBLE_CATALOG}
        UNION SELECT unnest(?::VARCHAR[]) ORDER BY 1
    """
    return _with_schema(CATALOGS, _query(session, run, sql, [session.catalogs.names]))


def db_schemas(session: Session, run: Run, command: messages.CommandGetDbSchemas) -> Any:
    _attach_catalogs(session, run, command)
    where = _Filter(command, catalog="database_name", db_schema_filter_pattern="schema_name")
    # duckdb_schemas() reports the main schema of a plain database as internal.
    sql = f"""
        SELECT database_name, schema_name FROM duckdb_schemas()
        WHERE database_name IN
              (SELECT database_name FROM duckdb_databases() WHERE {_VISIBLE_CATALOG})
          AND schema_name NOT IN ('information_schema', 'pg_catalog') AND {where} ORDER BY 1, 2
    """
    return _with_schema(DB_SCHEMAS, _query(session, run, sql, where.parameters))


def tables(session: Session, run: Run, command: messages.CommandGetTables) -> Any:
    _attach_catalogs(session, run, command)
    where = _Filter(
        command,
        catalog="database_name",
        db_schema_filter_pattern="schema_name",
        table_name_filter_pattern="table_name",
    )
    columns_where, columns_parameters = str(where), list(where.parameters)
    if command.table_types:
        where.add("list_contains(?, table_type)", list(command.table_types))
    sql = f"SELECT * FROM ({_RELATIONS}) WHERE {where} ORDER BY 1, 2, 3, 4"
    listed = _with_schema(TABLES, _query(session, run, sql, where.parameters))
    if not command.include_schema:
        return listed
    schemas = _table_schemas(session, run, columns_where, columns_parameters)
    keys = zip(*(listed[name].to_pylist() for name in TABLES.names[:3]), strict=True)
    encoded = [schemas.get(key, pa.schema([])).serialize().to_pybytes() for key in keys]
    field = TABLES_WITH_SCHEMA.field("table_schema")
    return listed.append_column(field, pa.array(encoded, field.type))


def _table_schemas(
    session: Session, run: Run, where: str, parameters: list[Any]
) -> dict[tuple[str, str, str], Any]:
    """The Arrow schemas of all matching tables, in two queries: one of them for the types."""
    columns = _query(
        session,
        run,
        f"""
        SELECT database_name, schema_name, table_name, column_name, data_type, is_nullable, comment
        FROM duckdb_columns() WHERE {_VISIBLE_CATALOG} AND {where}
        ORDER BY database_name, schema_name, table_name, column_index
        """,
        parameters,
    ).to_pylist()
    sql_types = sorted({column["data_type"] for column in columns})
    arrow = dict(zip(sql_types, session.with_connection(run, arrow_types, sql_types), strict=True))
    fields: defaultdict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for column in columns:
        key = (column["database_name"], column["schema_name"], column["table_name"])
        details = {
            "CATALOG_NAME": key[0],
            "SCHEMA_NAME": key[1],
            "TABLE_NAME": key[2],
            "REMARKS": column["comment"],
            "IS_AUTO_INCREMENT": "0",
        }
        metadata = dict(type_metadata(column["data_type"])) | {
            f"{PREFIX}{name}": value for name, value in details.items() if value is not None
        }
        fields[key].append(
            pa.field(
                column["column_name"],
                arrow[column["data_type"]],
                column["is_nullable"],
                metadata,
            )
        )
    return {key: pa.schema(columns) for key, columns in fields.items()}


def table_types(session: Session, run: Run, command: messages.CommandGetTableTypes) -> Any:
    return pa.table([["LOCAL TEMPORARY", "TABLE", "VIEW"]], schema=TABLE_TYPES)


def primary_keys(session: Session, run: Run, command: messages.CommandGetPrimaryKeys) -> Any:
    where = _Filter(command, catalog="database_name", db_schema="schema_name", table="table_name")
    sql = f"""
        SELECT database_name, schema_name, table_name, unnest(constraint_column_names),
               constraint_name, unnest(range(1, len(constraint_column_names) + 1))::INTEGER
        FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' AND {where}
        ORDER BY 1, 2, 3, 6
    """
    return _with_schema(PRIMARY_KEYS, _query(session, run, sql, where.parameters))


def exported_keys(session: Session, run: Run, command: messages.CommandGetExportedKeys) -> Any:
    where = _Filter(command, catalog="pk_catalog", db_schema="pk_schema", table="pk_table")
    return _foreign_keys(session, run, where, "5, 6, 7, 9")


def imported_keys(session: Session, run: Run, command: messages.CommandGetImportedKeys) -> Any:
    where = _Filter(command, catalog="fk_catalog", db_schema="fk_schema", table="fk_table")
    return _foreign_keys(session, run, where, "1, 2, 3, 9")


def cross_reference(session: Session, run: Run, command: messages.CommandGetCrossReference) -> Any:
    where = _Filter(
        command,
        pk_catalog="pk_catalog",
        pk_db_schema="pk_schema",
        pk_table="pk_table",
        fk_catalog="fk_catalog",
        fk_db_schema="fk_schema",
        fk_table="fk_table",
    )
    return _foreign_keys(session, run, where, "5, 6, 7, 9")


def _foreign_keys(session: Session, run: Run, where: _Filter, order: str) -> Any:
    # In DuckDB a foreign key references a table of its own catalog and schema.
    sql = f"""
        WITH keys AS (
            SELECT database_name AS pk_catalog, schema_name AS pk_schema,
                   referenced_table AS pk_table,
                   unnest(referenced_column_names) AS pk_column,
                   database_name AS fk_catalog, schema_name AS fk_schema, table_name AS fk_table,
                   unnest(constraint_column_names) AS fk_column,
                   unnest(range(1, len(constraint_column_names) + 1))::INTEGER AS key_sequence,
                   constraint_name AS fk_key_name
            FROM duckdb_constraints() WHERE constraint_type = 'FOREIGN KEY'
        )
        SELECT *, NULL::VARCHAR, {_NO_ACTION}::UTINYINT, {_NO_ACTION}::UTINYINT
        FROM keys WHERE {where} ORDER BY {order}
    """
    return _with_schema(FOREIGN_KEYS, _query(session, run, sql, where.parameters))


def _attach_catalogs(session: Session, run: Run, command: Any) -> None:
    """Attaches the catalogs that no session has used yet, so that their tables are listed."""
    session.attach_for_metadata(run, command.catalog if command.HasField("catalog") else None)


def _query(session: Session, run: Run, sql: str, parameters: list[Any]) -> Any:
    """Queries all catalogs; detaches a broken or dropped one rather than fail."""
    try:
        return session.query(run, sql, parameters)
    except QueryError:
        if not session.catalogs.detach_lost():
            raise
        return session.query(run, sql, parameters)


def _with_schema(schema: Any, table: Any) -> Any:
    return table.rename_columns(schema.names).cast(schema)


#: The metadata commands: the schema of the result, and the function that computes it.
COMMANDS: Mapping[type[Message], tuple[Any, Callable[..., Any]]] = {
    messages.CommandGetCatalogs: (CATALOGS, catalogs),
    messages.CommandGetDbSchemas: (DB_SCHEMAS, db_schemas),
    messages.CommandGetTables: (TABLES, tables),
    messages.CommandGetTableTypes: (TABLE_TYPES, table_types),
    messages.CommandGetPrimaryKeys: (PRIMARY_KEYS, primary_keys),
    messages.CommandGetExportedKeys: (FOREIGN_KEYS, exported_keys),
    messages.CommandGetImportedKeys: (FOREIGN_KEYS, imported_keys),
    messages.CommandGetCrossReference: (FOREIGN_KEYS, cross_reference),
    messages.CommandGetSqlInfo: (SQL_INFO, lambda session, run, command: sql_info(command.info)),
    messages.CommandGetXdbcTypeInfo: (
        XDBC_TYPE_INFO,
        lambda session, run, command: xdbc_type_info(
            command.data_type if command.HasField("data_type") else None
        ),
    ),
}


def result_schema(command: Message) -> Any:
    """The schema of the result of a metadata command."""
    if isinstance(command, messages.CommandGetTables) and command.include_schema:
        return TABLES_WITH_SCHEMA
    return COMMANDS[type(command)][0]
