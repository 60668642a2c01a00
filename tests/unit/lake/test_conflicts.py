"""Which changes of others a commit cannot follow: every cell of the matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swanlake.errors import CommitConflict
from swanlake.lake.changes import Change, ChangeType
from swanlake.lake.conflicts import (
    MATRIX,
    TOUCHES_FILES,
    Act,
    Happened,
    Touch,
    check_files,
    check_names,
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
#: ``X`` a conflict of the stock extension too, ``+`` one that it misses, ``.`` compatible; deletes
#: from files are compared file by file. The columns are those of ``ON_TABLES``.
EXPECTED = {
    #                  in ii de id al dr me re co fl fl
    Act.APPEND: ".. .. .. .. X  X  .. .. .. .. ..",
    Act.INSERT: ".. .. X  X  X  X  .. .. .. .. ..",
    Act.DELETE: "X  X  .. .. X  X  X  X  X  .. ..",
    Act.INLINED_DELETE: "X  X  +  X  X  X  +  +  +  X  X",
    Act.FLUSH: ".. .. .. X  .. X  .. .. .. X  X",
    Act.MERGE: ".. .. X  +  .. X  X  X  X  .. ..",
    Act.REWRITE: ".. .. X  +  .. X  X  X  X  .. ..",
    Act.ALTER: ".. .. .. .. X  X  .. .. .. .. ..",
    Act.DROP: "+  +  .. .. .. X  .. .. .. .. ..",
    Act.REPLACE: "+  +  +  +  +  X  .. .. .. .. ..",
}
CELLS = [
    pytest.param(act, theirs, cell != "..", id=f"{act.name} after {theirs.name}")
    for act, row in EXPECTED.items()
    for theirs, cell in zip(ON_TABLES, row.split(), strict=True)
]


def happened(*changes: Change, first: int = 8) -> list[Happened]:
    return [Happened(first + number, change) for number, change in enumerate(changes)]


@pytest.mark.parametrize(("act", "theirs", "conflict"), CELLS)
def test_a_cell_of_the_matrix(act: Act, theirs: ChangeType, conflict: bool) -> None:
    mine = [Touch(act, 5, "main.t")]
    if not conflict:
        check_tables(mine, happened(Change(theirs, 5)), base=7)
        return
    with pytest.raises(CommitConflict) as raised:
        check_tables(mine, happened(Change(theirs, 5)), base=7)
    message = raised.value.message
    assert message.startswith(f"Cannot {act.value} the table main.t (id 5): ")
    assert "in snapshot 8, after snapshot 7 on which this commit was based." in message
    assert message.endswith("Read the table again and repeat it.")
    assert raised.value.retryable


@pytest.mark.parametrize(("act", "theirs", "conflict"), CELLS)
def test_another_table_is_never_in_the_way(act: Act, theirs: ChangeType, conflict: bool) -> None:
    check_tables([Touch(act, 5, "main.t")], happened(Change(theirs, 6)), base=7)


def test_the_matrix_knows_every_act_and_every_word() -> None:
    assert set(MATRIX) == set(Act) == set(EXPECTED)
    with_names = {kind for kind in ChangeType if kind.value.startswith("created_")}
    elsewhere = {
        ChangeType.DROPPED_SCHEMA,
        ChangeType.DROPPED_VIEW,
        ChangeType.DROPPED_SCALAR_MACRO,
        ChangeType.DROPPED_TABLE_MACRO,
        ChangeType.ALTERED_VIEW,
    }
    assert set(ON_TABLES) == set(ChangeType) - with_names - elsewhere


def test_deletes_in_every_form_are_compared_by_file() -> None:
    deletes = {ChangeType.DELETED, ChangeType.INLINED_DELETE}
    flushes = {ChangeType.INLINE_FLUSH, ChangeType.FLUSHED_INLINED}
    assert deletes | flushes == TOUCHES_FILES


def test_the_first_of_several_changes_is_the_one_that_is_told() -> None:
    theirs = happened(
        Change(ChangeType.INSERTED, 6),
        Change(ChangeType.INSERTED, 5),
        Change(ChangeType.DROPPED_TABLE, 5),
    )
    with pytest.raises(CommitConflict, match=r"rows were inserted into it in snapshot 9"):
        check_tables([Touch(Act.DELETE, 5, "main.t")], theirs, base=7)


def test_only_a_file_that_both_changed_is_a_conflict() -> None:
    touch = Touch(Act.DELETE, 5, "main.t")
    check_files(touch, {1, 2}, {3}, base=7, head=9)
    check_files(touch, set(), {3}, base=7, head=9)
    with pytest.raises(CommitConflict) as raised:
        check_files(touch, {4, 2, 3}, {3, 4}, base=7, head=9)
    assert raised.value.message == (
        "Cannot delete from the table main.t (id 5): data file 3 was changed by another commit "
        "between snapshot 7, on which this one was based, and snapshot 9. Read the table again and "
        "repeat it."
    )


# ---- names -------------------------------------------------------------------------------------

MADE_TABLE = Change(ChangeType.CREATED_TABLE, name=("Main", "Orders"))
MADE_VIEW = Change(ChangeType.CREATED_VIEW, name=("main", "orders"))
MADE_SCHEMA = Change(ChangeType.CREATED_SCHEMA, name=("RAW",))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (("main", "orders"), MADE_TABLE),
        (("MAIN", "ORDERS"), MADE_VIEW),
        (("raw",), MADE_SCHEMA),
    ],
    ids=["table", "view", "schema"],
)
def test_a_name_that_somebody_took_meanwhile_is_a_conflict_in_any_case(
    mine: tuple[str, ...], theirs: Change
) -> None:
    with pytest.raises(CommitConflict) as raised:
        check_names([mine], happened(theirs), base=7)
    message = raised.value.message
    assert message.startswith(f"Cannot create {'.'.join(mine)}: snapshot 8 created it, ")
    assert "after snapshot 7" in message
    assert message.endswith("Use the one that is there, or choose another name.")


@pytest.mark.parametrize(
    ("mine", "theirs"),
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
def test_another_name_or_kind_of_name_is_free(mine: tuple[str, ...], theirs: Change) -> None:
    check_names([mine], happened(theirs), base=7)
    check_table_drops([mine], happened(theirs), base=7)


def test_a_table_to_drop_must_be_the_one_that_was_read() -> None:
    with pytest.raises(CommitConflict) as raised:
        check_table_drops([("main", "orders")], happened(MADE_TABLE), base=7)
    assert raised.value.message == (
        "Cannot drop the table main.orders: snapshot 8 gave that name to another one, after "
        "snapshot 7 on which this commit was based. Look at the table again and repeat it."
    )


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (Change(ChangeType.DROPPED_SCHEMA, 3), "dropped it"),
        (Change(ChangeType.CREATED_TABLE, name=("RAW", "t")), "created RAW.t in it"),
        (Change(ChangeType.CREATED_VIEW, name=("raw", "v")), "created raw.v in it"),
        (Change(ChangeType.CREATED_TABLE_MACRO, name=("raw", "m")), "created raw.m in it"),
    ],
)
def test_a_schema_in_which_something_happened_is_not_dropped(theirs: Change, what: str) -> None:
    with pytest.raises(CommitConflict) as raised:
        check_schema_drop(3, "raw", happened(theirs), base=7)
    assert raised.value.message == (
        f"Cannot drop the schema raw (id 3): snapshot 8 {what}, after snapshot 7 on which this "
        "commit was based. Look at the schema again and repeat it."
    )


def test_a_schema_in_which_nothing_happened_is_dropped() -> None:
    theirs = happened(
        Change(ChangeType.DROPPED_SCHEMA, 4),
        Change(ChangeType.CREATED_SCHEMA, name=("raw",)),
        Change(ChangeType.CREATED_TABLE, name=("main", "raw")),
        Change(ChangeType.INSERTED, 3),
    )
    check_schema_drop(3, "raw", theirs, base=7)
    check_schema_use(3, "raw", theirs, base=7)


def test_nothing_is_created_in_a_schema_that_was_dropped_meanwhile() -> None:
    with pytest.raises(CommitConflict) as raised:
        check_schema_use(3, "raw", happened(Change(ChangeType.DROPPED_SCHEMA, 3)), base=7)
    assert raised.value.message == (
        "Cannot create anything in the schema raw (id 3): snapshot 8 dropped it, after snapshot 7 "
        "on which this commit was based. Look at the schema again and repeat it."
    )


@pytest.mark.parametrize(
    "check",
    [
        lambda theirs: check_tables([Touch(Act.INSERT, 5, "main.t")], theirs, base=7),
        lambda theirs: check_names([("main", "t")], theirs, base=7),
        lambda theirs: check_table_drops([("main", "t")], theirs, base=7),
        lambda theirs: check_schema_drop(3, "raw", theirs, base=7),
        lambda theirs: check_schema_use(3, "raw", theirs, base=7),
    ],
)
def test_where_nothing_happened_nothing_is_in_the_way(
    check: Callable[[list[Happened]], None],
) -> None:
    check([])
