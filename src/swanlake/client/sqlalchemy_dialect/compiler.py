"""Compiles SQLAlchemy's expressions to DuckDB's SQL for DuckLake tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import exc, util
from sqlalchemy import types as sqltypes
from sqlalchemy.sql import compiler, expression

from swanlake.client.sqlalchemy_dialect.catalog import SchemaName

_RESERVED = """
    all analyse analyze and any array as asc asymmetric both case cast check collate column
    constraint create default deferrable desc describe distinct do else end except false fetch for
    foreign from group having in initially intersect into lambda lateral leading limit not null
    offset on only or order pivot pivot_longer pivot_wider placing primary qualify references
    returning select show some summarize symmetric table then to trailing true union unique unpivot
    using variadic when where window with
    anti asof at authorization between bigint binary bit boolean by char character coalesce
    collation columns concurrently cross dec decimal exists extract float freeze full generated glob
    grouping grouping_id ilike inner inout int integer interval is isnull join left like map
    national natural nchar none notnull nullif numeric out outer overlaps overlay position
    positional precision real right row semi setof similar smallint struct substring tablesample
    time timestamp treat trim try_cast unpack values varchar verbose
"""


class IdentifierPreparer(compiler.IdentifierPreparer):
    """Quotes DuckDB's keywords, and each part of ``catalog.schema``."""

    reserved_words = set(_RESERVED.split())  # noqa: RUF012 - as in its base class

    def quote_schema(self, schema: str) -> str:
        return ".".join(self.quote(part) for part in SchemaName.parse(schema).parts)

    def format_schema(self, name: str) -> str:
        return self.quote_schema(name)


class SQLCompiler(compiler.SQLCompiler):
    """Statements."""

    def limit_clause(self, select: Any, **kw: Any) -> str:
        text = ""
        if select._limit_clause is not None:
            text += "\n LIMIT " + self.process(select._limit_clause, **kw)
        if select._offset_clause is not None:
            text += "\n OFFSET " + self.process(select._offset_clause, **kw)
        return text

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        return ""  # DuckLake has no row locks: the first committer wins

    def update_from_clause(
        self, update_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        return "FROM " + self._from_list(extra_froms, from_hints, kw)

    def delete_extra_from_clause(
        self, delete_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        return "USING " + self._from_list(extra_froms, from_hints, kw)

    def _from_list(self, froms: Any, hints: Any, kw: dict[str, Any]) -> str:
        return ", ".join(
            source._compiler_dispatch(self, fromhints=hints, **{**kw, "asfrom": True})
            for source in froms
        )

    def visit_floordiv_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        # DuckDB's // divides only integers; it is the same as / for others.
        if all(
            side.type._type_affinity is sqltypes.Integer for side in (binary.left, binary.right)
        ):
            return f"{self.process(binary.left, **kw)} // {self.process(binary.right, **kw)}"
        return f"floor({self.process(binary.left, **kw)} / {self.process(binary.right, **kw)})"

    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"xor({self._arguments([binary.left, binary.right], kw)})"  # ^ is a power

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"regexp_matches({self._regexp_arguments(binary, kw)})"

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"NOT regexp_matches({self._regexp_arguments(binary, kw)})"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"regexp_replace({self._regexp_arguments(binary, kw)})"

    def _regexp_arguments(self, binary: Any, kw: dict[str, Any]) -> str:
        arguments = self._arguments([binary.left, binary.right], kw)
        flags = binary.modifiers["flags"]
        return arguments if flags is None else f"{arguments}, {_literal(flags)}"

    def _arguments(self, expressions: Iterable[Any], kw: dict[str, Any]) -> str:
        return ", ".join(self.process(expression, **kw) for expression in expressions)

    def get_select_precolumns(self, select: Any, **kw: Any) -> str:
        if select._distinct_on:
            return f"DISTINCT ON ({self._arguments(select._distinct_on, kw)}) "
        return super().get_select_precolumns(select, **kw)

    def visit_postgresql_distinct_on(self, element: Any, **kw: Any) -> str:
        return f"ON ({self._arguments(element._distinct_on, kw)})"  # of a SELECT DISTINCT

    def visit_json_getitem_op_binary(
        self, binary: Any, operator: Any, _cast_applied: bool = False, **kw: Any
    ) -> str:
        # -> gives JSON, in which text has quotes; ->> gives the plain value for other types.
        if not _cast_applied and binary.type._type_affinity is not sqltypes.JSON:
            cast = expression.cast(binary, binary.type)
            return self.process(cast, _cast_applied=True, **kw)
        arrow = "->>" if _cast_applied else "->"
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        return f"({left} {arrow} {right})"

    visit_json_path_getitem_op_binary = visit_json_getitem_op_binary


class DDLCompiler(compiler.DDLCompiler):
    """Tables; DuckLake has no constraint but NOT NULL, and no index."""

    def create_table_constraints(
        self, table: Any, _include_foreign_key_constraints: Any = None, **kw: Any
    ) -> str:
        if "TEMPORARY" in table._prefixes or "TEMP" in table._prefixes:
            constraints: str = super().create_table_constraints(  # type: ignore[no-untyped-call]
                table, _include_foreign_key_constraints, **kw
            )
            return constraints
        for constraint in table._sorted_constraints:
            # SQLAlchemy uses a primary key to identify rows, although nothing enforces it.
            if constraint is not table.primary_key and constraint._should_create_for_compiler(self):
                kind = type(constraint).__name__
                util.warn(f"DuckLake has no {kind}: table {table.fullname} is made without it.")
        return ""

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        sequence = column.default is not None and column.default.is_sequence
        if column.identity is not None or (sequence and not column.default.optional):
            raise exc.CompileError(
                f"DuckLake has no identity columns and no sequences: give column {column} a "
                "default in Python, such as uuid.uuid4, or assign its values."
            )
        return str(super().get_column_specification(column, **kw))

    def visit_create_index(self, create: Any, *args: Any, **kw: Any) -> str:
        # pandas creates one for every index of a data frame. SQLAlchemy needs SQL to run.
        return f"SELECT {_literal(f'DuckLake has no indexes; {create.element.name} is none.')}"

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        return f"SELECT {_literal(f'DuckLake has no indexes; {drop.element.name} was none.')}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class TypeCompiler(compiler.GenericTypeCompiler):
    """Types in CREATE TABLE and CAST."""

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        # DuckDB's FLOAT has 32 bits; a Python float needs 64.
        return "FLOAT" if type_.precision is not None and type_.precision <= 24 else "DOUBLE"

    def visit_DOUBLE_PRECISION(self, type_: Any, **kw: Any) -> str:
        return "DOUBLE"

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        return self.visit_TIMESTAMP(type_, **kw)

    def visit_TIMESTAMP(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP WITH TIME ZONE" if type_.timezone else "TIMESTAMP"

    def visit_TIME(self, type_: Any, **kw: Any) -> str:
        return "TIME WITH TIME ZONE" if type_.timezone else "TIME"

    def visit_large_binary(self, type_: Any, **kw: Any) -> str:
        return "BLOB"

    visit_BINARY = visit_VARBINARY = visit_large_binary

    def visit_unicode(self, type_: Any, **kw: Any) -> str:
        return self.visit_VARCHAR(type_, **kw)

    def visit_CLOB(self, type_: Any, **kw: Any) -> str:
        return "VARCHAR"

    def visit_JSON(self, type_: Any, **kw: Any) -> str:
        return "JSON"

    def visit_INTERVAL(self, type_: Any, **kw: Any) -> str:
        return "INTERVAL"

    def visit_ARRAY(self, type_: Any, **kw: Any) -> str:
        return self.process(type_.item_type, **kw) + "[]" * (type_.dimensions or 1)

    def visit_user_defined(self, type_: Any, **kw: Any) -> str:
        return str(type_.spec(self) if hasattr(type_, "spec") else type_.get_col_spec(**kw))
