"""Engines of readers and writers: catalogs that are created later, files, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as flight
import pytest

from tests.flight import FlightSql
from tests.integration.access.conftest import RoleServer

READER, SELLER = "reader/sales=read,late=read,swanlake=read", "writer/sales=write"


@contextmanager
def calling(server: RoleServer, caller: str) -> Iterator[FlightSql]:
    connection = FlightSql(server.url, authorization=f"Bearer {caller}")
    try:
        yield connection
    finally:
        connection.close()


def values(connection: FlightSql, sql: str) -> list[object]:
    found: list[object] = connection.query(sql).column(0).to_pylist()
    return found


def test_grants_hold_on_postgres(postgres_database: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    server = RoleServer(home, SWANLAKE_METABASE_URL=postgres_database)
    with (
        server,
        calling(server, "admin") as admin,
        calling(server, READER) as reader,
        calling(server, SELLER) as seller,
    ):
        admin.query("CALL swanlake_create_catalog('sales')")
        admin.query("CREATE TABLE sales.main.s AS SELECT 1 AS i")
        assert values(reader, "FROM sales.main.s") == [1]
        seller.query("INSERT INTO sales.main.s SELECT range + 10 FROM range(2000)")
        seller.query("UPDATE sales.main.s SET i = 2 WHERE i = 1")
        assert values(reader, "SELECT min(i) FROM sales.main.s") == [2]
        for sql in ("ALTER TABLE sales.main.s ADD COLUMN j INTEGER", "DELETE FROM sales.main.s"):
            with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
                reader.query(sql)
        # The reader's engine cannot attach it any more, and another one takes its place.
        admin.query("CALL swanlake_create_catalog('late')")
        admin.query("CREATE TABLE late.main.l AS SELECT 3 AS i")
        transaction = reader.begin()
        with pytest.raises(flight.FlightUnavailableError, match="open a new session"):
            reader.query("FROM late.main.l", transaction)
        reader.end(transaction, commit=False)
        assert values(reader, "FROM late.main.l") == [3]
        assert values(reader, "SELECT min(i) FROM sales.main.s") == [2]
        with pytest.raises(flight.FlightUnauthorizedError, match="may not read the catalog late"):
            seller.query("FROM late.main.l")
    assert "Traceback" not in server.log_text


def test_files_of_open_directories_can_be_used(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "in.csv").write_text("i\n1\n2\n")
    (tmp_path / "other.csv").write_text("i\n3\n")
    (files / "link.csv").symlink_to(files / "in.csv")
    home = tmp_path / "home"
    flags = ("--file-access", "directories", "--file-directories", str(files))
    server = RoleServer(home, *flags)
    with server, calling(server, "writer") as writer, calling(server, "reader") as reader:
        writer.query("CREATE TABLE t (i INTEGER)")
        writer.query(f"COPY t FROM '{files}/in.csv'")
        assert values(reader, f"FROM '{files}/in.csv'") == [1, 2]
        assert values(reader, f"FROM read_csv(['{files}/in.csv', '{files}/link.csv'])")
        reader.query(f"COPY (FROM t) TO '{files}/out.csv'")
        assert (files / "out.csv").read_text() == "i\n1\n2\n"
        for path in (tmp_path / "other.csv", files / ".." / "other.csv", home / "data" / "x.csv"):
            for sql in (
                f"FROM '{path}'",
                f"FROM read_csv('{path}')",
                f"COPY t TO '{path}'",
                f"COPY t FROM '{path}'",
                f"SELECT * FROM t, '{path}'",
                f"INSERT INTO t FROM '{path}'",
            ):
                with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
                    writer.query(sql)
        with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
            writer.query(f"FROM read_csv('{files}' || '/in.csv')")
