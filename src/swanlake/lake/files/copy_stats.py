"""The statistics of a written file, from the ``column_statistics`` of COPY … RETURN_STATS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from swanlake.lake.model import geometry, variant_stats
from swanlake.lake.model.layout import Column, ColumnStats, Table, VariantFieldStats
from swanlake.lake.model.stats import is_text, stats_order, text_bounds
from swanlake.lake.model.type_registry import StatsOrder
from swanlake.lake.model.types import ColumnSpec, UnsupportedType, number_columns
from swanlake.sql.quoting import identifier

_Path = tuple[str, ...]
#: What COPY returns for one column of a file, by name.
_Stats = Mapping[str, str]
#: A VARIANT's NULL, as bounds of the values that are not shredded.
_VARIANT_NULL = "00"
_NUL = "\0"


def file_column_stats(returned: Mapping[str, _Stats], table: Table) -> tuple[ColumnStats, ...]:
    """The statistics of a file: one entry for every column that holds values, nested ones too."""
    by_path = {_path(name): stats for name, stats in returned.items()}
    return tuple(
        _variant_stats(column, _below(path, by_path))
        if column.type == "variant"
        else _column_stats(column, by_path.get(path, {}))
        for path, column in _leaf_paths(table.columns)
    )


def _column_stats(column: Column, stats: _Stats) -> ColumnStats:
    if not stats:
        return ColumnStats(column.id)
    size, values, nulls = _counts(stats)
    if values == 0 and nulls == 0 and size == 0:
        # For intervals and times with a zone DuckDB always reports zero values in zero bytes. No
        # file is empty, so the values were not counted.
        values = nulls = None
    low, high = stats.get("min"), stats.get("max")
    if stats_order(column.type) is StatsOrder.NONE:
        low = high = None
    if is_text(column.type) and values:
        low, high = text_bounds(low, high)
    return ColumnStats(
        column.id,
        size,
        values,
        nulls,
        low,
        high,
        _contains_nan(stats),
        geometry.encode(stats) if column.type == "geometry" else None,
    )


def _counts(stats: _Stats) -> tuple[int | None, int | None, int | None]:
    """The size in bytes, and how many values are not NULL and are NULL."""
    size, values, nulls = (
        int(stats[name]) if name in stats else None
        for name in ("column_size_bytes", "num_values", "null_count")
    )
    if values is None or nulls is None or nulls > values:
        return size, None, None
    return size, values - nulls, nulls


def _contains_nan(stats: _Stats) -> bool | None:
    return {"true": True, "false": False}.get(stats.get("has_nan", ""))


def _variant_stats(column: Column, parts: Mapping[_Path, _Stats]) -> ColumnStats:
    """The statistics of a VARIANT column, whose parts are columns of the file.

    The counts are those of the metadata, which every row has: as in the stock extension, a NULL
    counts as a value.
    """
    metadata = parts.get(("metadata",))
    if metadata is None:
        return ColumnStats(column.id)
    _, values, nulls = _counts(metadata)
    size = sum(int(stats.get("column_size_bytes", 0)) for stats in parts.values())
    fields = _variant_fields(column.id, metadata.get("variant_type", ""), parts)
    extra = variant_stats.encode(fields)
    return ColumnStats(column.id, size, values, nulls, extra=extra, variant_fields=fields)


def _variant_fields(
    column_id: int, layout: str, parts: Mapping[_Path, _Stats]
) -> tuple[VariantFieldStats, ...]:
    """The shredded fields of a column; none if the lake has no name for the type of one."""
    try:
        (root,) = number_columns([ColumnSpec("root", layout)])
    except UnsupportedType:
        return ()
    return tuple(_shredded_fields(column_id, root, parts, (), ""))


def _shredded_fields(
    column_id: int, part: Column, parts: Mapping[_Path, _Stats], path: _Path, name: str
) -> Iterator[VariantFieldStats]:
    """The fields in a part of a VARIANT, a struct of ``value`` and ``typed_value``."""
    typed = next((child for child in part.children if child.name == "typed_value"), None)
    if typed is None:
        return
    below = (*path, typed.name)
    prefix = f"{name}." if name else ""
    if typed.children:
        for child in typed.children:
            # The name of a field is always in quotes, so it is no list element.
            step = child.name if typed.type == "list" else identifier(child.name)
            inner = (*below, child.name)
            yield from _shredded_fields(column_id, child, parts, inner, prefix + step)
    elif below in parts and _is_fully_shredded(parts.get((*path, "value"), {})):
        field = _variant_field(column_id, name or "root", typed.type, parts[below])
        if field is not None:
            yield field


def _variant_field(
    column_id: int, name: str, type_: str, stats: _Stats
) -> VariantFieldStats | None:
    size, values, nulls = _counts(stats)
    if values is None or _NUL in name:
        return None
    low, high = stats.get("min"), stats.get("max")
    if _NUL in f"{low}{high}":  # a catalog cannot store it
        low = high = None
    field = ColumnStats(column_id, size, values, nulls, low, high, _contains_nan(stats))
    return VariantFieldStats(name, type_, field)


def _is_fully_shredded(untyped: _Stats) -> bool:
    """True if all values of a part have its type, or are NULL."""
    is_all_null = {untyped.get("min"), untyped.get("max")} == {_VARIANT_NULL}
    return is_all_null or untyped.get("num_values", "") == untyped.get("null_count")


def _below(path: _Path, by_path: Mapping[_Path, _Stats]) -> dict[_Path, _Stats]:
    depth = len(path)
    return {key[depth:]: stats for key, stats in by_path.items() if key[:depth] == path}


def _leaf_paths(columns: tuple[Column, ...], above: _Path = ()) -> Iterator[tuple[_Path, Column]]:
    for column in columns:
        path = (*above, column.name)
        if column.children:
            yield from _leaf_paths(column.children, path)
        else:
            yield path, column


def _path(name: str) -> _Path:
    """``"a"."b""c"`` as ``("a", 'b"c')``."""
    return tuple(part.replace('""', '"') for part in re.findall(r'"((?:[^"]|"")*)"', name))
