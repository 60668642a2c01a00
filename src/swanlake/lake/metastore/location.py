"""How an engine attaches a catalog."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from psycopg.conninfo import make_conninfo

from swanlake.errors import CatalogUnreachable, ConfigError
from swanlake.lake.metastore.passfile import write_passfile
from swanlake.lake.metastore.postgres_connection import parse_url
from swanlake.sql.quoting import identifier, literal

#: libpq's parameter names and those of DuckDB's postgres secret.
_SECRET_PARAMETERS = {
    "host": "HOST",
    "hostaddr": "HOST",
    "port": "PORT",
    "user": "USER",
    "dbname": "DATABASE",
}
#: Bounds the extension's waits, for the network and for transactions that stay open.
_CONNECT_TIMEOUT = {"connect_timeout": "10"}
_LOCK_TIMEOUT = "-c lock_timeout=30s"
#: DuckLake 1.5.5 corrupts inlined structs: quotes vanish, dates become unreadable.
_OPTIONS = ("CREATE_IF_NOT_EXISTS false", "DATA_INLINING_ROW_LIMIT 0")


@dataclass(frozen=True)
class LakeLocation:
    """A catalog's name and metadata location: a SQLite file, or a PostgreSQL schema."""

    catalog: str
    sqlite_path: Path | None = None
    metabase_url: str = field(default="", repr=False)
    metadata_schema: str = ""

    @property
    def storage_name(self) -> str:
        """The name of the file or schema; unlike the catalog's name it is never reused."""
        if self.sqlite_path is not None:
            return self.sqlite_path.stem
        return self.metadata_schema.removeprefix("lake_")

    def attach(self, connection: duckdb.DuckDBPyConnection, *, read_only: bool = False) -> None:
        """Attaches the catalog to an engine under its name, unless that name is attached."""
        source, options = f"ducklake:sqlite:{self.sqlite_path}", list(_OPTIONS)
        if read_only:
            options.append("READ_ONLY")
        if self.sqlite_path is None:
            # Through a secret: duckdb_databases() shows the path of an ATTACH to every session.
            secret = "swanlake_metabase"
            connection.execute(f"CREATE OR REPLACE SECRET {secret} ({self._secret_parameters()})")
            source = "ducklake:postgres:" + self._extra_parameters()
            options += [
                f"METADATA_SCHEMA {literal(self.metadata_schema)}",
                f"META_SECRET {literal(secret)}",
                # Otherwise every catalog would cache the tables of all catalogs of the database.
                f"META_SCHEMA {literal(self.metadata_schema)}",
            ]
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
        """The statement that attaches the catalog in stock DuckDB, without a password."""
        source, options = f"ducklake:sqlite:{self.sqlite_path}", list(_OPTIONS)
        if self.sqlite_path is None:
            shown = {
                name: value
                for name, value in self._conninfo().items()
                if "password" not in name and "secret" not in name
            }
            source = "ducklake:postgres:" + make_conninfo(**shown)
            options.append(f"METADATA_SCHEMA {literal(self.metadata_schema)}")
        return f"ATTACH {literal(source)} AS {identifier(self.catalog)} ({', '.join(options)});"

    def _conninfo(self) -> dict[str, str]:
        parameters = parse_url(self.metabase_url)
        return {name: str(value) for name, value in parameters.items() if value not in (None, "")}

    def _secret_parameters(self) -> str:
        conninfo = self._conninfo()
        parameters = [
            f"{secret_name} {literal(conninfo[name])}"
            for name, secret_name in _SECRET_PARAMETERS.items()
            if name in conninfo
        ]
        return ", ".join(["TYPE postgres", *parameters])

    def _extra_parameters(self) -> str:
        """Parameters that a secret cannot hold: sslmode, options, …"""
        conninfo = _CONNECT_TIMEOUT | self._conninfo()
        # PostgreSQL applies options in their order, so the URL can set another lock_timeout.
        conninfo["options"] = f"{_LOCK_TIMEOUT} {conninfo.get('options', '')}".strip()
        if "password" in conninfo:
            conninfo["passfile"] = str(write_passfile(conninfo))
            del conninfo["password"]
        extra = {name: value for name, value in conninfo.items() if name not in _SECRET_PARAMETERS}
        shown = [name for name in extra if "password" in name or "secret" in name]
        if shown:
            raise ConfigError(
                f"metabase_url holds {shown[0]}, which DuckDB would show to every session. Use a "
                "key or a service that needs none."
            )
        return " ".join(f"{name}='{_escape(value)}'" for name, value in extra.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
