"""Compaction changes no version of a table with a random history."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from tests.integration.lake.compaction_harness import CompactionCase, Version, new_case
from tests.integration.lake.fixtures import LakeHarness

small = st.integers(0, 4)
STATEMENTS = st.one_of(
    st.builds("INSERT INTO {{t}} (i) SELECT range FROM range({}, {}0)".format, small, small),
    st.builds("UPDATE {{t}} SET s = '{{n}}' WHERE i % 5 = {}".format, small),
    st.builds("UPDATE {{t}} SET s = '{{n}}' WHERE i = {}".format, small),
    st.builds("DELETE FROM {{t}} WHERE i % 5 = {}".format, small),
    st.builds("DELETE FROM {{t}} WHERE i = {}".format, small),
    st.sampled_from(
        [
            "ALTER TABLE {t} ADD COLUMN c{n} INTEGER DEFAULT 7",
            "ALTER TABLE {t} RENAME COLUMN i TO j; ALTER TABLE {t} RENAME COLUMN j TO i",
            "ALTER TABLE {t} DROP COLUMN x; ALTER TABLE {t} ADD COLUMN x VARCHAR DEFAULT 'x'",
            "ALTER TABLE {t} SET PARTITIONED BY (s)",
            "ALTER TABLE {t} RESET PARTITIONED BY",
            "ALTER TABLE {t} SET SORTED BY (s DESC, i)",
            "compact",
            "compact",
            "inline 0",
            "inline 10",
        ]
    ),
)


HISTORIES = st.lists(STATEMENTS, min_size=6, max_size=10)
#: ``COMPACTION_SEED`` repeats a campaign.
SEED = int(os.environ.get("COMPACTION_SEED") or random.randrange(1 << 32))
FIXTURE_IS_CLEARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=3, derandomize=True, suppress_health_check=FIXTURE_IS_CLEARED)
@given(statements=HISTORIES)
def test_compaction_changes_no_version(harness: LakeHarness, statements: list[str]) -> None:
    check_history(harness, statements)


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=200, print_blob=True, suppress_health_check=FIXTURE_IS_CLEARED)
@given(statements=HISTORIES)
def test_compaction_campaign(harness: LakeHarness, statements: list[str]) -> None:
    note(f"seed {SEED}")
    check_history(harness, statements)


def check_history(harness: LakeHarness, statements: list[str]) -> None:
    """Compacts a table with this history, and compares all its versions."""
    harness.clear()
    case = new_case(harness, "CREATE TABLE {t} (i INTEGER, s VARCHAR, x VARCHAR)", inlined=10)
    case("INSERT INTO {t} SELECT range, 'v' || range % 2, 'y' FROM range(8)")
    case("INSERT INTO {t} SELECT range, 'v' || range % 2, 'y' FROM range(20)")
    known: dict[int, Version] = {}
    remember(case, known)
    for number, statement in enumerate(statements):
        act(case, statement.replace("{n}", str(number)))
        remember(case, known)
    for _ in range(2):  # the second run merges what flushes and rewrites wrote
        case.compact()
    case.check(known)


def act(case: CompactionCase, statement: str) -> None:
    if statement == "compact":
        case.compact()
    elif statement.startswith("inline"):
        case.harness.inline(int(statement.split()[1]))
    else:
        case(statement)


def remember(case: CompactionCase, known: dict[int, Version]) -> None:
    """Adds the versions of the snapshots since the last call."""
    for number in range(max(known, default=0) + 1, case.catalog.newest_snapshot() + 1):
        known[number] = case.version(number)
