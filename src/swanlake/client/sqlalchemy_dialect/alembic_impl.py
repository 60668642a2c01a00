"""Alembic migrations of DuckLake tables.

Alembic loads this module by its entry point ``alembic.plugins``; nothing else imports it, so that
only applications with migrations need Alembic.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from alembic.ddl import base
from alembic.ddl.impl import DefaultImpl
from sqlalchemy import exc
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.util import warn

_TEXT = re.compile(r"\b(?:N?VARCHAR|N?CHAR|TEXT|CLOB)\b(?:\s*\(\d+\))?(?: COLLATE \S+)?", re.I)
_DECIMAL = re.compile(r"\b(?:NUMERIC|DECIMAL)\b(?:\s*\((\d+)(?:,\s*(\d+))?\))?", re.I)
_LITERAL = re.compile(r"'((?:[^']|'')*)'")


def setup(plugin: object) -> None:
    """Called by Alembic; the import of this module has registered the implementation."""


class SwanLakeImpl(DefaultImpl):  # type: ignore[misc]
    """Operations on DuckLake tables, which have no constraint but NOT NULL, and no index."""

    __dialect__ = "swanlake"
    transactional_ddl = True

    def add_column(self, table_name: str, column: Any, *, schema: Any = None, **kw: Any) -> None:
        """Adds a column that takes NULL, as DuckLake requires of every added column."""
        if not column.nullable:
            raise exc.CompileError(
                f"DuckLake cannot add a NOT NULL column: declare {table_name}.{column.name} "
                "nullable, or create a new table and copy the rows."
            )
        super().add_column(table_name, column, schema=schema, **kw)

    def add_constraint(self, const: Any, **kw: Any) -> None:
        """Warns that the table is left without the constraint."""
        kind = type(const).__name__
        warn(f"DuckLake has no {kind}: table {const.table.fullname} is left without it.")

    def drop_constraint(self, const: Any, **kw: Any) -> None:
        """Does nothing: the table never had the constraint."""

    def compare_type(self, inspector_column: Any, metadata_column: Any) -> bool:
        """True if the types have different names in DuckDB."""
        existing, wanted = (
            canonical_type(self.dialect.type_compiler_instance.process(column.type))
            for column in (inspector_column, metadata_column)
        )
        return existing != wanted

    def compare_server_default(
        self,
        inspector_column: Any,
        metadata_column: Any,
        rendered_metadata_default: str | None,
        rendered_inspector_default: str | None,
    ) -> bool:
        """True if the defaults have different values, now and in the column's type."""
        wanted, existing = rendered_metadata_default, rendered_inspector_default
        if wanted is None or existing is None:
            return wanted is not existing
        if canonical_default(wanted) == canonical_default(existing):
            return False
        if isinstance(metadata_column.server_default.arg, str):
            wanted = "'" + canonical_default(wanted).replace("'", "''") + "'"
        kind = self.dialect.type_compiler_instance.process(metadata_column.type)
        values = (f"TRY_CAST({default} AS {kind})" for default in (wanted, existing))
        query = f"SELECT {' IS DISTINCT FROM '.join(values)}"
        return bool(self.connection.exec_driver_sql(query).scalar())

    def correct_for_autogen_constraints(
        self,
        conn_uniques: set[Any],
        conn_indexes: set[Any],
        metadata_unique_constraints: set[Any],
        metadata_indexes: set[Any],
    ) -> None:
        """Ignores what the models declare and a table cannot have."""
        metadata_unique_constraints.clear()
        metadata_indexes.clear()

    def correct_for_autogen_foreignkeys(self, conn_fks: set[Any], metadata_fks: set[Any]) -> None:
        """Ignores the foreign keys of the models."""
        metadata_fks.clear()


def canonical_type(text: str) -> str:
    """DuckDB's name of a type: lengths of text are dropped, decimals have both numbers.

    >>> canonical_type("NUMERIC(10)[]"), canonical_type("CHAR(3)")
    ('DECIMAL(10, 0)[]', 'VARCHAR')
    """
    return _DECIMAL.sub(_decimal, _TEXT.sub("VARCHAR", text))


def _decimal(match: re.Match[str]) -> str:
    precision, scale = match.groups()
    return f"DECIMAL({precision}, {scale or 0})" if precision else "DECIMAL(18, 3)"


def canonical_default(text: str) -> str:
    """A default without parentheses and quotes: DuckLake returns every constant as text.

    >>> canonical_default("('it''s')")
    "it's"
    """
    text = text.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    literal = _LITERAL.fullmatch(text)
    return literal[1].replace("''", "'") if literal else text


@compiles(base.RenameTable, "swanlake")
def _rename_table(element: Any, compiler: Any, **kw: Any) -> str:
    # The base class repeats the schema, but a table stays in its own.
    table = base.alter_table(compiler, element.table_name, element.schema)
    return f"{table} RENAME TO {base.format_table_name(compiler, element.new_table_name, None)}"


@compiles(base.ColumnComment, "swanlake")
def _column_comment(element: Any, compiler: Any, **kw: Any) -> str:
    table = base.format_table_name(compiler, element.table_name, element.schema)
    column = base.format_column_name(compiler, element.column_name)
    comment = "NULL"
    if element.comment is not None:
        comment = compiler.sql_compiler.render_literal_value(element.comment, sa.String())
    return f"COMMENT ON COLUMN {table}.{column} IS {comment}"
