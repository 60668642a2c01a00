"""Where a lake lives, and how an engine attaches it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import psycopg
from psycopg.conninfo import conninfo_to_dict

from swanlake.errors import CatalogUnreachable, ConfigError
from swanlake.sql.quoting import identifier, literal

_CONNECT_TIMEOUT_SECONDS = 10
#: libpq's parameter names and those of DuckDB's postgres secret.
_SECRET_PARAMETERS = {
    "host": "HOST",
    "hostaddr": "HOST",
    "port": "PORT",
    "user": "USER",
    "password": "PASSWORD",
    "dbname": "DATABASE",
}


@dataclass(frozen=True)
class LakeLocation:
    """A catalog by name, its metadata (PostgreSQL or a SQLite file) and its data."""

    catalog: str
    sqlite_path: Path
    data_path: str
    metabase_url: str = field(default="", repr=False)

    def prepare(self) -> None:
        """Makes what must exist before the first ATTACH; raises CatalogUnreachable if it cannot."""
        try:
            if "://" not in self.data_path:
                Path(self.data_path).mkdir(parents=True, exist_ok=True)
            if self.metabase_url:
                self._check_metabase()
            else:
                self._prepare_sqlite()
        except (OSError, sqlite3.Error, psycopg.Error) as unreachable:
            reason = " ".join(str(unreachable).split())
            raise CatalogUnreachable(
                f"The lake {self.catalog!r} cannot be opened: {reason}"
            ) from None

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Attaches the lake to an engine under its catalog name."""
        # DuckLake 1.5.5 spoils structs that it keeps inlined: quotes vanish, dates cannot be read.
        options = [f"DATA_PATH {literal(self.data_path)}", "DATA_INLINING_ROW_LIMIT 0"]
        if self.metabase_url:
            # Through a secret, because duckdb_databases() shows the path of an ATTACH to everyone.
            secret = identifier(f"{self.catalog}_metabase")
            connection.execute(f"CREATE OR REPLACE SECRET {secret} ({self._secret_parameters()})")
            source = "ducklake:postgres:" + self._extra_parameters()
            options += [
                f"METADATA_SCHEMA {literal('lake_' + self.catalog)}",
                f"META_SECRET {literal(f'{self.catalog}_metabase')}",
            ]
        else:
            source = f"ducklake:sqlite:{self.sqlite_path}"
        try:
            connection.execute(
                f"ATTACH {literal(source)} AS {identifier(self.catalog)} ({', '.join(options)})"
            )
        except duckdb.Error as unreachable:
            reason = " ".join(str(unreachable).split())
            raise CatalogUnreachable(
                f"The lake {self.catalog!r} cannot be attached: {reason}"
            ) from None

    def _prepare_sqlite(self) -> None:
        self.sqlite_path.parent.mkdir(parents=True, exist_ok=True)
        # In SQLite's default rollback mode one writer locks every reader out; the mode is kept in
        # the file, so that any other client of the lake gets it too.
        connection = sqlite3.connect(self.sqlite_path, timeout=_CONNECT_TIMEOUT_SECONDS)
        try:
            connection.execute("PRAGMA journal_mode=wal")
        finally:
            connection.close()

    def _conninfo(self) -> dict[str, str]:
        try:
            found = conninfo_to_dict(self.metabase_url)
        except psycopg.ProgrammingError:
            raise ConfigError(
                "metabase_url is not a PostgreSQL URL or connection string."
            ) from None
        return {name: str(value) for name, value in found.items() if value not in (None, "")}

    def _check_metabase(self) -> None:
        parameters = {"connect_timeout": str(_CONNECT_TIMEOUT_SECONDS)} | self._conninfo()
        psycopg.connect(**parameters).close()  # type: ignore[arg-type]

    def _secret_parameters(self) -> str:
        conninfo = self._conninfo()
        given = [
            f"{secret_name} {literal(conninfo[name])}"
            for name, secret_name in _SECRET_PARAMETERS.items()
            if name in conninfo
        ]
        return ", ".join(["TYPE postgres", *given])

    def _extra_parameters(self) -> str:
        """What a secret cannot hold (sslmode, options, …); none of it is a password."""
        return " ".join(
            f"{name}='{_escape(value)}'"
            for name, value in self._conninfo().items()
            if name not in _SECRET_PARAMETERS
        )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
