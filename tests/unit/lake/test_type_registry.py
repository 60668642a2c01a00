"""The registry of types agrees with the libraries whose types it names."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy
from pyspark.sql import types as spark

from swanlake.client.sqlalchemy_dialect.types import parse_type
from swanlake.lake.model.type_registry import LAKE_TYPES, LakeType, decimal_size, find_type
from swanlake.server.xdbc import xdbc_type_info

each_type = pytest.mark.parametrize("type_", LAKE_TYPES.values(), ids=lambda type_: type_.name)


@each_type
def test_duckdb_knows_the_type(type_: LakeType) -> None:
    assert str(duckdb.sqltype(type_.duckdb)) == type_.duckdb


@each_type
def test_arrow_knows_the_type(type_: LakeType) -> None:
    if type_.arrow is not None:
        assert isinstance(pa.type_for_alias(type_.arrow), pa.DataType)


@each_type
def test_spark_has_the_type_or_another_lake_type_carries_it(type_: LakeType) -> None:
    if type_.spark is not None:
        assert issubclass(getattr(spark, type_.spark), spark.DataType)
        assert type_.spark_as is None
    elif type_.spark_as is not None:
        carrier = find_type(type_.spark_as)
        assert carrier is not None
        assert carrier.spark is not None


@each_type
def test_sqlalchemy_reflects_the_type(type_: LakeType) -> None:
    if type_.is_creatable:
        assert not isinstance(parse_type(type_.duckdb), sqlalchemy.types.NullType)


def test_decimal_size_is_parsed() -> None:
    assert decimal_size("decimal(20, 3)") == (20, 3)
    assert decimal_size("int64") is None
    known = find_type("decimal(10,2)")
    assert known is not None
    assert known.duckdb == "DECIMAL(10,2)"


def test_every_xdbc_type_is_in_the_registry() -> None:
    names = set(xdbc_type_info(None).column("type_name").to_pylist())
    assert names - {type_.duckdb for type_ in LAKE_TYPES.values()} == {"DECIMAL"}
