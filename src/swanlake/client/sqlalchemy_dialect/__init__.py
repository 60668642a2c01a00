"""SwanLake for SQLAlchemy: ``create_engine("swanlake://host:4214/catalog")``.

It stands on ``swanlake.client.dbapi``. What DuckLake does not have it does not pretend to have:
primary keys are SQLAlchemy's own affair, indexes are not made, savepoints are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from urllib.parse import quote

from sqlalchemy import exc
from sqlalchemy.engine import URL, Connection, Engine, default, reflection
from sqlalchemy.engine.reflection import ObjectKind, ObjectScope

from swanlake.client import dbapi
from swanlake.client.address import DEFAULT_PORT
from swanlake.client.sqlalchemy_dialect import catalog
from swanlake.client.sqlalchemy_dialect.compiler import (
    DDLCompiler,
    IdentifierPreparer,
    SQLCompiler,
    TypeCompiler,
)
from swanlake.client.sqlalchemy_dialect.types import COLSPECS
from swanlake.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    ServerUnreachable,
    SessionLost,
)

_TRUE = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: What may stand behind the ``?`` of a URL, beside ``tls``.
_OPTIONS = {"token": str, "tls_ca": str, "timeout": float, "connect_timeout": float}


class ExecutionContext(default.DefaultExecutionContext):
    """One statement; every cursor streams."""

    def create_server_side_cursor(self) -> Any:
        return self.create_default_cursor()


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
    # Nothing gives a row a number, and DuckLake has no RETURNING that would tell it.
    supports_sequences = False
    postfetch_lastrowid = False
    insert_returning = update_returning = delete_returning = False
    use_insertmanyvalues = False

    def __init__(self, **options: Any) -> None:
        # DuckDB counts the ? of UPDATE … FROM and DELETE … USING in another order than they stand.
        super().__init__(**{"paramstyle": "numeric_dollar", **options})

    # ---- the connection --------------------------------------------------------------------------

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return dbapi

    def create_connect_args(self, url: URL) -> tuple[list[str], dict[str, Any]]:
        """Reads ``swanlake://[user:password@]host[:port][/catalog][?tls=true&…]``.

        A password without a user is a token.
        """
        given = {name: str(value) for name, value in url.query.items()}
        scheme = "grpc+tls" if _read("tls", given.pop("tls", "false")) else "grpc"
        options = {name: _read(name, text) for name, text in given.items()}
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
        """Hides a token: SQLAlchemy shows all of a URL in logs and reprs but the password."""
        if "token" in engine.url.query:
            token = str(engine.url.query["token"])
            engine.url = engine.url.difference_update_query(["token"]).set(
                username="", password=token
            )

    def connect(self, *cargs: Any, **cparams: Any) -> Any:
        """Connects; who brings no credentials has those of the environment."""
        if not cparams.keys() & {"token", "user", "password"}:
            cparams["token"] = os.environ.get("SWANLAKE_TOKEN") or None
        return dbapi.connect(*cargs, **cparams)

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        gone = (ConnectionLost, ServerUnreachable, SessionLost, ClientClosed)
        return isinstance(e, gone) or getattr(e, "identifier", "") == "SERVER_DRAINING"

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.client.query("SELECT 1")  # not through a cursor, which would begin
        return True

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:
        version = connection.exec_driver_sql("SELECT version()").scalar()
        return tuple(int(number) for number in re.findall(r"\d+", str(version))[:3])

    def _get_default_schema_name(self, connection: Connection) -> str:
        return str(connection.exec_driver_sql("SELECT current_schema()").scalar())

    # ---- transactions ----------------------------------------------------------------------------

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

    # ---- reflection ------------------------------------------------------------------------------

    @reflection.cache
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        return catalog.schemas(connection)

    @reflection.cache
    def _relations(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[catalog.Relation]:
        return catalog.relations(connection, schema)

    def _names(
        self, connection: Connection, schema: str | None, is_view: bool, temporary: bool, kw: Any
    ) -> list[str]:
        found = self._relations(connection, schema=schema, info_cache=kw.get("info_cache"))
        wanted = (is_view, temporary)
        return [one.name for one in found if (one.is_view, one.temporary) == wanted]

    def get_table_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return self._names(connection, schema, False, False, kw)

    def get_view_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return self._names(connection, schema, True, False, kw)

    def get_temp_table_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return self._names(connection, schema, False, True, kw)

    def get_temp_view_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return self._names(connection, schema, True, True, kw)

    def get_materialized_view_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return []

    def get_sequence_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        return []

    def has_table(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        return catalog.relation(connection, schema, table_name) is not None

    @reflection.cache
    def get_columns(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        found = catalog.columns(connection, schema, [table_name])
        if not found:
            raise exc.NoSuchTableError(_full_name(schema, table_name))
        return found[table_name.lower()]

    def get_multi_columns(
        self,
        connection: Connection,
        *,
        schema: str | None = None,
        filter_names: Iterable[str] | None = None,
        **kw: Any,
    ) -> Any:
        """The columns of many tables, in one query for all of them."""
        columns = catalog.columns(connection, schema, filter_names)
        for one in catalog.relations(connection, schema):
            of_kind = ObjectKind.VIEW if one.is_view else ObjectKind.TABLE
            of_scope = ObjectScope.TEMPORARY if one.temporary else ObjectScope.DEFAULT
            described = columns.get(one.name.lower())
            if described is not None and of_kind in kw["kind"] and of_scope in kw["scope"]:
                yield (schema, one.name), described

    def get_view_definition(
        self, connection: Connection, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        found = self._existing(connection, view_name, schema)
        if not found.is_view or found.sql is None:
            raise exc.NoSuchTableError(f"{_full_name(schema, view_name)} is not a view")
        return found.sql

    def get_table_comment(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return {"text": self._existing(connection, table_name, schema).comment}

    def get_pk_constraint(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return {"constrained_columns": [], "name": None}

    def _none(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return []

    # DuckLake has none of them.
    get_foreign_keys = get_indexes = _none
    get_unique_constraints = get_check_constraints = _none

    def _existing(self, connection: Connection, name: str, schema: str | None) -> catalog.Relation:
        found = catalog.relation(connection, schema, name)
        if found is None:
            raise exc.NoSuchTableError(_full_name(schema, name))
        return found


def _full_name(schema: str | None, name: str) -> str:
    return f"{schema}.{name}" if schema else name


def _read(name: str, text: str) -> Any:
    """The value of an option in a URL."""
    try:
        if name == "tls":
            return _TRUE[text.lower()]
        return _OPTIONS[name](text)
    except KeyError:
        known = ", ".join(("tls", *_OPTIONS))
        raise ConfigError(
            f"{name} in the URL is not one of {known}, or not true or false."
        ) from None
    except ValueError:
        raise ConfigError(f"{name} in the URL is {text!r}, which is not a number.") from None
