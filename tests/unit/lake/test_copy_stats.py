"""Statistics of a file are those that COPY returns, or unknown."""

from __future__ import annotations

from swanlake.lake.files.copy_stats import file_column_stats
from swanlake.lake.model.layout import Column, ColumnStats, Table, VariantFieldStats


def test_statistics_cover_leaf_columns_only() -> None:
    table = Table(
        1,
        "main",
        "t",
        "/",
        (
            Column(5, 'a".b', "struct", children=(Column(6, "element", "int32"),)),
            Column(2, "v", "variant"),
            Column(3, "i", "interval"),
            Column(4, "gone", "int32"),
        ),
    )
    returned = {
        '"a"".b"."element"': {
            "column_size_bytes": "30",
            "num_values": "5",
            "null_count": "2",
            "min": "1",
            "max": "3",
        },
        '"v"."value"': {"column_size_bytes": "30", "num_values": "5", "null_count": "2"},
        '"i"': {"column_size_bytes": "0", "num_values": "0", "null_count": "0"},
    }
    assert file_column_stats(returned, table) == (
        ColumnStats(6, 30, 3, 2, "1", "3"),
        ColumnStats(2),
        ColumnStats(3, 0),
        ColumnStats(4),
    )


def variant_table() -> Table:
    return Table(1, "main", "t", "/", (Column(7, "v", "variant"),))


def counted(values: int, nulls: int, **bounds: str) -> dict[str, str]:
    counts = {"column_size_bytes": "10", "num_values": str(values), "null_count": str(nulls)}
    return counts | bounds


def test_variant_field_with_values_of_other_types_has_no_statistics() -> None:
    layout = (
        'STRUCT(metadata BLOB, "value" BLOB, typed_value STRUCT('
        'a STRUCT("value" BLOB, typed_value INTEGER), '
        '"b""." STRUCT("value" BLOB, typed_value STRUCT("value" BLOB, typed_value DATE)[])))'
    )
    day = "2024-01-01"
    returned = {
        '"v"."metadata"': counted(2, 0, variant_type=layout),
        '"v"."value"': counted(2, 2),
        '"v"."typed_value"."a"."value"': counted(2, 1, min="0574", max="0574"),
        '"v"."typed_value"."a"."typed_value"': counted(2, 1, min="1", max="1"),
        '"v"."typed_value"."b""."."value"': counted(2, 2),
        '"v"."typed_value"."b""."."typed_value"."element"."value"': counted(
            3, 2, min="00", max="00"
        ),
        '"v"."typed_value"."b""."."typed_value"."element"."typed_value"': counted(
            3, 1, min=day, max=day
        ),
    }
    (stats,) = file_column_stats(returned, variant_table())
    assert (stats.size_bytes, stats.value_count, stats.null_count) == (70, 2, 0)
    dates = ColumnStats(7, 10, 2, 1, day, day)
    assert stats.variant_fields == (VariantFieldStats('"b"".".element', "date", dates),)


def test_variant_text_with_a_nul_character_has_no_bounds() -> None:
    layout = 'STRUCT(metadata BLOB, "value" BLOB, typed_value VARCHAR)'
    returned = {
        '"v"."metadata"': counted(2, 0, variant_type=layout),
        '"v"."value"': counted(2, 2),
        '"v"."typed_value"': counted(2, 0, min="a", max="b\0c"),
    }
    (stats,) = file_column_stats(returned, variant_table())
    assert stats.variant_fields == (VariantFieldStats("root", "varchar", ColumnStats(7, 10, 2, 0)),)


def test_variant_of_an_unnamed_type_has_counts_only() -> None:
    layout = 'STRUCT(metadata BLOB, "value" BLOB, typed_value TIME_NS)'
    returned = {
        '"v"."metadata"': counted(2, 0, variant_type=layout),
        '"v"."value"': counted(2, 2),
        '"v"."typed_value"': counted(2, 0, min="1", max="2"),
    }
    assert file_column_stats(returned, variant_table()) == (ColumnStats(7, 30, 2, 0),)
