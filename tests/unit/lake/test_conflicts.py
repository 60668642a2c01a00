"""Which committed changes conflict with a commit: every cell of the matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swanlake.errors import CommitConflict
from swanlake.lake.commit.changes import Change, ChangeType
from swanlake.lake.commit.conflicts import (
    MATRIX,
    Action,
    CommittedChange,
    TableIntent,
    check_names,
    check_renamed,
    check_schema_drop,
    check_schema_use,
    check_table_drops,
    check_tables,
)

ON_TABLES = [
    ChangeType.INSERTED,
    ChangeType.INLINED_INSERT,
    ChangeType.DELETED,
    ChangeType.INLINED_DELETE,
    ChangeType.ALTERED_TABLE,
    ChangeType.DROPPED_TABLE,
    ChangeType.MERGE_ADJACENT,
    ChangeType.REWRITE_DELETE,
    ChangeType.COMPACTED,
    ChangeType.INLINE_FLUSH,
    ChangeType.FLUSHED_INLINED,
]
#: ``X`` is a conflict in the stock extension too, ``+`` one that it misses, ``.`` none. The columns
#: are those of ``ON_TABLES``.
EXPECTED = {
    #                  in ii de id al dr me re co fl fl
    Action.APPEND: ".. .. .. .. X  X  .. .. .. .. ..",
    Action.INSERT: ".. .. X  X  X  X  .. .. .. .. ..",
    Action.INLINED_DELETE: "X  X  +  X  X  X  +  +  +  X  X",
    Action.FLUSH: ".. .. .. X  .. X  .. .. .. X  X",
    Action.MERGE: ".. .. X  +  .. X  X  X  X  .. ..",
    Action.REWRITE: ".. .. X  +  .. X  X  X  X  .. ..",
    Action.ALTER: ".. .. .. .. X  X  .. .. .. .. ..",
    Action.DROP: "+  +  .. .. .. X  .. .. .. .. ..",
    Action.REPLACE: "+  +  +  +  +  X  .. .. .. .. ..",
}
CELLS = [
    pytest.param(act, change, cell != "..", id=f"{act.name} after {change.name}")
    for act, row in EXPECTED.items()
    for change, cell in zip(ON_TABLES, row.split(), strict=True)
]


def committed(*changes: Change, first: int = 8) -> list[CommittedChange]:
    return [CommittedChange(first + number, change) for number, change in enumerate(changes)]


@pytest.mark.parametrize(("act", "change", "conflict"), CELLS)
def test_matrix_cell_decides_conflict(act: Action, change: ChangeType, conflict: bool) -> None:
    intents = [TableIntent(act, 5, "main.t")]
    if not conflict:
        check_tables(intents, committed(Change(change, 5)), base=7)
        return
    with pytest.raises(CommitConflict) as raised:
        check_tables(intents, committed(Change(change, 5)), base=7)
    message = raised.value.message
    assert message.startswith(f"Cannot {act.value} the table main.t (id 5): ")
    assert "in snapshot 8, after snapshot 7 on which this commit was based." in message
    assert message.endswith("Read the table again and repeat it.")
    assert raised.value.retryable


@pytest.mark.parametrize(("act", "change", "conflict"), CELLS)
def test_change_of_another_table_is_no_conflict(
    act: Action, change: ChangeType, conflict: bool
) -> None:
    check_tables([TableIntent(act, 5, "main.t")], committed(Change(change, 6)), base=7)


def test_matrix_covers_every_action_and_change_type() -> None:
    assert set(MATRIX) == set(Action) == set(EXPECTED)
    with_names = {kind for kind in ChangeType if kind.value.startswith("created_")}
    elsewhere = {
        ChangeType.DROPPED_SCHEMA,
        ChangeType.DROPPED_VIEW,
        ChangeType.DROPPED_SCALAR_MACRO,
        ChangeType.DROPPED_TABLE_MACRO,
        ChangeType.ALTERED_VIEW,
    }
    assert set(ON_TABLES) == set(ChangeType) - with_names - elsewhere


def test_first_conflicting_change_is_reported() -> None:
    changes = committed(
        Change(ChangeType.INSERTED, 6),
        Change(ChangeType.INSERTED, 5),
        Change(ChangeType.DROPPED_TABLE, 5),
    )
    with pytest.raises(CommitConflict, match=r"rows were inserted into it in snapshot 9"):
        check_tables([TableIntent(Action.INLINED_DELETE, 5, "main.t")], changes, base=7)


def test_table_renamed_after_the_base_is_a_conflict() -> None:
    intents = [TableIntent(Action.APPEND, 4, "main.s"), TableIntent(Action.APPEND, 5, "main.t")]
    with pytest.raises(CommitConflict) as raised:
        check_renamed(intents, {4: 7, 5: 8}, base=7)
    assert raised.value.message == (
        "Cannot append to the table main.t (id 5): it was renamed in snapshot 8, after snapshot 7 "
        "on which this commit was based. Look it up again and repeat it."
    )


def test_table_renamed_up_to_the_base_is_no_conflict() -> None:
    intents = [TableIntent(Action.APPEND, 5, "main.t")]
    check_renamed(intents, {5: 7}, base=7)
    check_renamed(intents, {5: 3}, base=7)
    check_renamed(intents, {6: 8}, base=7)
    check_renamed(intents, {}, base=7)


# ---- names -------------------------------------------------------------------------------------

MADE_TABLE = Change(ChangeType.CREATED_TABLE, name=("Main", "Orders"))
MADE_VIEW = Change(ChangeType.CREATED_VIEW, name=("main", "orders"))
MADE_SCHEMA = Change(ChangeType.CREATED_SCHEMA, name=("RAW",))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (("main", "orders"), MADE_TABLE),
        (("MAIN", "ORDERS"), MADE_VIEW),
        (("raw",), MADE_SCHEMA),
    ],
    ids=["table", "view", "schema"],
)
def test_name_created_since_the_base_is_a_conflict_in_any_letter_case(
    name: tuple[str, ...], change: Change
) -> None:
    with pytest.raises(CommitConflict) as raised:
        check_names([name], committed(change), base=7)
    message = raised.value.message
    assert message.startswith(f"Cannot create {'.'.join(name)}: snapshot 8 created it, ")
    assert "after snapshot 7" in message
    assert message.endswith("Use the existing one, or choose another name.")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (("main", "lines"), MADE_TABLE),
        (("raw", "orders"), MADE_TABLE),
        (("main",), MADE_TABLE),
        (("main", "raw"), MADE_SCHEMA),
        (("main", "orders"), Change(ChangeType.CREATED_SCALAR_MACRO, name=("main", "orders"))),
        (("main", "orders"), Change(ChangeType.CREATED_TABLE_MACRO, name=("main", "orders"))),
        (("main", "strasse"), Change(ChangeType.CREATED_TABLE, name=("main", "straße"))),
        (("main", "Ä"), Change(ChangeType.CREATED_TABLE, name=("main", "ä"))),
        (("main", "orders"), Change(ChangeType.DROPPED_TABLE, 5)),
    ],
)
def test_other_name_or_kind_of_object_is_no_conflict(name: tuple[str, ...], change: Change) -> None:
    check_names([name], committed(change), base=7)
    check_table_drops([name], committed(change), base=7)


def test_drop_of_a_replaced_table_is_a_conflict() -> None:
    with pytest.raises(CommitConflict) as raised:
        check_table_drops([("main", "orders")], committed(MADE_TABLE), base=7)
    assert raised.value.message == (
        "Cannot drop the table main.orders: snapshot 8 gave that name to another one, after "
        "snapshot 7 on which this commit was based. Look at the table again and repeat it."
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Change(ChangeType.DROPPED_SCHEMA, 3), "dropped it"),
        (Change(ChangeType.CREATED_TABLE, name=("RAW", "t")), "created RAW.t in it"),
        (Change(ChangeType.CREATED_VIEW, name=("raw", "v")), "created raw.v in it"),
        (Change(ChangeType.CREATED_TABLE_MACRO, name=("raw", "m")), "created raw.m in it"),
    ],
)
def test_drop_of_a_changed_schema_is_a_conflict(change: Change, what: str) -> None:
    with pytest.raises(CommitConflict) as raised:
        check_schema_drop(3, "raw", committed(change), base=7)
    assert raised.value.message == (
        f"Cannot drop the schema raw (id 3): snapshot 8 {what}, after snapshot 7 on which this "
        "commit was based. Look at the schema again and repeat it."
    )


def test_drop_of_an_unchanged_schema_is_no_conflict() -> None:
    changes = committed(
        Change(ChangeType.DROPPED_SCHEMA, 4),
        Change(ChangeType.CREATED_SCHEMA, name=("raw",)),
        Change(ChangeType.CREATED_TABLE, name=("main", "raw")),
        Change(ChangeType.INSERTED, 3),
    )
    check_schema_drop(3, "raw", changes, base=7)
    check_schema_use(3, "raw", changes, base=7)


def test_create_in_a_dropped_schema_is_a_conflict() -> None:
    with pytest.raises(CommitConflict) as raised:
        check_schema_use(3, "raw", committed(Change(ChangeType.DROPPED_SCHEMA, 3)), base=7)
    assert raised.value.message == (
        "Cannot create anything in the schema raw (id 3): snapshot 8 dropped it, after snapshot 7 "
        "on which this commit was based. Look at the schema again and repeat it."
    )


@pytest.mark.parametrize(
    "check",
    [
        lambda changes: check_tables([TableIntent(Action.INSERT, 5, "main.t")], changes, base=7),
        lambda changes: check_names([("main", "t")], changes, base=7),
        lambda changes: check_table_drops([("main", "t")], changes, base=7),
        lambda changes: check_schema_drop(3, "raw", changes, base=7),
        lambda changes: check_schema_use(3, "raw", changes, base=7),
    ],
)
def test_no_changes_are_no_conflict(
    check: Callable[[list[CommittedChange]], None],
) -> None:
    check([])
