"""Sample transforms, as users write them."""

from __future__ import annotations

from typing import Any

import swanlake


@swanlake.transform("main.cleaned")
def cleaned(rows: Any) -> Any:
    """Filter, deduplicate, enrich and reshape."""
    from pyspark.sql import functions as f

    return (
        rows.filter("amount > 0")
        .dropDuplicates(["id"])
        .withColumn("country", f.upper("country"))
        .select("country", "id", f.col("amount") * 2)
        .toDF("country", "id", "amount")
    )


@swanlake.transform("main.sorted_out", into=["main.good", "main.bad"])
def sorted_out(rows: Any) -> Any:
    """Route to other tables, by a rule."""
    return {"main.good": rows.filter("id % 2 = 0"), "MAIN.bad": rows.filter("id % 2 = 1")}


@swanlake.transform("main.redirected", into="main.elsewhere")
def redirected(rows: Any) -> Any:
    return rows


@swanlake.transform("main.every_type")
def every_type(rows: Any) -> Any:
    return rows


@swanlake.transform("main.with_udf")
def with_udf(rows: Any) -> Any:
    """Python code that runs in the workers."""
    from pyspark.sql import functions as f

    return rows.withColumn("note", f.udf(shout)("note"))


def shout(text: str) -> str:
    return text.upper() + "!"


@swanlake.transform("main.raises")
def raises(rows: Any) -> Any:
    raise RuntimeError("the oracle is silent")


@swanlake.transform("main.raises_late")
def raises_late(rows: Any) -> Any:
    from pyspark.sql import functions as f

    return rows.withColumn("id", f.raise_error(f.lit("no such bird")).cast("bigint"))


@swanlake.transform("main.half_done", into=["main.first_half", "main.second_half"])
def half_done(rows: Any) -> Any:
    """The first table can be written, and the second cannot."""
    return {"main.first_half": rows, "main.second_half": raises_late(rows)}


@swanlake.transform("main.adds_a_column")
def adds_a_column(rows: Any) -> Any:
    from pyspark.sql import functions as f

    return rows.withColumn("surprise", f.lit(1))


@swanlake.transform("main.wrong_type")
def wrong_type(rows: Any) -> Any:
    return rows.selectExpr("named_struct('a', id) AS id")


@swanlake.transform("main.too_large")
def too_large(rows: Any) -> Any:
    return rows.selectExpr("CAST(id AS bigint) * 1000 AS id")


@swanlake.transform("main.loses_the_key")
def loses_the_key(rows: Any) -> Any:
    return rows.select("note")


@swanlake.transform("main.not_a_frame")
def not_a_frame(rows: Any) -> Any:
    return rows.count()


@swanlake.transform("main.goes_nowhere", into="main.nowhere")
def goes_nowhere(rows: Any) -> Any:
    return rows


@swanlake.transform("main.keeps_nothing")
def keeps_nothing(rows: Any) -> Any:
    return rows.filter("false")
