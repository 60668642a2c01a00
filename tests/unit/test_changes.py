"""The notation of a snapshot's changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.lake.changes import (
    Change,
    ChangeType,
    UnreadableChanges,
    format_changes,
    parse_changes,
)

NAMES = st.text(min_size=1)
CHANGES = st.one_of(
    st.builds(
        lambda name: Change(ChangeType.CREATED_SCHEMA, name=(name,)),
        NAMES,
    ),
    st.builds(
        lambda kind, schema, name: Change(kind, name=(schema, name)),
        st.sampled_from([ChangeType.CREATED_TABLE, ChangeType.CREATED_VIEW]),
        NAMES,
        NAMES,
    ),
    st.builds(
        Change,
        st.sampled_from([ChangeType.INSERTED, ChangeType.DROPPED_TABLE, ChangeType.INLINE_FLUSH]),
        st.integers(0, 1 << 60),
    ),
)


@given(st.lists(CHANGES))
def test_what_is_written_is_read(changes: list[Change]) -> None:
    assert parse_changes(format_changes(changes)) == changes


def test_the_stock_extensions_text() -> None:
    text = 'created_table:"s1"."odd "",name",inserted_into_table:3'
    assert parse_changes(text) == [
        Change(ChangeType.CREATED_TABLE, name=("s1", 'odd ",name')),
        Change(ChangeType.INSERTED, 3),
    ]
    assert format_changes(parse_changes(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "forked_from:1",
        "inserted_into_table",
        "inserted_into_table:x",
        "inserted_into_table:5dropped_table:4",
        'created_table:"a',
        "created_table:a",
        'created_schema:"a"x',
    ],
)
def test_what_is_not_in_the_notation_is_an_error(text: str) -> None:
    with pytest.raises(UnreadableChanges):
        parse_changes(text)
