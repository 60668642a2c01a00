"""SQLAlchemy and pandas against a real server."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from swanlake import errors
from swanlake.client.sqlalchemy_dialect.types import HUGEINT, MAP, STRUCT
from tests.queries import ENDLESS_ROWS
from tests.server_process import ServerProcess


def url_of(server: ServerProcess, **options: str) -> sa.URL:
    return sa.URL.create("swanlake", host="127.0.0.1", port=server.port, query=options)


@pytest.fixture
def engine(server: ServerProcess) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url_of(server))
    yield engine
    engine.dispose()


def run(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for sql in statements:
            connection.exec_driver_sql(sql)


class Color(enum.Enum):
    red = 1
    blue = 2


# ---- tables, rows and values ---------------------------------------------------------------------

MANY_TYPES: dict[str, tuple[Any, Any]] = {
    "id": (sa.Integer, 1),
    "select": (sa.String(20), "it's"),
    "Capital": (sa.Numeric(12, 3), Decimal("1.500")),
    'quo"ted': (sa.Text, "ü"),
    "big": (sa.BigInteger, 2**62),
    "yes": (sa.Boolean, True),
    "real": (sa.Float, 0.1),
    "blob": (sa.LargeBinary, b"\x00\xff'"),
    "day": (sa.Date, dt.date(2020, 1, 2)),
    "clock": (sa.Time, dt.time(1, 2, 3)),
    "moment": (sa.DateTime, dt.datetime(2020, 1, 2, 3, 4, 5, 6)),
    "zoned": (sa.DateTime(timezone=True), dt.datetime(2020, 1, 2, tzinfo=dt.UTC)),
    "span": (sa.Interval, dt.timedelta(days=103, seconds=5)),
    "name": (sa.Uuid, uuid.UUID("e9a1c0f2-7f3b-4d7c-8a11-0123456789ab")),
    "color": (sa.Enum(Color), Color.blue),
    "document": (sa.JSON, {"k": "v", "n": 5, "a": [1, None]}),
    "list": (sa.ARRAY(sa.Integer), [1, None, 3]),
}


def test_values_of_all_types_round_trip(engine: sa.Engine) -> None:
    columns = [sa.Column(name, kind) for name, (kind, _) in MANY_TYPES.items()]
    table = sa.Table('Many "types', sa.MetaData(), *columns)
    row = {name: value for name, (_, value) in MANY_TYPES.items()}
    nothing = dict.fromkeys(row) | {"id": 2, "document": sa.null()}
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), row)
        connection.execute(table.insert().values(nothing))
        both = connection.execute(sa.select(table).order_by(table.c.id)).mappings().all()
        assert dict(both[0]) == row
        assert dict(both[1]) == dict.fromkeys(row) | {"id": 2}
        for name in set(row) - {"document", "list"}:
            condition = table.c[name] == row[name]
            query = sa.select(table.c.id).where(condition)
            assert connection.execute(query).all() == [(1,)], name
            text = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
            assert connection.exec_driver_sql(text).all() == [(1,)], text
        document = table.c.document
        query = sa.select(document["k"].as_string(), document["n"].as_integer(), document[("a", 0)])
        assert connection.execute(query.where(table.c.id == 1)).all() == [("v", 5, 1)]
    assert sa.inspect(engine).has_table('Many "types')
    table.drop(engine)
    assert not sa.inspect(engine).has_table('Many "types')


def test_interval_literals_are_stored(engine: sa.Engine) -> None:
    span = dt.timedelta(days=103, seconds=4)
    table = sa.Table("sa_spans", sa.MetaData(), sa.Column("span", sa.Interval))
    table.create(engine)
    with engine.begin() as connection:
        insert = table.insert().values(span=sa.literal(span, literal_execute=True))
        connection.execute(insert)
        assert connection.scalars(sa.select(table.c.span)).all() == [span]


def test_insert_select_update_delete(engine: sa.Engine) -> None:
    places = sa.Table(
        "sa_places",
        sa.MetaData(),
        sa.Column("city", sa.String, primary_key=True),
        sa.Column("height", sa.Integer, server_default="7"),
    )
    places.create(engine)
    places.create(engine, checkfirst=True)
    with engine.begin() as connection:
        rows = [{"city": f"c{n}", "height": n} for n in range(1000)]
        assert connection.execute(places.insert(), rows).rowcount == 1000
        connection.execute(places.insert(), {"city": "Bern"})
        of = sa.select(places.c.height).where(places.c.city == "Bern")
        assert connection.execute(of).scalar_one() == 7
        done = connection.execute(places.update().where(places.c.height > 989).values(height=0))
        assert done.rowcount == 10
        done = connection.execute(places.delete().where(places.c.city.in_(["c1", "c2"])))
        assert done.rowcount == 2
        query = sa.select(places.c.city).order_by(places.c.height.desc()).limit(2).offset(1)
        assert connection.execute(query).scalars().all() == ["c988", "c987"]
        other = sa.select(sa.literal("c5").label("city")).subquery()
        matched = places.c.city == other.c.city
        assert connection.execute(places.update().where(matched).values(height=-5)).rowcount == 1
        assert connection.execute(places.delete().where(matched)).rowcount == 1


def test_error_wraps_swanlake_error(engine: sa.Engine) -> None:
    run(engine, "CREATE TABLE sa_errors (i INTEGER NOT NULL)")
    cases: list[tuple[str, type[exc.DBAPIError], type[errors.SwanLakeError]]] = [
        ("SELECT nowhere", exc.ProgrammingError, errors.InvalidStatement),
        ("INSERT INTO sa_errors VALUES (NULL)", exc.IntegrityError, errors.ConstraintViolated),
        ("SELECT 'x'::INTEGER", exc.DataError, errors.InvalidValue),
        ("CREATE INDEX x ON sa_errors (i)", exc.DBAPIError, errors.QueryError),
    ]
    for sql, kind, original in cases:
        with pytest.raises(kind) as raised:
            run(engine, sql)
        assert isinstance(raised.value.orig, original)
        assert raised.value.orig.query_id


def test_no_autoincrement(engine: sa.Engine) -> None:
    key = sa.Column("id", sa.Integer, primary_key=True)
    table = sa.Table("sa_numbers", sa.MetaData(), key, sa.Column("s", sa.String))
    table.create(engine)
    refused = pytest.raises(exc.StatementError, match=r"no autoincrement: assign sa_numbers\.id")
    with engine.connect() as connection, refused:
        connection.execute(table.insert(), {"s": "without a number"})


def test_decimals_and_floats_share_a_column(engine: sa.Engine) -> None:
    columns: list[sa.Column[Any]] = [
        sa.Column("n", sa.Integer),
        sa.Column("d", sa.Numeric(12, 4)),
        sa.Column("f", sa.Float),
    ]
    table = sa.Table("sa_mixed", sa.MetaData(), *columns)
    table.create(engine)
    values = [(1, Decimal("0.1"), 0.1), (2, 0.1, Decimal("0.1")), (3, 2, None)]
    with engine.begin() as connection:
        connection.execute(table.insert(), [dict(zip("ndf", row, strict=True)) for row in values])
        rows = connection.execute(sa.select(table).order_by(table.c.n)).all()
        assert rows == [(1, Decimal("0.1"), 0.1), (2, Decimal("0.1"), 0.1), (3, 2, None)]
        half = connection.scalar(sa.select(table.c.d / sa.literal(4, sa.Numeric())).limit(1))
        assert isinstance(half, Decimal)  # DuckDB divides decimals to a DOUBLE
        whole = connection.scalar(sa.select(sa.literal(5.52) // sa.literal(2.4)))
        assert whole == 2


def test_duckdb_expressions(engine: sa.Engine) -> None:
    text, number = sa.column("s", sa.String), sa.column("i", sa.Integer)
    rows = sa.values(number, text, name="v").data([(5, "aXbX"), (5, "b")])
    with engine.connect() as connection:
        queries: list[tuple[Any, Any]] = [
            (sa.select(number.bitwise_xor(3)), [(6,), (6,)]),
            (sa.select(text.regexp_replace("x", "-", flags="gi")), [("a-b-",), ("b",)]),
            (sa.select(text).where(text.regexp_match("^A", flags="i")), [("aXbX",)]),
            (sa.select(number).ext(distinct_on(number)), [(5,)]),
        ]
        for query, expected in queries:
            assert connection.execute(query.select_from(rows)).all() == expected, str(query)


class Base(DeclarativeBase):
    pass


class Place(Base):
    __tablename__ = "sa_orm_places"
    city: Mapped[str] = mapped_column(primary_key=True)
    height: Mapped[int]


def test_orm_works_with_application_keys(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Place(city="Bern", height=540), Place(city="Oslo", height=23)])
        session.commit()
        found = session.get_one(Place, "Bern")
        found.height = 542
        session.commit()
        heights = sa.select(Place.height).order_by(Place.height)
        assert session.scalars(heights).all() == [23, 542]
        session.delete(found)
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Place)) == 1


# ---- transactions and connections ----------------------------------------------------------------


def test_commit_rollback_and_no_savepoints(engine: sa.Engine) -> None:
    run(engine, "CREATE TABLE sa_transactions (i INTEGER)")
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO sa_transactions VALUES (1)")
        connection.rollback()
        connection.exec_driver_sql("INSERT INTO sa_transactions VALUES (2)")
        connection.commit()
        with pytest.raises(exc.InvalidRequestError, match="savepoints"):
            connection.begin_nested()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("INSERT INTO sa_transactions VALUES (3)")
        assert connection.get_isolation_level() == "AUTOCOMMIT"
    with engine.connect() as connection:
        assert str(connection.get_isolation_level()) == "SNAPSHOT"
        rows = connection.exec_driver_sql("FROM sa_transactions ORDER BY 1").all()
    assert rows == [(2,), (3,)]


def test_result_can_be_closed_early(engine: sa.Engine) -> None:
    with engine.connect().execution_options(stream_results=True) as connection:
        result = connection.exec_driver_sql(ENDLESS_ROWS)
        assert result.fetchmany(2) == [(0,), (1,)]
        assert next(result.partitions(3)) == [(2,), (3,), (4,)]
        result.close()
        assert connection.exec_driver_sql(ENDLESS_ROWS).first() == (0,)
        assert connection.scalar(sa.text("SELECT :x + 1"), {"x": 1}) == 2


def test_pool_with_ping_survives_restart(start_server: Callable[..., ServerProcess]) -> None:
    first = start_server()
    engine = sa.create_engine(url_of(first), pool_pre_ping=True)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        assert not connection.connection.dbapi_connection.autocommit  # type: ignore[union-attr]
    first.kill()
    start_server("--port", str(first.port), home=first.home)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 42").scalar() == 42
    engine.dispose()


def test_lost_connection_is_not_reused(
    start_server: Callable[..., ServerProcess],
) -> None:
    first = start_server()
    engine = sa.create_engine(url_of(first))
    with engine.connect() as connection:
        first.kill()
        with pytest.raises(exc.OperationalError) as raised:
            connection.exec_driver_sql("SELECT 1")
        assert raised.value.connection_invalidated
    start_server("--port", str(first.port), home=first.home)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 42").scalar() == 42
    engine.dispose()


def test_engine_url_selects_catalog(engine: sa.Engine, server: ServerProcess) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CALL swanlake_create_catalog('sa_other')")
        here = connection.exec_driver_sql("SELECT current_catalog()").scalar()
    other = sa.create_engine(url_of(server).set(database="sa_other"))
    run(other, "CREATE TABLE only_here (i INTEGER)")
    assert sa.inspect(other).get_table_names() == ["only_here"]
    assert not sa.inspect(engine).has_table("only_here")
    with other.connect() as connection:
        assert connection.exec_driver_sql("SELECT current_catalog()").scalar() != here
    other.dispose()


# ---- reflection ----------------------------------------------------------------------------------


@pytest.fixture
def reflected(engine: sa.Engine) -> sa.Engine:
    run(
        engine,
        "CREATE SCHEMA IF NOT EXISTS sa_schema",
        """CREATE OR REPLACE TABLE sa_schema.wide (
            i INTEGER NOT NULL, "Dec" DECIMAL(10,2) DEFAULT 1.5, s VARCHAR DEFAULT 'it''s',
            l INTEGER[], st STRUCT(a INTEGER, "b c" VARCHAR[]), m MAP(VARCHAR, DOUBLE), u UUID,
            tz TIMESTAMPTZ, iv INTERVAL, j JSON, h HUGEINT, b BLOB, t TIME, f FLOAT, n UINTEGER)""",
        "COMMENT ON TABLE sa_schema.wide IS 'a wide one'",
        "COMMENT ON COLUMN sa_schema.wide.i IS 'a number'",
        "CREATE OR REPLACE VIEW sa_schema.narrow AS SELECT i, s FROM sa_schema.wide",
    )
    return engine


def test_schemas_tables_and_views_are_reflected(reflected: sa.Engine) -> None:
    inspector = sa.inspect(reflected)
    assert inspector.default_schema_name == "main"
    assert {"main", "sa_schema"} <= set(inspector.get_schema_names())
    assert "information_schema" not in inspector.get_schema_names()
    assert inspector.get_table_names("sa_schema") == ["wide"]
    assert inspector.get_view_names("sa_schema") == ["narrow"]
    assert "wide" not in inspector.get_table_names()
    assert "SELECT i, s FROM" in inspector.get_view_definition("narrow", "sa_schema")
    assert inspector.has_table("wide", "sa_schema")
    assert inspector.has_table("WIDE", "sa_schema")  # names ignore case
    assert inspector.has_table("narrow", "sa_schema")
    assert not inspector.has_table("wide")
    assert inspector.get_sequence_names() == []


def test_columns_are_reflected(reflected: sa.Engine) -> None:
    inspector = sa.inspect(reflected)
    columns = {one["name"]: one for one in inspector.get_columns("wide", "sa_schema")}
    i, decimal, text = columns["i"], columns["Dec"], columns["s"]
    assert (i["nullable"], i["default"], i.get("comment")) == (False, None, "a number")
    assert (decimal["nullable"], decimal["default"]) == (True, "'1.5'")
    assert (decimal["type"].precision, decimal["type"].scale) == (10, 2)  # type: ignore[attr-defined]
    assert text["default"] == "'it''s'"
    kinds: dict[str, type[Any]] = {
        "i": sa.INTEGER,
        "l": sa.ARRAY,
        "st": STRUCT,
        "m": MAP,
        "u": sa.UUID,
        "tz": sa.TIMESTAMP,
        "j": sa.JSON,
        "h": HUGEINT,
        "b": sa.BLOB,
        "t": sa.TIME,
        "f": sa.REAL,
        "n": sa.BigInteger,
    }
    for name, kind in kinds.items():
        assert isinstance(columns[name]["type"], kind), name
    assert columns["tz"]["type"].timezone  # type: ignore[attr-defined]
    assert inspector.get_table_comment("wide", "sa_schema") == {"text": "a wide one"}
    assert [one["name"] for one in inspector.get_columns("narrow", "sa_schema")] == ["i", "s"]


def test_schema_of_another_catalog(engine: sa.Engine, server: ServerProcess) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CALL swanlake_create_catalog('sa_far')")
    schema = "sa_far.Some Day"
    other = sa.create_engine(url_of(server).set(database="sa_far"))
    run(other, 'CREATE SCHEMA "Some Day"')
    other.dispose()
    columns = [sa.Column("i", sa.Integer, comment="a number")]
    table = sa.Table("away", sa.MetaData(), *columns, schema=schema, comment="a table")
    with engine.connect() as connection:
        inspector = sa.inspect(connection)  # the first statement that names the catalog
        assert inspector.has_schema(schema)
        assert inspector.get_table_names(schema) == []
        connection.rollback()
        table.create(connection)
        connection.execute(table.insert(), {"i": 1})
        connection.commit()
        assert connection.execute(sa.select(table)).all() == [(1,)]
        inspector.clear_cache()
        assert inspector.get_table_names(schema) == ["away"]
        assert inspector.get_columns("away", schema)[0].get("comment") == "a number"
        assert inspector.get_table_comment("away", schema) == {"text": "a table"}
        again = sa.Table("away", sa.MetaData(), autoload_with=connection, schema=schema)
        assert connection.execute(sa.select(again)).all() == [(1,)]
        assert not inspector.has_table("away", "sa_nowhere.main")
        assert not inspector.has_table("away", "sa_far.nothing")
        assert inspector.get_view_names("sa_nowhere.main") == []
        assert not inspector.has_schema("sa_nowhere.main")
        assert connection.execute(sa.select(table.c.i)).scalar() == 1  # after unknown names


def test_every_question_about_a_table_has_an_answer(reflected: sa.Engine) -> None:
    inspector = sa.inspect(reflected)
    assert inspector.get_table_options("wide", "sa_schema") == {}
    assert inspector.get_multi_table_options("sa_schema") == {("sa_schema", "wide"): {}}
    assert inspector.get_multi_table_comment("sa_schema") == {
        ("sa_schema", "wide"): {"text": "a wide one"}
    }
    assert inspector.get_materialized_view_names("sa_schema") == []
    assert not inspector.has_sequence("nothing")
    assert not inspector.has_index("wide", "nothing", "sa_schema")
    assert inspector.get_sorted_table_and_fkc_names("sa_schema") == [("wide", []), (None, [])]


def test_no_keys_and_indexes_are_reflected(reflected: sa.Engine) -> None:
    inspector = sa.inspect(reflected)
    assert inspector.get_pk_constraint("wide", "sa_schema")["constrained_columns"] == []
    assert inspector.get_foreign_keys("wide", "sa_schema") == []
    assert inspector.get_indexes("wide", "sa_schema") == []
    assert inspector.get_unique_constraints("wide", "sa_schema") == []
    assert inspector.get_check_constraints("wide", "sa_schema") == []


def test_missing_table_raises_no_such_table(reflected: sa.Engine) -> None:
    inspector = sa.inspect(reflected)
    with pytest.raises(exc.NoSuchTableError):
        inspector.get_columns("nowhere")
    for method in (
        inspector.get_table_comment,
        inspector.get_table_options,
        inspector.get_pk_constraint,
        inspector.get_foreign_keys,
        inspector.get_indexes,
        inspector.get_unique_constraints,
        inspector.get_check_constraints,
    ):
        with pytest.raises(exc.NoSuchTableError):
            method("nowhere")
    with pytest.raises(exc.NoSuchTableError):
        inspector.get_view_definition("wide", "sa_schema")
    with pytest.raises(exc.NoSuchTableError):
        sa.Table("nowhere", sa.MetaData(), autoload_with=reflected)


def test_schema_is_reflected_in_few_queries(reflected: sa.Engine) -> None:
    run(reflected, *(f"CREATE OR REPLACE TABLE sa_schema.t{n} (i INTEGER)" for n in range(5)))
    seen: list[str] = []
    sa.event.listen(reflected, "before_cursor_execute", lambda *call: seen.append(call[2]))
    metadata = sa.MetaData()
    metadata.reflect(reflected, schema="sa_schema", views=True)
    names = {f"sa_schema.t{n}" for n in range(5)} | {"sa_schema.wide", "sa_schema.narrow"}
    assert names == set(metadata.tables)
    assert sum("duckdb_columns" in sql for sql in seen) == 1
    copy = metadata.tables["sa_schema.wide"].to_metadata(sa.MetaData(), name="wide_copy")
    copy.create(reflected)
    with reflected.connect() as connection:
        assert connection.execute(sa.select(copy)).all() == []
    copy.drop(reflected)
    run(reflected, *(f"DROP TABLE sa_schema.t{n}" for n in range(5)))


def test_temporary_tables_are_private_to_their_connection(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        key = sa.Column("id", sa.Integer, primary_key=True)
        mine = sa.Table("sa_mine", sa.MetaData(), key, prefixes=["TEMPORARY"])
        mine.create(connection)
        inspector = sa.inspect(connection)
        assert inspector.get_temp_table_names() == ["sa_mine"]
        assert "sa_mine" not in inspector.get_table_names()
        assert inspector.has_table("sa_mine")
        assert [one["name"] for one in inspector.get_columns("sa_mine")] == ["id"]
        connection.execute(mine.insert(), {"id": 1})
        with pytest.raises(exc.IntegrityError):
            connection.execute(mine.insert(), {"id": 1})


def test_constraints_of_temporary_tables_are_reflected(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        for sql in (
            """CREATE TEMP TABLE sa_parent_tmp (
                a INTEGER, b INTEGER, c INTEGER CHECK (c > 0), PRIMARY KEY (a, b), UNIQUE (c))""",
            """CREATE TEMP TABLE sa_child_tmp (
                x INTEGER, y INTEGER, FOREIGN KEY (x, y) REFERENCES sa_parent_tmp (a, b))""",
            "CREATE TEMP SEQUENCE sa_numbers_tmp",
        ):
            connection.exec_driver_sql(sql)
        inspector = sa.inspect(connection)
        assert inspector.get_pk_constraint("sa_parent_tmp")["constrained_columns"] == ["a", "b"]
        unique = inspector.get_unique_constraints("sa_parent_tmp")
        assert [key["column_names"] for key in unique] == [["c"]]
        checks = inspector.get_check_constraints("sa_parent_tmp")
        assert [check["sqltext"] for check in checks] == ["(c > 0)"]
        (key,) = inspector.get_foreign_keys("sa_child_tmp")
        assert (key["constrained_columns"], key["referred_table"], key["referred_columns"]) == (
            ["x", "y"],
            "sa_parent_tmp",
            ["a", "b"],
        )
        assert inspector.has_sequence("sa_numbers_tmp")


def test_json_functions_of_the_engine_are_used(server: ServerProcess) -> None:
    engine = sa.create_engine(
        url_of(server), json_serializer=lambda value: "[7]", json_deserializer=lambda text: text * 2
    )
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.literal({}, sa.JSON))) == "[7][7]"
    engine.dispose()


def test_queries_of_superset(reflected: sa.Engine) -> None:
    inspector = sa.inspect(reflected)
    schema = "sa_schema"
    for name in [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]:
        columns = inspector.get_columns(name, schema)
        inspector.get_pk_constraint(name, schema)
        inspector.get_indexes(name, schema)
        table = sa.table(name, *(sa.column(one["name"]) for one in columns), schema=schema)
        text = str(
            sa.select(*table.columns)
            .limit(5)
            .compile(reflected, compile_kwargs={"literal_binds": True})
        )
        with reflected.connect() as connection:
            result = connection.execute(sa.text(text))
            assert list(result.keys()) == [one["name"] for one in columns]


# ---- pandas --------------------------------------------------------------------------------------


@pytest.fixture
def frame() -> pd.DataFrame:
    size = 5_000
    frame = pd.DataFrame(
        {
            "i": np.arange(size),
            "x": np.linspace(0, 1, size),
            "s": [f"text {n}" for n in range(size)],
            "t": pd.date_range("2020-01-01", periods=size, freq="s"),
            "b": np.arange(size) % 2 == 0,
        }
    )
    frame.loc[3, "s"] = None
    frame.loc[4, "x"] = np.nan
    frame.loc[5, "t"] = pd.NaT
    return frame


def test_data_frame_round_trips(engine: sa.Engine, frame: pd.DataFrame) -> None:
    assert frame.to_sql("pandas_frame", engine, index=False) == len(frame)
    back = pd.read_sql("SELECT * FROM pandas_frame ORDER BY i", engine)
    pd.testing.assert_frame_equal(back, frame, check_dtype=False)
    kinds = {
        one["name"]: str(one["type"]) for one in sa.inspect(engine).get_columns("pandas_frame")
    }
    assert kinds == {"i": "BIGINT", "x": "DOUBLE", "s": "VARCHAR", "t": "TIMESTAMP", "b": "BOOLEAN"}


def test_data_frame_append_replace_and_fail(engine: sa.Engine, frame: pd.DataFrame) -> None:
    count = sa.text("SELECT count(*) FROM pandas_modes")
    with engine.connect() as connection:
        for mode, rows in (("replace", 5_000), ("append", 10_000), ("replace", 5_000)):
            frame.to_sql("pandas_modes", engine, if_exists=mode, chunksize=2_000)
            assert connection.scalar(count) == rows
            connection.rollback()
    with pytest.raises(ValueError, match="already exists"):
        frame.to_sql("pandas_modes", engine)
    frame.head(50).to_sql("pandas_multi", engine, method="multi", schema="main")
    assert len(pd.read_sql_table("pandas_multi", engine, index_col="index")) == 50


def test_many_rows_are_sent_as_one_insert(engine: sa.Engine, frame: pd.DataFrame) -> None:
    seen: list[bool] = []
    sa.event.listen(
        engine,
        "before_cursor_execute",
        lambda *call: seen.append(call[5]) if call[2].startswith("INSERT") else None,
    )
    frame.to_sql("pandas_one_insert", engine)
    assert seen == [True]  # one executemany


def test_read_sql_with_parameters_chunks_and_tables(engine: sa.Engine, frame: pd.DataFrame) -> None:
    frame.to_sql("pandas_read", engine, index=False)
    query = sa.text("SELECT i FROM pandas_read WHERE i < :limit")
    assert len(pd.read_sql(query, engine, params={"limit": 10})) == 10
    assert len(pd.read_sql("pandas_read", engine)) == len(frame)
    table = sa.Table("pandas_read", sa.MetaData(), autoload_with=engine)
    assert len(pd.read_sql(sa.select(table).where(table.c.b), engine)) == len(frame) // 2
    chunks = [len(chunk) for chunk in pd.read_sql("FROM pandas_read", engine, chunksize=2_000)]
    assert chunks == [2_000, 2_000, 1_000]


def test_foreign_key_is_omitted_with_warning(engine: sa.Engine) -> None:
    metadata = sa.MetaData()
    sa.Table("sa_parent", metadata, sa.Column("id", sa.Integer, primary_key=True))
    sa.Table("sa_child", metadata, sa.Column("of", sa.ForeignKey("sa_parent.id"), index=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metadata.create_all(engine)
    assert ["ForeignKeyConstraint" in str(one.message) for one in caught] == [True]
    metadata.drop_all(engine)
