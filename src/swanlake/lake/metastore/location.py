"""How an engine attaches a catalog."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from swanlake.errors import CatalogUnreachable, ConfigError
from swanlake.sql.quoting import identifier, literal

#: libpq's parameter names and those of DuckDB's postgres secret.
_SECRET_PARAMETERS = {
    "host": "HOST",
    "hostaddr": "HOST",
    "port": "PORT",
    "user": "USER",
    "password": "PASSWORD",
    "dbname": "DATABASE",
}
#: So that no statement of the extension's waits for ever, on a network or behind a transaction that
#: another program leaves open.
_BOUNDS = {"connect_timeout": "10", "options": "-c lock_timeout=30s"}
#: DuckLake 1.5.5 spoils structs that it keeps inlined: quotes vanish, dates cannot be read.
_OPTIONS = ("CREATE_IF_NOT_EXISTS false", "DATA_INLINING_ROW_LIMIT 0")


@dataclass(frozen=True)
class LakeLocation:
    """A catalog by name and where its metadata is: a SQLite file, or a schema in PostgreSQL."""

    catalog: str
    sqlite_path: Path | None = None
    metabase_url: str = field(default="", repr=False)
    metadata_schema: str = ""

    @property
    def place(self) -> str:
        """What the catalog's metadata is called where it is; names can change hands."""
        if self.sqlite_path is not None:
            return self.sqlite_path.stem
        return self.metadata_schema.removeprefix("lake_")

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Attaches the catalog to an engine under its name, if nothing of that name is attached."""
        options = list(_OPTIONS)
        if self.sqlite_path is None:
            # Through a secret, because duckdb_databases() shows the path of an ATTACH to everyone.
            secret = "swanlake_metabase"
            connection.execute(f"CREATE OR REPLACE SECRET {secret} ({self._secret_parameters()})")
            source = "ducklake:postgres:" + self._extra_parameters()
            options += [
                f"METADATA_SCHEMA {literal(self.metadata_schema)}",
                f"META_SECRET {literal(secret)}",
            ]
        else:
            source = f"ducklake:sqlite:{self.sqlite_path}"
        try:
            connection.execute(
                f"ATTACH IF NOT EXISTS {literal(source)} AS {identifier(self.catalog)} "
                f"({', '.join(options)})"
            )
        except duckdb.Error as unreachable:
            reason = " ".join(str(unreachable).split())
            raise CatalogUnreachable(
                f"The catalog {self.catalog} cannot be attached: {reason}"
            ) from None

    @property
    def statement(self) -> str:
        """How stock DuckDB attaches the catalog; who runs it adds the password, if there is one."""
        options = list(_OPTIONS)
        if self.sqlite_path is None:
            shown = {
                name: value
                for name, value in self._conninfo().items()
                if "password" not in name and "secret" not in name
            }
            source = "ducklake:postgres:" + make_conninfo(**shown)
            options.append(f"METADATA_SCHEMA {literal(self.metadata_schema)}")
        else:
            source = f"ducklake:sqlite:{self.sqlite_path}"
        return f"ATTACH {literal(source)} AS {identifier(self.catalog)} ({', '.join(options)});"

    def _conninfo(self) -> dict[str, str]:
        try:
            found = conninfo_to_dict(self.metabase_url)
        except psycopg.ProgrammingError:
            raise ConfigError(
                "metabase_url is not a PostgreSQL URL or connection string."
            ) from None
        return {name: str(value) for name, value in found.items() if value not in (None, "")}

    def _secret_parameters(self) -> str:
        conninfo = self._conninfo()
        given = [
            f"{secret_name} {literal(conninfo[name])}"
            for name, secret_name in _SECRET_PARAMETERS.items()
            if name in conninfo
        ]
        return ", ".join(["TYPE postgres", *given])

    def _extra_parameters(self) -> str:
        """What a secret cannot hold: sslmode, options, …"""
        extra = {
            name: value
            for name, value in (_BOUNDS | self._conninfo()).items()
            if name not in _SECRET_PARAMETERS
        }
        shown = [name for name in extra if "password" in name or "secret" in name]
        if shown:
            raise ConfigError(
                f"metabase_url holds {shown[0]}, which DuckDB would show to every session. Use a "
                "key or a service that needs none."
            )
        return " ".join(f"{name}='{_escape(value)}'" for name, value in extra.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
