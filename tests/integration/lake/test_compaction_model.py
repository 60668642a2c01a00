"""Whatever happened to a table, compaction changes no version of it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import given as given_some
from hypothesis import strategies as some

from tests.integration.lake.compacting import Lab, Version, new_lab
from tests.integration.lake.world import World

small = some.integers(0, 4)
STATEMENTS = some.one_of(
    some.builds("INSERT INTO {{t}} (i) SELECT range FROM range({}, {}0)".format, small, small),
    some.builds("UPDATE {{t}} SET s = '{{n}}' WHERE i % 5 = {}".format, small),
    some.builds("UPDATE {{t}} SET s = '{{n}}' WHERE i = {}".format, small),
    some.builds("DELETE FROM {{t}} WHERE i % 5 = {}".format, small),
    some.builds("DELETE FROM {{t}} WHERE i = {}".format, small),
    some.sampled_from(
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


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given_some(statements=some.lists(STATEMENTS, min_size=6, max_size=10))
def test_every_version_stays_as_it_was(world: World, statements: list[str]) -> None:
    world.clear()
    lab = new_lab(world, "CREATE TABLE {t} (i INTEGER, s VARCHAR, x VARCHAR)", inlined=10)
    lab("INSERT INTO {t} SELECT range, 'v' || range % 2, 'y' FROM range(8)")
    lab("INSERT INTO {t} SELECT range, 'v' || range % 2, 'y' FROM range(20)")
    known: dict[int, Version] = {}
    remember(lab, known)
    for number, statement in enumerate(statements):
        act(lab, statement.replace("{n}", str(number)))
        remember(lab, known)
    for _ in range(2):  # what folds and rewrites leave behind is merged the second time
        lab.compact()
    lab.check(known)


def act(lab: Lab, statement: str) -> None:
    if statement == "compact":
        lab.compact()
    elif statement.startswith("inline"):
        lab.world.inline(int(statement.split()[1]))
    else:
        lab(statement)


def remember(lab: Lab, known: dict[int, Version]) -> None:
    """How the table is at the snapshots that came since it was last looked at."""
    for number in range(max(known, default=0) + 1, lab.catalog.snapshot_id() + 1):
        known[number] = lab.version(number)
