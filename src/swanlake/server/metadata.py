"""The metadata commands: catalogs, schemas, tables, keys. Each is one query."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

from swanlake.errors import QueryError
from swanlake.protocol import messages
from swanlake.sessions.describe import arrow_types
from swanlake.sessions.runs import Run
from swanlake.sessions.session import Session

_REQUIRED_TEXT = {"type": pa.string(), "nullable": False}

CATALOGS = pa.schema([pa.field("catalog_name", **_REQUIRED_TEXT)])
DB_SCHEMAS = pa.schema(
    [pa.field("catalog_name", pa.string()), pa.field("db_schema_name", **_REQUIRED_TEXT)]
)
TABLES = pa.schema(
    [
        pa.field("catalog_name", pa.string()),
        pa.field("db_schema_name", pa.string()),
        pa.field("table_name", **_REQUIRED_TEXT),
        pa.field("table_type", **_REQUIRED_TEXT),
    ]
)
TABLES_WITH_SCHEMA = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
TABLE_TYPES = pa.schema([pa.field("table_type", **_REQUIRED_TEXT)])
PRIMARY_KEYS = pa.schema(
    [
        pa.field("catalog_name", pa.string()),
        pa.field("db_schema_name", pa.string()),
        pa.field("table_name", **_REQUIRED_TEXT),
        pa.field("column_name", **_REQUIRED_TEXT),
        pa.field("key_name", pa.string()),
        pa.field("key_sequence", pa.int32(), nullable=False),
    ]
)
FOREIGN_KEYS = pa.schema(
    [
        pa.field("pk_catalog_name", pa.string()),
        pa.field("pk_db_schema_name", pa.string()),
        pa.field("pk_table_name", **_REQUIRED_TEXT),
        pa.field("pk_column_name", **_REQUIRED_TEXT),
        pa.field("fk_catalog_name", pa.string()),
        pa.field("fk_db_schema_name", pa.string()),
        pa.field("fk_table_name", **_REQUIRED_TEXT),
        pa.field("fk_column_name", **_REQUIRED_TEXT),
        pa.field("key_sequence", pa.int32(), nullable=False),
        pa.field("fk_key_name", pa.string()),
        pa.field("pk_key_name", pa.string()),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)
_NO_ACTION = 3  # DuckDB has no other rule

# DuckLake keeps its own tables in hidden catalogs, and the session lends a name to bound
# parameters.
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
    """Conditions that are added only where the command gives a value."""

    def __init__(self) -> None:
        self._conditions = ["true"]
        self.parameters: list[Any] = []

    def add(self, condition: str, value: Any) -> None:
        self._conditions.append(condition)
        self.parameters.append(value)

    def equal(self, command: Any, field: str, column: str) -> None:
        if command.HasField(field):
            self.add(f"{column} = ?", getattr(command, field))

    def like(self, command: Any, field: str, column: str) -> None:
        if command.HasField(field):
            self.add(rf"{column} LIKE ? ESCAPE '\'", getattr(command, field))

    def __str__(self) -> str:
        return " AND ".join(self._conditions)


def catalogs(session: Session, run: Run, command: messages.CommandGetCatalogs) -> Any:
    sql = f"""
        SELECT database_name FROM duckdb_databases() WHERE {_VISIBLE_CATALOG}
        UNION SELECT unnest(?::VARCHAR[]) ORDER BY 1
    """
    return _as(CATALOGS, _ask(session, run, sql, [session.catalogs.names]))


def db_schemas(session: Session, run: Run, command: messages.CommandGetDbSchemas) -> Any:
    _meet_catalog(session, command)
    where = _Filter()
    where.equal(command, "catalog", "database_name")
    where.like(command, "db_schema_filter_pattern", "schema_name")
    # duckdb_schemas() calls the main schema of a plain database internal, though users fill it.
    sql = f"""
        SELECT database_name, schema_name FROM duckdb_schemas()
        WHERE database_name IN
              (SELECT database_name FROM duckdb_databases() WHERE {_VISIBLE_CATALOG})
          AND schema_name NOT IN ('information_schema', 'pg_catalog') AND {where} ORDER BY 1, 2
    """
    return _as(DB_SCHEMAS, _ask(session, run, sql, where.parameters))


def tables(session: Session, run: Run, command: messages.CommandGetTables) -> Any:
    _meet_catalog(session, command)
    where = _Filter()
    where.equal(command, "catalog", "database_name")
    where.like(command, "db_schema_filter_pattern", "schema_name")
    where.like(command, "table_name_filter_pattern", "table_name")
    columns_where, columns_parameters = str(where), list(where.parameters)
    if command.table_types:
        where.add("list_contains(?, table_type)", list(command.table_types))
    sql = f"SELECT * FROM ({_RELATIONS}) WHERE {where} ORDER BY 1, 2, 3, 4"
    found = _as(TABLES, _ask(session, run, sql, where.parameters))
    if not command.include_schema:
        return found
    schemas = _table_schemas(session, run, columns_where, columns_parameters)
    keys = zip(*(found[name].to_pylist() for name in TABLES.names[:3]), strict=True)
    encoded = [schemas.get(key, pa.schema([])).serialize().to_pybytes() for key in keys]
    field = TABLES_WITH_SCHEMA.field("table_schema")
    return found.append_column(field, pa.array(encoded, field.type))


def _table_schemas(
    session: Session, run: Run, where: str, parameters: list[Any]
) -> dict[tuple[str, str, str], Any]:
    """The Arrow schemas of all matching tables, however many: one query, and one for the types."""
    columns = _ask(
        session,
        run,
        f"""
        SELECT database_name, schema_name, table_name, column_name, data_type, is_nullable,
               numeric_precision, numeric_scale, comment
        FROM duckdb_columns() WHERE {_VISIBLE_CATALOG} AND {where}
        ORDER BY database_name, schema_name, table_name, column_index
        """,
        parameters,
    ).to_pylist()
    sql_types = sorted({column["data_type"] for column in columns})
    arrow = dict(zip(sql_types, session.inspect(run, arrow_types, sql_types), strict=True))
    fields: defaultdict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for column in columns:
        key = (column["database_name"], column["schema_name"], column["table_name"])
        details = {
            "ARROW:FLIGHT:SQL:CATALOG_NAME": key[0],
            "ARROW:FLIGHT:SQL:SCHEMA_NAME": key[1],
            "ARROW:FLIGHT:SQL:TABLE_NAME": key[2],
            "ARROW:FLIGHT:SQL:TYPE_NAME": column["data_type"],
            "ARROW:FLIGHT:SQL:PRECISION": column["numeric_precision"],
            "ARROW:FLIGHT:SQL:SCALE": column["numeric_scale"],
            "ARROW:FLIGHT:SQL:REMARKS": column["comment"],
        }
        fields[key].append(
            pa.field(
                column["column_name"],
                arrow[column["data_type"]],
                column["is_nullable"],
                {name: str(value) for name, value in details.items() if value is not None},
            )
        )
    return {key: pa.schema(found) for key, found in fields.items()}


def table_types(session: Session, run: Run, command: messages.CommandGetTableTypes) -> Any:
    return pa.table([["LOCAL TEMPORARY", "TABLE", "VIEW"]], schema=TABLE_TYPES)


def primary_keys(session: Session, run: Run, command: messages.CommandGetPrimaryKeys) -> Any:
    where = _Filter()
    where.equal(command, "catalog", "database_name")
    where.equal(command, "db_schema", "schema_name")
    where.add("table_name = ?", command.table)
    sql = f"""
        SELECT database_name, schema_name, table_name, unnest(constraint_column_names),
               constraint_name, unnest(range(1, len(constraint_column_names) + 1))::INTEGER
        FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' AND {where}
        ORDER BY 1, 2, 3, 6
    """
    return _as(PRIMARY_KEYS, _ask(session, run, sql, where.parameters))


def exported_keys(session: Session, run: Run, command: messages.CommandGetExportedKeys) -> Any:
    where = _Filter()
    where.equal(command, "catalog", "pk_catalog")
    where.equal(command, "db_schema", "pk_schema")
    where.add("pk_table = ?", command.table)
    return _foreign_keys(session, run, where, "5, 6, 7, 9")


def imported_keys(session: Session, run: Run, command: messages.CommandGetImportedKeys) -> Any:
    where = _Filter()
    where.equal(command, "catalog", "fk_catalog")
    where.equal(command, "db_schema", "fk_schema")
    where.add("fk_table = ?", command.table)
    return _foreign_keys(session, run, where, "1, 2, 3, 9")


def cross_reference(session: Session, run: Run, command: messages.CommandGetCrossReference) -> Any:
    where = _Filter()
    where.equal(command, "pk_catalog", "pk_catalog")
    where.equal(command, "pk_db_schema", "pk_schema")
    where.add("pk_table = ?", command.pk_table)
    where.equal(command, "fk_catalog", "fk_catalog")
    where.equal(command, "fk_db_schema", "fk_schema")
    where.add("fk_table = ?", command.fk_table)
    return _foreign_keys(session, run, where, "5, 6, 7, 9")


def _foreign_keys(session: Session, run: Run, where: _Filter, order: str) -> Any:
    # A foreign key of DuckDB points into its own catalog and schema.
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
    return _as(FOREIGN_KEYS, _ask(session, run, sql, where.parameters))


def _meet_catalog(session: Session, command: Any) -> None:
    """Catalogs that no session has used yet show their tables too."""
    session.catalogs.attach_for_metadata(command.catalog if command.HasField("catalog") else None)


def _ask(session: Session, run: Run, sql: str, parameters: list[Any]) -> Any:
    """A query over all catalogs; one that is broken or gone does not hide the others."""
    try:
        return session.query(run, sql, parameters)
    except QueryError:
        if not session.catalogs.detach_lost():
            raise
        return session.query(run, sql, parameters)


def _as(schema: Any, table: Any) -> Any:
    return table.rename_columns(schema.names).cast(schema)
