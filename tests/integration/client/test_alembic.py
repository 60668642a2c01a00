"""Alembic migrations against a real server."""

from __future__ import annotations

import io
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import exc

from swanlake.client.sqlalchemy_dialect import alembic_impl
from swanlake.client.sqlalchemy_dialect.alembic_impl import canonical_default, canonical_type
from swanlake.client.sqlalchemy_dialect.types import HUGEINT, MAP, STRUCT
from tests.server_process import ServerProcess

ENVIRONMENT = """
from alembic import context
import sqlalchemy as sa

config = context.config
metadata = config.attributes["metadata"]
options = {"target_metadata": metadata, "compare_server_default": True}
if context.is_offline_mode():
    context.configure(url=config.get_main_option("sqlalchemy.url"), literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = sa.create_engine(config.get_main_option("sqlalchemy.url"))
    with engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""
TEMPLATE = '''
"""${message}"""
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = depends_on = None


def upgrade():
    ${upgrades if upgrades else "pass"}


def downgrade():
    ${downgrades if downgrades else "pass"}
'''


@pytest.fixture
def engine(shared_server: ServerProcess) -> Iterator[sa.Engine]:
    """An engine on an empty catalog."""
    name = f"alembic_{uuid.uuid4().hex[:8]}"
    url = sa.URL.create("swanlake", host="127.0.0.1", port=shared_server.port)
    main = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with main.connect() as connection:
        connection.exec_driver_sql(f"CALL swanlake_create_catalog('{name}')")
    main.dispose()
    engine = sa.create_engine(url.set(database=name))
    yield engine
    engine.dispose()


@pytest.fixture
def operate(engine: sa.Engine) -> Callable[[Callable[[Operations], Any]], None]:
    """Runs operations in one transaction."""

    def operate(work: Callable[[Operations], Any]) -> None:
        with engine.begin() as connection:
            work(Operations(MigrationContext.configure(connection)))

    return operate


Operate = Callable[[Callable[[Operations], Any]], None]


def differences(engine: sa.Engine, metadata: sa.MetaData) -> list[Any]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return list(compare_metadata(context, metadata))


# ---- operations ----------------------------------------------------------------------------------


def test_columns_are_added_changed_and_dropped(engine: sa.Engine, operate: Operate) -> None:
    def create(op: Operations) -> None:
        op.create_table(
            "swans",
            sa.Column("id", sa.Integer, primary_key=True, comment="the ring's number"),
            sa.Column("name", sa.String(20), nullable=False),
            comment="it's a table",
        )
        op.bulk_insert(
            sa.table("swans", sa.column("id"), sa.column("name")), [{"id": 1, "name": "a"}]
        )

    def change(op: Operations) -> None:
        op.add_column("swans", sa.Column("weight", sa.Integer, server_default="7"))
        op.add_column("swans", sa.Column("note", sa.String, comment="free text"))
        op.execute("UPDATE swans SET note = 'old' WHERE id = 1")
        op.alter_column("swans", "weight", type_=sa.BigInteger, server_default=None)
        op.alter_column("swans", "name", nullable=True, comment="it's a name")
        op.alter_column("swans", "id", new_column_name="ring", comment=None)
        op.create_table_comment("swans", "birds")

    operate(create)
    operate(change)
    columns = {column["name"]: column for column in sa.inspect(engine).get_columns("swans")}
    assert list(columns) == ["ring", "name", "weight", "note"]
    assert {name: str(column["type"]) for name, column in columns.items()} == {
        "ring": "INTEGER",
        "name": "VARCHAR",
        "weight": "BIGINT",
        "note": "VARCHAR",
    }
    assert [column["nullable"] for column in columns.values()] == [False, True, True, True]
    assert [column["default"] for column in columns.values()] == [None] * 4
    comments = [column["comment"] for column in columns.values()]
    assert comments == [None, "it's a name", None, "free text"]
    assert sa.inspect(engine).get_table_comment("swans") == {"text": "birds"}
    with engine.connect() as connection:
        assert connection.execute(sa.text("FROM swans")).one() == (1, "a", 7, "old")

    def reduce(op: Operations) -> None:
        op.drop_column("swans", "weight")
        op.drop_table_comment("swans")
        with op.batch_alter_table("swans") as batch:
            batch.alter_column("name", new_column_name="title")

    operate(reduce)
    operate(lambda op: op.rename_table("swans", "Birds"))
    with engine.connect() as connection:
        swan = connection.exec_driver_sql('FROM "Birds"').mappings().one()
        assert dict(swan) == {"ring": 1, "title": "a", "note": "old"}
    assert sa.inspect(engine).get_table_comment("Birds") == {"text": None}


def test_operations_reach_other_schemas(engine: sa.Engine, operate: Operate) -> None:
    def work(op: Operations) -> None:
        op.execute("CREATE SCHEMA deep")
        op.create_table("one", sa.Column("i", sa.Integer), schema="deep")
        op.alter_column("one", "i", comment="c", schema="deep")
        op.add_column("one", sa.Column("j", sa.Integer), schema="deep")
        op.rename_table("one", "two", schema="deep")

    operate(work)
    columns = sa.inspect(engine).get_columns("two", "deep")
    assert [(one["name"], one["nullable"], one["comment"]) for one in columns] == [
        ("i", True, "c"),
        ("j", True, None),
    ]


def test_narrowing_a_type_is_refused(operate: Operate) -> None:
    operate(lambda op: op.create_table("narrow", sa.Column("i", sa.BigInteger)))
    with pytest.raises(exc.ProgrammingError, match="only widening type promotions"):
        operate(lambda op: op.alter_column("narrow", "i", type_=sa.Integer))


def test_adding_a_not_null_column_is_refused(operate: Operate) -> None:
    operate(lambda op: op.create_table("strict", sa.Column("i", sa.Integer)))
    added = sa.Column("j", sa.Integer, nullable=False, server_default="1")
    with pytest.raises(exc.CompileError, match=r"declare strict.j nullable"):
        operate(lambda op: op.add_column("strict", added))


def test_not_null_is_set_and_dropped(engine: sa.Engine, operate: Operate) -> None:
    rows = sa.table("filled", sa.column("i"))
    operate(lambda op: op.create_table("filled", sa.Column("i", sa.Integer)))
    operate(lambda op: op.bulk_insert(rows, [{"i": 1}]))
    for nullable in (False, True):
        operate(lambda op, nullable=nullable: op.alter_column("filled", "i", nullable=nullable))  # type: ignore[misc]
        assert sa.inspect(engine).get_columns("filled")[0]["nullable"] == nullable


def test_constraints_are_skipped_with_a_warning(operate: Operate) -> None:
    def work(op: Operations) -> None:
        op.create_table("keys", sa.Column("i", sa.Integer), sa.Column("j", sa.Integer))
        op.create_unique_constraint("keys_i", "keys", ["i"])
        op.create_index("keys_j", "keys", ["j"])
        op.drop_index("keys_j", "keys")
        op.drop_constraint("keys_i", "keys")

    with pytest.warns(exc.SAWarning, match="no UniqueConstraint: table keys is left without"):
        operate(work)


def test_failed_migration_changes_nothing(engine: sa.Engine, operate: Operate) -> None:
    def work(op: Operations) -> None:
        op.create_table("half", sa.Column("i", sa.Integer))
        op.execute("SELECT nothing FROM nowhere")

    with pytest.raises(exc.ProgrammingError):
        operate(work)
    assert not sa.inspect(engine).has_table("half")


# ---- autogenerate --------------------------------------------------------------------------------


def models() -> sa.MetaData:
    """Tables with every generic type, and with what DuckLake does not store."""
    metadata = sa.MetaData()
    kinds: list[Any] = [
        *(sa.Integer, sa.BigInteger, sa.SmallInteger, sa.Boolean, sa.Float, sa.Double, sa.REAL),
        *(sa.Numeric, sa.Numeric(10), sa.Numeric(12, 3), sa.DECIMAL(38, 0)),
        *(sa.String, sa.String(20), sa.Text, sa.Unicode(5), sa.CHAR(3), sa.CLOB, sa.NVARCHAR(2)),
        *(sa.LargeBinary, sa.VARBINARY(9), sa.Date, sa.DateTime, sa.DateTime(timezone=True)),
        *(sa.Time, sa.Time(timezone=True), sa.Interval, sa.Uuid, sa.Uuid(native_uuid=False)),
        *(sa.JSON, sa.Enum("a", "b", name="letters"), sa.ARRAY(sa.String(3)), HUGEINT()),
        *(STRUCT({"a": sa.Text(), "b c": sa.Numeric()}), MAP(sa.String(3), sa.Float())),
    ]
    columns = [sa.Column(f"c{number}", kind) for number, kind in enumerate(kinds)]
    sa.Table("every_type", metadata, *columns, comment="types")
    defaults: list[tuple[Any, Any]] = [
        (sa.Integer, "7"),
        (sa.Integer, sa.text("7")),
        (sa.Numeric(10, 2), sa.text("1.5")),
        (sa.String, "it's"),
        (sa.Boolean, sa.true()),
        (sa.Boolean, sa.text("'f'")),
        (sa.DateTime, sa.func.now()),
        (sa.DateTime, sa.text("CURRENT_TIMESTAMP")),
        (sa.Uuid, sa.text("uuid()")),
        (sa.Date, sa.text("DATE '2020-01-02'")),
    ]
    sa.Table(
        "defaults",
        metadata,
        *(
            sa.Column(f"d{number}", kind, server_default=default)
            for number, (kind, default) in enumerate(defaults)
        ),
    )
    sa.Table("parent", metadata, sa.Column("id", sa.Integer, primary_key=True, comment="key"))
    sa.Table(
        "child",
        metadata,
        sa.Column("id", sa.ForeignKey("parent.id"), index=True, nullable=False),
        sa.Column("name", sa.String, unique=True),
        sa.CheckConstraint("name <> ''"),
    )
    return metadata


def test_created_models_have_no_differences(engine: sa.Engine) -> None:
    metadata = models()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # for the constraints of "child"
        metadata.create_all(engine)
    assert differences(engine, metadata) == []


def test_differences_are_found(engine: sa.Engine) -> None:
    columns: list[sa.Column[Any]] = [
        sa.Column("a", sa.Integer),
        sa.Column("b", sa.String, server_default="x", comment="old"),
        sa.Column("c", sa.Numeric(10, 2), nullable=False),
        sa.Column("gone", sa.Integer),
    ]
    sa.Table("changed", sa.MetaData(), *columns).create(engine)
    metadata = sa.MetaData()
    columns = [
        sa.Column("a", sa.BigInteger),
        sa.Column("b", sa.String, server_default="y", comment="new"),
        sa.Column("c", sa.Numeric(12, 2)),
        sa.Column("added", sa.Integer),
    ]
    sa.Table("changed", metadata, *columns)
    sa.Table("created", metadata, sa.Column("i", sa.Integer))
    found = [
        change[0]
        for group in differences(engine, metadata)
        for change in (group if isinstance(group, list) else [group])
    ]
    assert sorted(found) == [
        "add_column",
        "add_table",
        "modify_comment",
        "modify_default",
        "modify_nullable",
        "modify_type",
        "modify_type",
        "remove_column",
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("VARCHAR(20)", "VARCHAR"),
        ("TEXT", "VARCHAR"),
        ('VARCHAR COLLATE "NOCASE"', "VARCHAR"),
        ("NUMERIC", "DECIMAL(18, 3)"),
        ("NUMERIC(10)", "DECIMAL(10, 0)"),
        ("STRUCT(a NUMERIC(5, 2), b CHAR(3)[])", "STRUCT(a DECIMAL(5, 2), b VARCHAR[])"),
        ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE"),
    ],
)
def test_canonical_type(text: str, name: str) -> None:
    assert canonical_type(text) == name


def test_canonical_default() -> None:
    assert canonical_default("'7'") == canonical_default("(7)") == "7"
    assert canonical_default("'it''s'") == "it's"
    assert canonical_default("'a' || 'b'") == "'a' || 'b'"


# ---- the command line ----------------------------------------------------------------------------


def configuration(folder: Path, engine: sa.Engine, metadata: sa.MetaData) -> Config:
    """The configuration of a new folder of migrations."""
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENVIRONMENT)
    (folder / "script.py.mako").write_text(TEMPLATE)
    config = Config(output_buffer=io.StringIO(), stdout=io.StringIO())
    config.set_main_option("script_location", str(folder))
    config.set_main_option("sqlalchemy.url", engine.url.render_as_string(hide_password=False))
    config.attributes["metadata"] = metadata
    return config


def test_generated_revisions_upgrade_and_downgrade(engine: sa.Engine, tmp_path: Path) -> None:
    metadata = sa.MetaData()
    swans = sa.Table("swans", metadata, sa.Column("id", sa.Integer, primary_key=True))
    config = configuration(tmp_path / "migrations", engine, metadata)
    command.revision(config, "create swans", autogenerate=True, rev_id="one")
    command.upgrade(config, "head")
    command.check(config)  # raises if there are differences
    name = sa.Column("name", sa.String, server_default="?", comment="a name")
    swans.append_column(name)
    command.revision(config, "name the swans", autogenerate=True, rev_id="two")
    command.upgrade(config, "head")
    command.check(config)

    def state() -> tuple[list[str], list[Any]]:
        with engine.connect() as connection:
            versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()
            inspector = sa.inspect(connection)
            tables = [one for one in inspector.get_table_names() if one != "alembic_version"]
            return [one[0] for one in versions], [
                column["name"] for table in tables for column in inspector.get_columns(table)
            ]

    assert state() == (["two"], ["id", "name"])
    command.downgrade(config, "-1")
    assert state() == (["one"], ["id"])
    command.downgrade(config, "base")
    assert state() == ([], [])


def test_offline_mode_writes_sql(engine: sa.Engine, tmp_path: Path) -> None:
    metadata = sa.MetaData()
    sa.Table("swans", metadata, sa.Column("id", sa.Integer), comment="it's")
    config = configuration(tmp_path / "migrations", engine, metadata)
    command.revision(config, "create swans", autogenerate=True, rev_id="one")
    command.upgrade(config, "head", sql=True)
    text = " ".join(config.output_buffer.getvalue().split())
    assert text.startswith("BEGIN; CREATE TABLE alembic_version")
    assert "COMMENT ON TABLE swans IS 'it''s'; INSERT INTO alembic_version" in text
    assert text.endswith("COMMIT;")


def test_alembic_loads_the_implementation_by_its_entry_point() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["alembic.plugins"] == {"swanlake": alembic_impl.__name__}
    alembic_impl.setup(None)
