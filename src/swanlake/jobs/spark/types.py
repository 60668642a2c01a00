"""The lake's types in Spark, for rows that transforms see."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql import types as spark

from swanlake.lake.layout import Column, Table, folded
from swanlake.pipeline.stand_ins import for_spark

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_TYPES: dict[str, type[spark.DataType]] = {
    "boolean": spark.BooleanType,
    "int8": spark.ByteType,
    "int16": spark.ShortType,
    "int32": spark.IntegerType,
    "int64": spark.LongType,
    "float32": spark.FloatType,
    "float64": spark.DoubleType,
    "date": spark.DateType,
    "timestamp": spark.TimestampNTZType,
    "timestamptz": spark.TimestampType,
    "varchar": spark.StringType,
    "blob": spark.BinaryType,
}
_TIMES = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)


def spark_type(column: Column) -> spark.DataType:
    """The type of such a column in Spark."""
    match column.type:
        case "struct":
            return spark.StructType(
                [spark.StructField(child.name, spark_type(child)) for child in column.children]
            )
        case "list":
            return spark.ArrayType(spark_type(column.children[0]))
        case "map":
            key, value = map(spark_type, column.children)
            return spark.MapType(key, value)
    if found := _DECIMAL.fullmatch(column.type):
        return spark.DecimalType(int(found[1]), int(found[2]))
    return _TYPES[column.type]()


def spark_schema(table: Table) -> spark.StructType:
    """What a transform of the table is given."""
    return spark.StructType(
        [spark.StructField(column.name, spark_type(for_spark(column))) for column in table.columns]
    )


def complaints(given: spark.StructType, table: Table) -> Iterator[str]:
    """Why rows of a schema cannot be rows of a table, one clause each."""
    columns = {folded(column.name): column for column in table.columns}
    names = [folded(field.name) for field in given.fields]
    for field in given.fields:
        column = columns.get(folded(field.name))
        if column is None:
            yield f"it gives a column {field.name}, which the table does not have"
        elif names.count(folded(field.name)) > 1:
            yield f"it gives the column {field.name} more than once"
        elif not fits(field.dataType, wanted := spark_type(for_spark(column))):
            yield (
                f"its column {field.name} is {field.dataType.simpleString()}, and the table's "
                f"needs {wanted.simpleString()}"
            )
    for name, column in columns.items():
        if name not in names and not column.nullable and column.default is None:
            yield f"it gives no column {column.name}, which must not be NULL"


def fits(given: spark.DataType, wanted: spark.DataType) -> bool:
    """True if values of a type can be tried as another; a number may still be too large."""
    match given, wanted:
        case spark.NullType(), _:
            return True
        case spark.NumericType(), spark.NumericType():
            return True
        case spark.ArrayType(), spark.ArrayType():
            return fits(given.elementType, wanted.elementType)
        case spark.MapType(), spark.MapType():
            return fits(given.keyType, wanted.keyType) and fits(given.valueType, wanted.valueType)
        case spark.StructType(), spark.StructType():
            return [folded(name) for name in given.names] == [
                folded(name) for name in wanted.names
            ] and all(
                fits(one.dataType, other.dataType)
                for one, other in zip(given.fields, wanted.fields, strict=True)
            )
    if isinstance(given, _TIMES) and isinstance(wanted, _TIMES):
        return True
    return type(given) is type(wanted)
