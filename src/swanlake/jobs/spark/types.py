"""The Spark types of the lake's columns, for the rows that transforms receive."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import types as spark

from swanlake.jobs.spark.casts import spark_column
from swanlake.lake.model.layout import Column, Table, folded
from swanlake.lake.model.type_registry import LAKE_TYPES, decimal_size

_TIMES = (spark.DateType, spark.TimestampType, spark.TimestampNTZType)


def spark_type(column: Column) -> spark.DataType:
    """The Spark type of a column that ``spark_column`` returned."""
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
    if size := decimal_size(column.type):
        return spark.DecimalType(*size)
    kind: type[spark.DataType] = getattr(spark, LAKE_TYPES[column.type].spark or "")
    return kind()


def spark_schema(table: Table) -> spark.StructType:
    """The schema of the DataFrame that a transform of the table receives."""
    columns = tuple(map(spark_column, table.columns))
    return spark.StructType([spark.StructField(c.name, spark_type(c)) for c in columns])


def schema_mismatches(schema: spark.StructType, table: Table) -> Iterator[str]:
    """Why rows of a schema do not fit a table, one clause each."""
    columns = {folded(column.name): column for column in table.columns}
    names = [folded(field.name) for field in schema.fields]
    for field in schema.fields:
        column = columns.get(folded(field.name))
        if column is None:
            yield f"it gives a column {field.name}, which the table does not have"
        elif names.count(folded(field.name)) > 1:
            yield f"it gives the column {field.name} more than once"
        elif not is_castable(field.dataType, expected := spark_type(spark_column(column))):
            yield (
                f"its column {field.name} is {field.dataType.simpleString()}, and the table's "
                f"needs {expected.simpleString()}"
            )
    for name, column in columns.items():
        if name not in names and not column.nullable and column.default is None:
            yield f"it gives no column {column.name}, which must not be NULL"


def is_castable(source: spark.DataType, target: spark.DataType) -> bool:
    """True if a type can be cast to another; a value may still be out of range."""
    match source, target:
        case (spark.NullType(), _) | (spark.NumericType(), spark.NumericType()):
            return True
        case spark.ArrayType(), spark.ArrayType():
            return is_castable(source.elementType, target.elementType)
        case spark.MapType(), spark.MapType():
            return is_castable(source.keyType, target.keyType) and is_castable(
                source.valueType, target.valueType
            )
        case spark.StructType(), spark.StructType():
            return [folded(name) for name in source.names] == [
                folded(name) for name in target.names
            ] and all(
                is_castable(field.dataType, target_field.dataType)
                for field, target_field in zip(source.fields, target.fields, strict=True)
            )
    if isinstance(source, _TIMES) and isinstance(target, _TIMES):
        return True
    return type(source) is type(target)
