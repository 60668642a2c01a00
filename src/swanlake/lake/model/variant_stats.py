"""The statistics of a VARIANT column: of each field with values of a single type, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from swanlake.lake.model.layout import ColumnStats, VariantFieldStats


def encode(fields: Sequence[VariantFieldStats]) -> str | None:
    """The ``extra_stats`` of a file or a table; None without any field."""
    if not fields:
        return None
    return json.dumps([_entry(field) for field in fields], separators=(",", ":"))


def decode(text: str | None, column_id: int) -> tuple[VariantFieldStats, ...]:
    """The fields in ``extra_stats``; one without counts, of files added by name, is left out."""
    entries = json.loads(text) if text is not None else ()
    fields = (_field(entry, column_id) for entry in entries)
    return tuple(field for field in fields if field is not None)


def _entry(field: VariantFieldStats) -> dict[str, Any]:
    stats = field.stats
    assert stats.value_count is not None
    assert stats.null_count is not None
    entry = {
        "field_name": field.path,
        "shredded_type": field.type,
        "null_count": stats.null_count,
        "min": stats.min,
        "max": stats.max,
        "num_values": stats.value_count + stats.null_count,
        "contains_nan": stats.contains_nan,
        "column_size_bytes": stats.size_bytes,
        # The stock extension decides by the counts, which are always there.
        "any_valid": True,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _field(entry: dict[str, Any], column_id: int) -> VariantFieldStats | None:
    values, nulls = entry.get("num_values"), entry.get("null_count")
    if values is None or nulls is None:
        return None
    stats = ColumnStats(
        column_id,
        entry.get("column_size_bytes"),
        values - nulls,
        nulls,
        entry.get("min"),
        entry.get("max"),
        entry.get("contains_nan"),
    )
    return VariantFieldStats(entry["field_name"], entry["shredded_type"], stats)
