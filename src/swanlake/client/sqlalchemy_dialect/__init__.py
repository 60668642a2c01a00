"""SwanLake for SQLAlchemy: ``create_engine("swanlake://host:4214/catalog")``.

The dialect uses ``swanlake.client.dbapi``. It does not emulate what DuckLake lacks: primary keys
exist only in SQLAlchemy, indexes are skipped, savepoints are refused. SQLAlchemy loads
``SwanLakeDialect`` by its entry point; other packages import nothing from here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partialmethod
from types import ModuleType
from typing import Any
from urllib.parse import quote

from sqlalchemy import exc
from sqlalchemy.engine import URL, Connection, Engine, default, reflection
from sqlalchemy.engine.reflection import ObjectKind, ObjectScope

from swanlake.client import dbapi
from swanlake.client.sqlalchemy_dialect import catalog
from swanlake.client.sqlalchemy_dialect.compiler import (
    DDLCompiler,
    IdentifierPreparer,
    SQLCompiler,
    TypeCompiler,
)
from swanlake.client.sqlalchemy_dialect.types import COLSPECS
from swanlake.client.transport.address import DEFAULT_PORT
from swanlake.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    ServerUnreachable,
    SessionLost,
)

_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: Options of a URL's query, besides ``tls``.
_OPTIONS = {"token": str, "tls_ca": str, "timeout": float, "connect_timeout": float}


class ExecutionContext(default.DefaultExecutionContext):
    """The execution of one statement; every cursor streams."""

    def create_server_side_cursor(self) -> Any:
        return self.create_default_cursor()

    def get_insert_default(self, column: Any) -> Any:
        if column.default is None and column.server_default is None:
            raise exc.InvalidRequestError(
                f"DuckLake has no autoincrement: assign {column} in every row that is inserted."
            )
        return super().get_insert_default(column)  # type: ignore[no-untyped-call]


class SwanLakeDialect(default.DefaultDialect):
    """DuckDB's SQL over Flight SQL, on tables of a DuckLake."""

    name = "swanlake"
    driver = "flightsql"
    supports_statement_cache = True

    statement_compiler = SQLCompiler
    ddl_compiler = DDLCompiler
    type_compiler_cls = TypeCompiler
    preparer = IdentifierPreparer
    execution_ctx_cls = ExecutionContext
    colspecs = COLSPECS

    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    supports_default_values = True
    supports_default_metavalue = True
    supports_multivalues_insert = True
    supports_comments = True
    supports_is_distinct_from = True
    supports_server_side_cursors = True
    tuple_in_values = True
    div_is_floordiv = False
    # DuckLake has neither row numbers nor RETURNING.
    supports_sequences = False
    preexecute_autoincrement_sequences = True  # asks get_insert_default for a missing key
    postfetch_lastrowid = False
    insert_returning = update_returning = delete_returning = False
    use_insertmanyvalues = False

    def __init__(
        self,
        json_serializer: Callable[[Any], str] | None = None,
        json_deserializer: Callable[[str], Any] | None = None,
        **options: Any,
    ) -> None:
        # DuckDB does not number the ? of UPDATE … FROM and DELETE … USING in textual order.
        super().__init__(**{"paramstyle": "numeric_dollar", **options})
        # SQLAlchemy's JSON type looks for these names.
        self._json_serializer = json_serializer
        self._json_deserializer = json_deserializer

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return dbapi

    def create_connect_args(self, url: URL) -> tuple[list[str], dict[str, Any]]:
        """Reads ``swanlake://[user:password@]host[:port][/catalog][?tls=true&…]``.

        A password without a user is a token.
        """
        query = {name: str(value) for name, value in url.query.items()}
        scheme = "grpc+tls" if _parse("tls", query.pop("tls", "false")) else "grpc"
        options = {name: _parse(name, text) for name, text in query.items()}
        if url.username:
            options |= {"user": url.username, "password": url.password}
        elif url.password:
            options["token"] = url.password
        host = url.host or "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        path = f"/{quote(url.database, safe='')}" if url.database else ""
        return [f"{scheme}://{host}:{url.port or DEFAULT_PORT}{path}"], options

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Moves a token to the password: SQLAlchemy masks only that in logs and reprs."""
        if "token" in engine.url.query:
            token = str(engine.url.query["token"])
            engine.url = engine.url.difference_update_query(["token"]).set(
                username="", password=token
            )

    def connect(self, *cargs: Any, **cparams: Any) -> Any:
        """Connects, with the token of SWANLAKE_TOKEN if there are no credentials."""
        if not cparams.keys() & {"token", "user", "password"}:
            cparams["token"] = os.environ.get("SWANLAKE_TOKEN") or None
        return dbapi.connect(*cargs, **cparams)

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        lost = (ConnectionLost, ServerUnreachable, SessionLost, ClientClosed)
        return isinstance(e, lost) or getattr(e, "identifier", "") == "SERVER_DRAINING"

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.client.query("SELECT 1")  # a cursor would begin a transaction
        return True

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:
        version = connection.exec_driver_sql("SELECT version()").scalar()
        return tuple(int(number) for number in re.findall(r"\d+", str(version))[:3])

    def _get_default_schema_name(self, connection: Connection) -> str:
        return str(connection.exec_driver_sql("SELECT current_schema()").scalar())

    def get_isolation_level_values(self, dbapi_conn: Any) -> list[Any]:
        return ["SNAPSHOT", "AUTOCOMMIT"]

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        return "SNAPSHOT"

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        return "AUTOCOMMIT" if dbapi_connection.autocommit else "SNAPSHOT"

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)

    def do_savepoint(self, connection: Connection, name: str) -> None:
        raise exc.InvalidRequestError("DuckDB has no savepoints: a transaction is all or nothing.")

    @reflection.cache
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        return catalog.schemas(connection)

    @reflection.cache
    def _relations(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[catalog.Relation]:
        return catalog.relations(connection, schema)

    def _names(
        self,
        connection: Connection,
        schema: str | None = None,
        *,
        is_view: bool,
        temporary: bool,
        **kw: Any,
    ) -> list[str]:
        relations = self._relations(connection, schema=schema, info_cache=kw.get("info_cache"))
        return [
            relation.name
            for relation in relations
            if (relation.is_view, relation.temporary) == (is_view, temporary)
        ]

    get_table_names = partialmethod(_names, is_view=False, temporary=False)
    get_view_names = partialmethod(_names, is_view=True, temporary=False)
    get_temp_table_names = partialmethod(_names, is_view=False, temporary=True)
    get_temp_view_names = partialmethod(_names, is_view=True, temporary=True)

    @reflection.cache
    def has_table(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        return catalog.relation(connection, schema, table_name) is not None

    @reflection.cache
    def has_schema(self, connection: Connection, schema_name: str, **kw: Any) -> bool:
        name = catalog.SchemaName.parse(schema_name)
        return name.schema in catalog.schemas(connection, name.catalog)

    def has_sequence(
        self, connection: Connection, sequence_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        return sequence_name in self.get_sequence_names(connection, schema, **kw)

    @reflection.cache
    def get_sequence_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return catalog.sequences(connection, schema)

    @reflection.cache
    def get_columns(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        columns = catalog.columns(connection, schema, [table_name])
        if not columns:
            raise exc.NoSuchTableError(_full_name(schema, table_name))
        return columns[table_name.lower()]

    def get_multi_columns(
        self,
        connection: Connection,
        *,
        schema: str | None = None,
        filter_names: Iterable[str] | None = None,
        **kw: Any,
    ) -> Any:
        """The columns of many tables, in one query."""
        columns = catalog.columns(connection, schema, filter_names)
        for relation in catalog.relations(connection, schema):
            kind = ObjectKind.VIEW if relation.is_view else ObjectKind.TABLE
            scope = ObjectScope.TEMPORARY if relation.temporary else ObjectScope.DEFAULT
            described = columns.get(relation.name.lower())
            if described is not None and kind in kw["kind"] and scope in kw["scope"]:
                yield (schema, relation.name), described

    def get_view_definition(
        self, connection: Connection, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        view = self._existing(connection, view_name, schema, **kw)
        if not view.is_view or view.sql is None:
            raise exc.NoSuchTableError(f"{_full_name(schema, view_name)} is not a view")
        return view.sql

    def get_table_comment(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return {"text": self._existing(connection, table_name, schema, **kw).comment}

    def get_table_options(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        self._existing(connection, table_name, schema, **kw)
        return {}

    def get_indexes(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        self._existing(connection, table_name, schema, **kw)
        return []

    def get_pk_constraint(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        keys = self._constraints_of(connection, table_name, schema, "PRIMARY KEY", **kw)
        for key in keys:
            return {"constrained_columns": key.columns, "name": key.name}
        return {"constrained_columns": [], "name": None}

    def get_unique_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        keys = self._constraints_of(connection, table_name, schema, "UNIQUE", **kw)
        return [{"name": key.name, "column_names": key.columns} for key in keys]

    def get_check_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        checks = self._constraints_of(connection, table_name, schema, "CHECK", **kw)
        return [{"name": check.name, "sqltext": check.expression} for check in checks]

    def get_foreign_keys(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        keys = self._constraints_of(connection, table_name, schema, "FOREIGN KEY", **kw)
        return [
            {
                "name": key.name,
                "constrained_columns": key.columns,
                "referred_schema": schema,
                "referred_table": key.referred_table,
                "referred_columns": key.referred_columns,
                "options": {},
            }
            for key in keys
        ]

    def get_materialized_view_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return []

    @reflection.cache
    def _constraints(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[catalog.Constraint]:
        return catalog.constraints(connection, schema)

    def _constraints_of(
        self, connection: Connection, name: str, schema: str | None, kind: str, **kw: Any
    ) -> list[catalog.Constraint]:
        table = self._existing(connection, name, schema, **kw)
        identity = (table.name.lower(), table.temporary, kind)
        return [
            constraint
            for constraint in self._constraints(
                connection, schema=schema, info_cache=kw.get("info_cache")
            )
            if (constraint.relation, constraint.temporary, constraint.kind) == identity
        ]

    def _existing(
        self, connection: Connection, name: str, schema: str | None, **kw: Any
    ) -> catalog.Relation:
        """The table or view, from the cached list of its schema."""
        relations = [
            relation
            for relation in self._relations(
                connection, schema=schema, info_cache=kw.get("info_cache")
            )
            if relation.name.lower() == name.lower()
        ]
        if not relations:
            raise exc.NoSuchTableError(_full_name(schema, name))
        return max(relations, key=lambda relation: relation.temporary)


def _full_name(schema: str | None, name: str) -> str:
    return f"{schema}.{name}" if schema else name


def _parse(name: str, text: str) -> Any:
    """The value of an option of a URL."""
    try:
        if name == "tls":
            return _BOOLEANS[text.lower()]
        return _OPTIONS[name](text)
    except KeyError:
        known = ", ".join(("tls", *_OPTIONS))
        raise ConfigError(
            f"{name} in the URL is not one of {known}, or not true or false."
        ) from None
    except ValueError:
        raise ConfigError(f"{name} in the URL is {text!r}, which is not a number.") from None
