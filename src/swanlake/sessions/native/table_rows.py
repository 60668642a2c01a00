"""Queries for the rows of tables, from files and from the metadata, without DuckLake's extension.

Rows of the metadata become parameters of the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from operator import attrgetter
from typing import Any

import duckdb

from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.table_state import InlinedScan, ScanFile
from swanlake.lake.model.type_registry import find_type
from swanlake.lake.model.types import duckdb_type
from swanlake.sql.quoting import identifier, literal
from swanlake.sql.tokens import find_parameters, number_parameters

#: The virtual column in which DuckLake has the id of a row.
ROW_ID = "rowid"
_PREFIX = "swanlake_inlined_"
#: Types of bound values that Python's values have too.
_PLAIN = frozenset(
    "tinyint smallint integer bigint utinyint usmallint uinteger ubigint float double varchar date "
    "timestamp".split()
)
_POSITION = "file_row_number"
#: What DuckDB would otherwise find out from paths, settings and statistics.
_OPTIONS = "hive_partitioning = false, union_by_name = false, binary_as_string = false"


class RowParameters:
    """The parameters of a query, and the rows of its tables as additional parameters."""

    def __init__(self, parameters: Any) -> None:
        self._is_named = isinstance(parameters, dict)
        self.values: Any = dict(parameters) if self._is_named else list(parameters or ())

    def match(self, text: str) -> bool:
        """True if a text has exactly these parameters.

        DuckDB would bind rows to a parameter whose value is missing.
        """
        names = {parameter.name for parameter in find_parameters(text)}
        if any(name.startswith(_PREFIX) for name in names):
            return False
        bound = self.values if self._is_named else map(str, range(1, len(self.values) + 1))
        return names == set(bound)

    @property
    def by_name(self) -> Mapping[str, Any]:
        """The values by the names of their parameters; those without a name are numbered."""
        named = self.values.items() if self._is_named else enumerate(self.values, 1)
        return {str(name): _plain(value) for name, value in named}

    def number(self, text: str) -> str:
        """The text with ``$1`` for the first ``?``: DuckDB would also count the added ones."""
        return text if self._is_named else number_parameters(text)

    def all_rows_query(
        self, table: Table, files: Sequence[ScanFile], inlined: InlinedScan | None
    ) -> str:
        """A query for all rows of a table, as the extension would read them, and in its order."""
        parts = []
        for has_deletes, group in groupby(files, key=attrgetter("has_deletes")):
            if has_deletes:
                parts += [self._remaining_rows_query(table, file) for file in group]
            else:
                parts.append(f"SELECT {_columns(table)} FROM {_scan(table, list(group))}")
        if not parts or (inlined is not None and inlined.row_ids):
            parts.append(self.rows_query(inlined or _no_rows(table)))
        return " UNION ALL ".join(parts)

    def rows_query(self, scan: InlinedScan, *, with_row_ids: bool = False) -> str:
        """A query for the inlined rows of a table; ``with_row_ids`` adds the column ``ROW_ID``."""
        selected = [
            f"unnest({self._add_column(values, column)}) AS {identifier(column.name)}"
            for values, column in zip(scan.values, scan.table.columns, strict=True)
        ]
        if with_row_ids:
            selected.append(f"unnest({self._add(scan.row_ids, 'BIGINT')}) AS {ROW_ID}")
        return f"SELECT {', '.join(selected)}"

    def _remaining_rows_query(self, table: Table, file: ScanFile) -> str:
        """The rows of a file that are not deleted."""
        conditions = []
        if file.delete_path is not None:
            deleted = f"SELECT pos FROM read_parquet([{literal(file.delete_path)}], {_OPTIONS})"
            conditions.append(f"{_POSITION} NOT IN ({deleted})")
        if file.deleted_positions:
            positions = self._add(file.deleted_positions, "BIGINT")
            conditions.append(f"NOT list_contains({positions}, {_POSITION})")
        scan = _scan(table, [file], f"{_POSITION} = true")
        return f"SELECT {_columns(table)} FROM {scan} WHERE {' AND '.join(conditions)}"

    def _add_column(self, values: Sequence[Any], column: Column) -> str:
        """Adds the values of a column; the expression is a list of the column's type."""
        bound_type, type_ = _bound_type(column.type), duckdb_type(column)
        added = self._add(values, bound_type)
        return added if bound_type == type_ else f"CAST({added} AS {type_}[])"

    def _add(self, values: Sequence[Any], type_: str) -> str:
        if self._is_named:
            name = f"{_PREFIX}{len(self.values)}"
            self.values[name] = list(values)
        else:
            self.values.append(list(values))
            name = str(len(self.values))
        return f"CAST(${name} AS {type_}[])"


def _plain(value: Any) -> Any:
    """A parameter as a number, text, date or timestamp; None for values of other types."""
    if not isinstance(value, duckdb.Value):
        return value
    kind, plain = value.type.id, value.object
    if kind == "decimal":
        return Decimal(plain)
    is_text = isinstance(plain, str)  # a NaN is one too
    return plain if kind in _PLAIN and is_text == (kind == "varchar") else None


def _columns(table: Table) -> str:
    """The columns of a table, in their types: another writer may have stored narrower ones."""
    names = [(identifier(column.name), duckdb_type(column)) for column in table.columns]
    return ", ".join(f"CAST({name} AS {type_}) AS {name}" for name, type_ in names)


def _scan(table: Table, files: Sequence[ScanFile], *more: str) -> str:
    paths = ", ".join(literal(file.path) for file in files)
    rows = sum(file.record_count for file in files)
    options = [_OPTIONS, f"explicit_cardinality = {rows}", *more]
    if any(column.type in ("float32", "float64") for column in table.columns):
        options.append("can_have_nan = true")  # statistics in files do not count NaN
    return f"read_parquet([{paths}], {', '.join(options)})"


def _no_rows(table: Table) -> InlinedScan:
    return InlinedScan(table, None, (), [()] * len(table.columns))


def _bound_type(type_: str) -> str:
    """The type in which values are bound, before DuckDB casts them to their column's type."""
    if type_ == "boolean":
        return "BOOLEAN"
    known = find_type(type_)
    is_integer = known is not None and known.inlined is not None and known.inlined.is_integer
    return "BIGINT" if is_integer else "VARCHAR"
