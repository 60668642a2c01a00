"""Types and ids of columns."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.errors import InvalidRequest
from swanlake.lake.model.layout import Column, Default
from swanlake.lake.model.types import ColumnSpec, UnsupportedType, duckdb_type, number_columns

SIMPLE = {
    "BOOLEAN": "boolean",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "HUGEINT": "int128",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
    "UHUGEINT": "uint128",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "DECIMAL(10,2)": "decimal(10,2)",
    "DECIMAL(38,0)": "decimal(38,0)",
    "DATE": "date",
    "TIME": "time",
    "TIME WITH TIME ZONE": "timetz",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp_s",
    "TIMESTAMP_MS": "timestamp_ms",
    "TIMESTAMP_NS": "timestamp_ns",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "INTERVAL": "interval",
    "VARCHAR": "varchar",
    "JSON": "json",
    "BLOB": "blob",
    "UUID": "uuid",
    "VARIANT": "variant",
    "GEOMETRY": "geometry",
}


def column(type_: str) -> Column:
    (numbered,) = number_columns([ColumnSpec("x", type_)])
    return numbered


@pytest.mark.parametrize(("sql", "word"), SIMPLE.items())
def test_simple_type_round_trips(sql: str, word: str) -> None:
    assert column(sql) == Column(1, "x", word)
    assert duckdb_type(column(sql)) == sql


@pytest.mark.parametrize(
    ("alias", "word"),
    [
        ("int2", "int16"),
        ("numeric", "decimal(18,3)"),
        ("text", "varchar"),
        ("timestamptz", "timestamptz"),
        ("bytea", "blob"),
        ("GEOMETRY('OGC:CRS84')", "geometry"),
    ],
)
def test_type_alias_is_normalized(alias: str, word: str) -> None:
    assert column(alias).type == word


def test_column_ids_are_numbered_depth_first() -> None:
    columns = number_columns(
        [
            ColumnSpec("i", "INTEGER", nullable=False, default=Default("7")),
            ColumnSpec("s", 'STRUCT(a INTEGER, "b ""c" VARCHAR[])', nullable=False),
            ColumnSpec("m", "MAP(VARCHAR, STRUCT(d DATE))"),
            ColumnSpec("z", "JSON[][]"),
        ]
    )
    assert columns == (
        Column(1, "i", "int32", nullable=False, default=Default("7")),
        Column(
            2,
            "s",
            "struct",
            nullable=False,
            children=(
                Column(3, "a", "int32"),
                Column(4, 'b "c', "list", children=(Column(5, "element", "varchar"),)),
            ),
        ),
        Column(
            6,
            "m",
            "map",
            children=(
                Column(7, "key", "varchar"),
                Column(8, "value", "struct", children=(Column(9, "d", "date"),)),
            ),
        ),
        Column(
            10,
            "z",
            "list",
            children=(Column(11, "element", "list", children=(Column(12, "element", "json"),)),),
        ),
    )
    assert duckdb_type(columns[1]) == 'STRUCT("a" INTEGER, "b ""c" VARCHAR[])'
    assert duckdb_type(columns[2]) == 'MAP(VARCHAR, STRUCT("d" DATE))'
    assert duckdb_type(columns[3]) == "JSON[][]"


@pytest.mark.parametrize("sql", ['STRUCT("select" INTEGER, "a b" MAP(UUID, JSON[]))[]'])
def test_duckdb_type_is_valid_in_a_cast(sql: str) -> None:
    text = duckdb_type(column(sql))
    assert duckdb.sqltype(text) == duckdb.sqltype(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "BIT",
        "BIGNUM",
        "TIME_NS",
        "INTEGER[3]",
        "STRUCT(a INTEGER[3][])",
        "ENUM('a')",
        "UNION(a INTEGER, b VARCHAR)",
        '"NULL"',
        "VARIANT[]",
        "STRUCT(a INTEGER, A INTEGER)",
        "VARCHAR COLLATE NOCASE",
        "no_such_type",
        "DECIMAL(39,0)",
        "STRUCT(",
        "",
    ],
)
def test_unsupported_type_is_refused_in_one_line(sql: str) -> None:
    with pytest.raises(UnsupportedType) as refused:
        column(sql)
    assert refused.value.identifier == "UNSUPPORTED_TYPE"
    assert "\n" not in refused.value.message


def test_field_can_be_named_collate() -> None:
    assert column('STRUCT("collate" INTEGER)').children[0].name == "collate"


def test_invalid_column_list_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one column"):
        number_columns([])
    with pytest.raises(InvalidRequest, match="'A' is there twice"):
        number_columns([ColumnSpec("a", "INTEGER"), ColumnSpec("A", "INTEGER")])
    with pytest.raises(InvalidRequest, match="needs a name"):
        number_columns([ColumnSpec("", "INTEGER")])
    with pytest.raises(UnsupportedType, match="cannot have a default"):
        number_columns([ColumnSpec("a", "INTEGER[]", default=Default("[]"))])
    assert len(number_columns([ColumnSpec("é", "INTEGER"), ColumnSpec("É", "INTEGER")])) == 2


def test_type_names_of_other_writers_are_read() -> None:
    assert duckdb_type(Column(1, "x", "timestamp_us")) == "TIMESTAMP"
    assert duckdb_type(Column(1, "x", "time_ns")) == "TIME_NS"
    with pytest.raises(UnsupportedType, match="'point'"):
        duckdb_type(Column(1, "x", "point"))
