"""Tables fit the terminal; values and NULL are told apart; nothing moves the cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from swanlake.cli.table_layout import COLOURS, Column, TableText, fit, vertical_lines

WIDE = [Column(f"column_{number:02}", "varchar") for number in range(20)]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(20, 200))
def test_table_is_never_wider_than_the_terminal(widths: list[int], limit: int) -> None:
    layout = fit(widths, limit)
    shown = [1 if entry is None else entry[1] for entry in layout.widths]
    assert sum(shown) + 3 * len(shown) + 1 <= limit
    assert layout.shown >= 1


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_table_without_a_limit_shows_everything(widths: list[int]) -> None:
    assert [entry and entry[1] for entry in fit(widths, None).widths] == widths


def test_wide_cells_are_cut_before_columns_are_left_out() -> None:
    table = TableText([Column("a"), Column("b")], [["short", "x" * 100]], 40)
    lines = list(table.lines())
    assert table.shown == 2
    assert not table.fits
    assert "short" in lines[3]
    assert "…" in lines[3]
    assert {cell_len(line) for line in lines} == {40}


def test_middle_columns_are_left_out_and_their_types_too() -> None:
    table = TableText(WIDE, [["v"] * 20], 80)
    heading, types = list(table.lines())[1:3]
    assert table.shown < 20
    assert "column_00" in heading
    assert "column_19" in heading
    assert " … " in heading
    assert types.count("varchar") == table.shown


@pytest.mark.parametrize("text", ["日本語日本語日本語", "naïve café", "🦢🦢🦢🦢🦢🦢🦢🦢"])
def test_wide_characters_keep_the_frame_straight(text: str) -> None:
    for limit in (20, None):
        lines = list(TableText([Column("c"), Column("d")], [[text, "x"]], limit).lines())
        assert len({cell_len(line) for line in lines}) == 1


def test_control_characters_are_escaped() -> None:
    text = "\n".join(TableText([Column("a\x1b]0;t")], [["x\x1b[2J\ny"]]).lines())
    assert "\x1b" not in text
    assert "x\\x1b[2J\\ny" in text


def test_null_is_faint_and_the_word_null_is_not() -> None:
    lines = list(TableText([Column("a")], [[None], ["NULL"]], style=COLOURS).lines())
    assert "\x1b[2mNULL\x1b[0m" in lines[3]
    assert "\x1b" not in lines[4]
    assert "│ -" in list(TableText([Column("a")], [[None]], null="-").lines())[3]


def test_vertical_keeps_the_lines_of_a_value() -> None:
    lines = list(vertical_lines([Column("a"), Column("long")], [["one\ntwo", None]]))
    assert lines[0].startswith("─ row 1 ─")
    assert lines[1:] == ["a    │ one", "     │ two", "long │ NULL"]
