"""The SQLAlchemy dialect without a server: URLs, types and compiled SQL."""

from __future__ import annotations

import tomllib
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable

from swanlake import dbapi
from swanlake.client.sqlalchemy_dialect import SwanLakeDialect
from swanlake.client.sqlalchemy_dialect.catalog import SchemaName
from swanlake.client.sqlalchemy_dialect.types import HUGEINT, MAP, STRUCT, UNION, parse_type
from swanlake.errors import ClientClosed, ConfigError, ConnectionLost, QueryError, SessionLost

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
DIALECT = SwanLakeDialect()


def text_of(statement: Any, **options: Any) -> str:
    return " ".join(str(statement.compile(dialect=DIALECT, **options)).split())


def test_package_registers_the_dialect() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    entry = f"{SwanLakeDialect.__module__}:{SwanLakeDialect.__name__}"
    assert project["entry-points"]["sqlalchemy.dialects"] == {
        SwanLakeDialect.name: entry,
        f"{SwanLakeDialect.name}.{SwanLakeDialect.driver}": entry,
    }
    assert project["optional-dependencies"]["sqlalchemy"]


@pytest.mark.parametrize(
    ("url", "address", "options"),
    [
        ("swanlake://", "grpc://127.0.0.1:4214", {}),
        ("swanlake://lake.example/sales", "grpc://lake.example:4214/sales", {}),
        ("swanlake://[::1]:5000", "grpc://[::1]:5000", {}),
        ("swanlake://h/a%20b", "grpc://h:4214/a%20b", {}),
        ("swanlake://h?tls=true&tls_ca=ca.pem", "grpc+tls://h:4214", {"tls_ca": "ca.pem"}),
        ("swanlake://u:p%40@h", "grpc://h:4214", {"user": "u", "password": "p@"}),
        ("swanlake://:secret@h", "grpc://h:4214", {"token": "secret"}),
        ("swanlake://h?token=secret", "grpc://h:4214", {"token": "secret"}),
        ("swanlake://h?timeout=2.5", "grpc://h:4214", {"timeout": 2.5}),
    ],
)
def test_url_gives_connect_arguments(url: str, address: str, options: dict[str, Any]) -> None:
    assert DIALECT.create_connect_args(make_url(url)) == ([address], options)


@pytest.mark.parametrize("query", ["tls=perhaps", "timeout=soon", "colour=blue"])
def test_unknown_url_option_is_refused(query: str) -> None:
    with pytest.raises(ConfigError, match=query.split("=")[0]):
        DIALECT.create_connect_args(make_url(f"swanlake://h?{query}"))


def test_engine_repr_hides_token() -> None:
    for url in ("swanlake://h?token=secret", "swanlake://:secret@h"):
        engine = sa.create_engine(url)
        assert "secret" not in f"{engine!r} {engine.url} {engine.url!r}"
        assert engine.dialect.create_connect_args(engine.url)[1] == {"token": "secret"}


@pytest.mark.parametrize(
    ("credentials", "used"),
    [({}, "from the shell"), ({"token": "mine"}, "mine"), ({"user": "u", "password": "p"}, None)],
)
def test_token_of_environment_is_the_default(
    credentials: dict[str, str], used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(dbapi, "connect", lambda url, **options: seen.update(options))
    monkeypatch.setenv("SWANLAKE_TOKEN", "from the shell")
    DIALECT.connect("grpc://h", **credentials)
    assert seen.get("token") == used


def test_is_disconnect_by_error() -> None:
    for error in (ConnectionLost("x"), SessionLost("x"), ClientClosed("x")):
        assert DIALECT.is_disconnect(error, None, None)
    assert not DIALECT.is_disconnect(QueryError("x"), None, None)


TYPES = [
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT UHUGEINT",
    "BIGNUM DOUBLE VARCHAR BLOB BIT DATE TIME TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS",
    "INTERVAL UUID JSON VARIANT GEOMETRY",
]


@pytest.mark.parametrize(
    "text",
    [
        *" ".join(TYPES).split(),
        "TIMESTAMP WITH TIME ZONE",
        "TIME WITH TIME ZONE",
        "DECIMAL(10, 2)",
        "INTEGER[]",
        "DECIMAL(38, 0)[][]",
        'STRUCT(a INTEGER, "b c" VARCHAR[], "q""(,)" DATE)',
        "MAP(VARCHAR, STRUCT(x DOUBLE, y MAP(INTEGER, BLOB)))",
        "UNION(num INTEGER, str VARCHAR)",
        "STRUCT(a STRUCT(b INTEGER)[])[]",
    ],
)
def test_reflected_type_compiles_to_its_name(text: str) -> None:
    assert DIALECT.type_compiler_instance.process(parse_type(text)) == text


def test_nested_types_are_parsed() -> None:
    struct = parse_type("STRUCT(a DECIMAL(10,2), b HUGEINT)")
    assert isinstance(struct, STRUCT)
    assert (struct.fields["a"].scale, type(struct.fields["b"])) == (2, HUGEINT)  # type: ignore[attr-defined]
    mapped = parse_type("MAP(VARCHAR, UNION(i INTEGER, s VARCHAR))")
    assert isinstance(mapped, MAP)
    assert isinstance(mapped.value, UNION)
    assert parse_type("ENUM('a', 'it''s, ok')").enums == ["a", "it's, ok"]  # type: ignore[attr-defined]


def test_unknown_type_warns() -> None:
    with pytest.warns(exc.SAWarning, match="QUBIT"):
        assert isinstance(parse_type("QUBIT"), sa.types.NullType)


def test_names_are_quoted_if_needed() -> None:
    table = sa.table("Capital", sa.column("select"), sa.column('a"b'), sa.column("plain"))
    assert text_of(sa.select(table)) == (
        'SELECT "Capital"."select", "Capital"."a""b", "Capital".plain FROM "Capital"'
    )
    assert text_of(sa.select(sa.column("x")).select_from(sa.table("t", schema="Some Day"))) == (
        'SELECT x FROM "Some Day".t'
    )


@pytest.mark.parametrize(
    ("schema", "sql", "parts"),
    [
        ("s", "s.t", (None, "s")),
        ("other.s", "other.s.t", ("other", "s")),
        ("Other.Some Day", '"Other"."Some Day".t', ("Other", "Some Day")),
        ('"a.b"', '"a.b".t', (None, "a.b")),
        ('c."a""."', 'c."a"".".t', ("c", 'a".')),
        (sa.quoted_name("a.b", quote=True), '"a.b".t', (None, "a.b")),
        ("a.b.c", '"a.b.c".t', (None, "a.b.c")),
    ],
)
def test_schema_may_name_its_catalog(
    schema: str, sql: str, parts: tuple[str | None, str | None]
) -> None:
    assert SchemaName.parse(schema) == SchemaName(*parts)
    assert text_of(sa.select(sa.literal_column("1")).select_from(sa.table("t", schema=schema))) == (
        f"SELECT 1 FROM {sql}"
    )
    assert text_of(CreateSchema(schema)) == f"CREATE SCHEMA {sql[:-2]}"


def test_reserved_words_are_quoted() -> None:
    duckdb = pytest.importorskip("duckdb")
    sql = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    with duckdb.connect() as connection:
        words = {word for (word,) in connection.execute(sql).fetchall()}
    assert words <= DIALECT.identifier_preparer.reserved_words


def test_parameters_are_numbered() -> None:
    """DuckDB does not number the ? of this statement in textual order."""
    table = sa.table("t", sa.column("a"), sa.column("b"))
    other = sa.select(sa.literal("x").label("b")).subquery("other")
    change = sa.update(table).values(a=1).where(table.c.b == other.c.b)
    assert text_of(change) == (
        "UPDATE t SET a=$1 FROM (SELECT $2 AS b) AS other WHERE t.b = other.b"
    )


def test_expressions_compile_to_duckdb_sql() -> None:
    x, j = sa.column("x", sa.Integer), sa.column("j", sa.JSON)
    as_text = {"compile_kwargs": {"literal_binds": True}}
    assert text_of(x // 2, **as_text) == "x // 2"
    assert text_of(x // sa.literal(2.5), **as_text) == "floor(x / 2.5)"
    assert text_of(sa.cast(x, sa.VARBINARY(9))) == "CAST(x AS BLOB)"
    assert text_of(sa.column("s", sa.String).regexp_match("^a"), **as_text) == (
        "regexp_matches(s, '^a')"
    )
    assert text_of(j["k"].as_integer(), **as_text) == "CAST((j ->> '$.\"k\"') AS INTEGER)"
    assert text_of(j[("k", 0)], **as_text) == "(j -> '$.\"k\"[0]')"
    assert text_of(sa.select(x).offset(3), **as_text) == "SELECT x OFFSET 3"
    assert text_of(sa.select(x).with_for_update()) == "SELECT x"
    assert text_of(sa.literal(b"\x00'"), **as_text) == "from_hex('0027')"


def test_create_table_omits_unsupported_constraints() -> None:
    meta = sa.MetaData()
    parent = sa.Table("parent", meta, sa.Column("id", sa.Integer, primary_key=True))
    assert text_of(CreateTable(parent)) == "CREATE TABLE parent ( id INTEGER NOT NULL )"
    child = sa.Table("child", meta, sa.Column("of", sa.ForeignKey("parent.id"), index=True))
    with pytest.warns(exc.SAWarning, match="no ForeignKeyConstraint: table child is made without"):
        assert text_of(CreateTable(child)) == "CREATE TABLE child ( of INTEGER )"
    assert text_of(CreateIndex(next(iter(child.indexes)))).startswith("SELECT 'DuckLake has no")


@pytest.mark.parametrize("source", [sa.Identity(), sa.Sequence("numbers")])
def test_identity_and_sequence_are_refused(source: Any) -> None:
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, source, primary_key=True))
    with pytest.raises(exc.CompileError, match=r"give column t\.id a default in Python"):
        text_of(CreateTable(table))


@pytest.mark.parametrize(
    ("kind", "column", "needed"),
    [
        (sa.Float(), pa.float64(), False),
        (sa.Float(), pa.decimal128(10, 2), True),
        (sa.Float(asdecimal=True), pa.float64(), True),
        (sa.Numeric(10, 2), pa.decimal128(10, 2), False),
        (sa.Numeric(10, 2), pa.float64(), True),
        (sa.Numeric(10, 2), None, True),
        (sa.Time(), pa.time64("us"), False),
        (sa.Time(timezone=True), pa.string(), True),
        (HUGEINT(), pa.int64(), False),
        (HUGEINT(), pa.decimal128(38, 0), True),
        (sa.DateTime(), pa.timestamp("us"), False),
        (sa.String(), pa.string(), False),
    ],
    ids=str,
)
def test_values_are_converted_only_where_needed(kind: Any, column: Any, needed: bool) -> None:
    processor = kind.dialect_impl(DIALECT).result_processor(DIALECT, column)
    assert (processor is not None) == needed


def test_uuid_as_text_has_no_hyphens() -> None:
    kind = sa.Uuid(native_uuid=False).dialect_impl(DIALECT)
    key = uuid.UUID("e9a1c0f2-7f3b-4d7c-8a11-0123456789ab")
    bind, result = kind.bind_processor(DIALECT), kind.result_processor(DIALECT, pa.string())
    assert bind is not None
    assert result is not None
    assert (bind(key), result(key.hex)) == (key.hex, key)


def test_temporary_table_has_its_constraints() -> None:
    key = sa.Column("id", sa.Integer, primary_key=True)
    table = sa.Table("mine", sa.MetaData(), key, prefixes=["TEMPORARY"])
    assert text_of(CreateTable(table)).endswith("( id INTEGER NOT NULL, PRIMARY KEY (id) )")
