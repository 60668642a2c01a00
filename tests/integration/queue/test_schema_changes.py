"""Tables that change while rows are queued, and rows that become dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.queue.queries import count, dead_letters, flush, refused
from tests.queries import rows


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    """A table with two queued rows."""
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (1, 'a'), (2, NULL)")
    return name


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ADD COLUMN n INTEGER", [(1, "a", None), (2, None, None)]),
        ("ADD COLUMN n INTEGER DEFAULT 7", [(1, "a", 7), (2, None, 7)]),
        ("ADD COLUMN n VARCHAR DEFAULT 'it''s'", [(1, "a", "it's"), (2, None, "it's")]),
        ("DROP COLUMN s", [(1,), (2,)]),
        ("DROP COLUMN i", [("a",), (None,)]),
        ("RENAME COLUMN i TO number", [(1, "a"), (2, None)]),
        ("ALTER COLUMN i TYPE BIGINT", [(1, "a"), (2, None)]),
        ("ALTER COLUMN s SET DEFAULT 'late'", [(1, "a"), (2, None)]),
        ("ADD COLUMN l STRUCT(a INTEGER)[]", [(1, "a", None), (2, None, None)]),
    ],
)
def test_queued_rows_follow_a_schema_change(
    cursor: Any, swans: str, change: str, expected: list[Any]
) -> None:
    cursor.execute(f"ALTER TABLE {swans} {change}")
    assert rows(cursor, f"FROM duckling_queue.{swans}") == expected
    columns = [row[:2] for row in rows(cursor, f"DESCRIBE {swans}")]
    assert [row[:2] for row in rows(cursor, f"DESCRIBE duckling_queue.{swans}")] == columns
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY ALL") == expected
    assert dead_letters(cursor, swans) == []


def test_rows_from_before_and_after_many_schema_changes(cursor: Any, swans: str) -> None:
    cursor.execute(f"ALTER TABLE {swans} RENAME COLUMN i TO n")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} (n, s) VALUES (3, 'b')")
    cursor.execute(f"ALTER TABLE {swans} DROP COLUMN s")
    cursor.execute(f"ALTER TABLE {swans} ADD COLUMN s INTEGER DEFAULT 9")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (4, 5)")
    cursor.execute(f"ALTER TABLE {swans} ALTER COLUMN n TYPE BIGINT")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} (n) VALUES (5000000000)")
    both = f"(FROM {swans} UNION ALL FROM duckling_queue.{swans}) ORDER BY n"
    expected = [(1, 9), (2, 9), (3, 9), (4, 5), (5_000_000_000, 9)]
    assert rows(cursor, f"FROM {both}") == expected
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY n") == expected
    assert dead_letters(cursor, swans) == []


def test_recreated_column_does_not_get_old_values(cursor: Any, swans: str) -> None:
    cursor.execute(f"ALTER TABLE {swans} DROP COLUMN s")
    cursor.execute(f"ALTER TABLE {swans} ADD COLUMN s VARCHAR")
    assert rows(cursor, f"FROM duckling_queue.{swans}") == [(1, None), (2, None)]
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY i") == [(1, None), (2, None)]


def test_struct_fields_added_and_dropped(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (v STRUCT(a INTEGER, b VARCHAR))")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES ({{'a': 1, 'b': 'x'}})")
    cursor.execute(f"ALTER TABLE {name} ADD COLUMN v.c INTEGER")
    cursor.execute(f"ALTER TABLE {name} DROP COLUMN v.a")
    flush(cursor, name)
    assert rows(cursor, f"FROM {name}") == [({"b": "x", "c": None},)]


def test_renamed_struct_field_keeps_its_values(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (v STRUCT(a INTEGER, b VARCHAR))")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES ({{'a': 1, 'b': 'x'}})")
    cursor.execute(f"ALTER TABLE {name} RENAME COLUMN v.b TO c")
    flush(cursor, name)
    assert rows(cursor, f"FROM {name}") == [({"a": 1, "c": "x"},)]


def test_rows_reach_a_renamed_table(cursor: Any, swans: str) -> None:
    cursor.execute(f"ALTER TABLE {swans} RENAME TO {swans}_new")
    flush(cursor)
    assert rows(cursor, f"FROM {swans}_new ORDER BY i") == [(1, "a"), (2, None)]


def test_rows_of_a_renamed_table_stay_visible(cursor: Any, swans: str) -> None:
    cursor.execute(f"ALTER TABLE {swans} RENAME TO {swans}_new")
    assert count(cursor, f"duckling_queue.{swans}_new") == 2


def test_rows_of_a_dropped_table_do_not_reach_a_new_one(cursor: Any, swans: str) -> None:
    cursor.execute(f"DROP TABLE {swans}")
    cursor.execute(f"CREATE TABLE {swans} (i INTEGER, s VARCHAR)")
    assert count(cursor, f"duckling_queue.{swans}") == 0
    flush(cursor, swans)
    assert count(cursor, swans) == 0
    assert len(dead_letters(cursor, swans)) == 1


# ---- dead letters --------------------------------------------------------------------------------


def test_rows_of_a_dropped_table_become_a_dead_letter(cursor: Any, swans: str) -> None:
    cursor.execute(f"DROP TABLE {swans}")
    [report] = flush(cursor, swans)
    assert (report["rows"], report["files"], report["dead_letters"]) == (0, 0, 1)
    [letter] = dead_letters(cursor, swans)
    assert (letter["catalog_name"], letter["schema_name"]) == ("swanlake", "main")
    assert (letter["rows"], letter["replayable"]) == (2, True)
    assert "does not exist" in letter["reason"]
    assert Path(letter["path"]).stat().st_size == letter["bytes"]
    assert flush(cursor, swans) == []

    replay = f"CALL duckling_queue_replay('{letter['segment_id']}')"
    with refused("TABLE_NOT_FOUND", swans):
        cursor.execute(replay)
    assert len(dead_letters(cursor, swans)) == 1

    cursor.execute(f"CREATE TABLE {swans} (extra INTEGER, s VARCHAR, i BIGINT)")
    assert len(rows(cursor, replay)) == 1
    assert dead_letters(cursor, swans) == []
    with refused("DEAD_LETTER_NOT_FOUND", "duckling_queue_dead_letters"):
        cursor.execute(replay)
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY i") == [(None, "a", 1), (None, None, 2)]


def test_failed_replay_becomes_a_dead_letter_again(cursor: Any, swans: str) -> None:
    cursor.execute(f"DROP TABLE {swans}")
    flush(cursor, swans)
    [letter] = dead_letters(cursor, swans)
    cursor.execute(f"CREATE TABLE {swans} (i INTEGER, s INTEGER)")
    cursor.execute(f"CALL duckling_queue_replay('{letter['segment_id']}')")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (5, 6)")
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans}") == [(5, 6)]
    [again] = dead_letters(cursor, swans)
    assert "Conversion Error" in again["reason"]
    assert again["rows"] == 2


def test_dropped_schema_or_catalog_leaves_dead_letters(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE SCHEMA pond_{name}")
    cursor.execute(f"CREATE TABLE pond_{name}.{name} (i INTEGER)")
    cursor.execute(f"INSERT INTO duckling_queue.pond_{name}.{name} VALUES (1)")
    cursor.execute(f"DROP SCHEMA pond_{name} CASCADE")
    flush(cursor, name)
    assert [letter["rows"] for letter in dead_letters(cursor, name)] == [1]
    cursor.execute(f"CALL swanlake_create_catalog('{name}')")
    cursor.execute(f"CREATE TABLE {name}.main.{name} (i INTEGER)")
    cursor.execute(f"USE {name}")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (1), (2)")
    cursor.execute("USE swanlake")
    cursor.execute(f"CALL swanlake_drop_catalog('{name}')")
    flush(cursor, name)
    assert sorted(letter["rows"] for letter in dead_letters(cursor, name)) == [1, 2]


def test_unstorable_value_does_not_block_the_table(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (l INTERVAL[])")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES ([INTERVAL '-1 day'])")
    try:
        flush(cursor, name)
        assert len(dead_letters(cursor, name)) == 1
    finally:
        cursor.execute(f"DROP TABLE {name}")  # so that it does not trouble other tests
        flush(cursor, name)


def test_insert_targets_the_current_table_of_the_name(cursor: Any, swans: str) -> None:
    flush(cursor, swans)
    cursor.execute(f"CREATE TABLE {swans}_other (i INTEGER, s VARCHAR)")
    cursor.execute(f"ALTER TABLE {swans} RENAME TO {swans}_old")
    cursor.execute(f"ALTER TABLE {swans}_other RENAME TO {swans}")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (3, 'new')")
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans}") == [(3, "new")]
    assert count(cursor, f"{swans}_old") == 2


def test_insert_after_replacement_targets_the_new_table(cursor: Any, swans: str) -> None:
    flush(cursor, swans)
    cursor.execute(f"CREATE OR REPLACE TABLE {swans} (i INTEGER, s VARCHAR)")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (3, 'new')")
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans}") == [(3, "new")]
