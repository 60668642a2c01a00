"""SIGKILL at every step from a client to the lake: no row is lost or duplicated."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from uuid import uuid4

import adbc_driver_flightsql.dbapi as adbc
import pytest

from tests.faults.crashing_server import (
    ADOPT_STEPS,
    APPEND_STEPS,
    BETWEEN_REMOVALS,
    BULK_STEPS,
    COMMIT_STEPS,
    DEAD_LETTER_STEPS,
    FLUSH_STEPS,
    REPLAY_STEPS,
)
from tests.faults.harness import (
    DEFAULT_WRITES,
    FaultHarness,
    Producer,
    WriteLog,
    WriteMethod,
    adbc_cursor,
    insert_bulk,
    open_harness,
)
from tests.waiting import eventually

#: A test has many crashes; a crash and a restart take two seconds, or ten on a busy machine.
KILLS = 55
ROUND_SECONDS = 3.0
#: How long a server may take to reach the step of its crash; then it is killed anyway.
STEP_SECONDS = 10.0
SEGMENTS = "CALL duckling_queue_segments()"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultHarness]:
    """One lake for all tests, so that damage left by one crash shows in later tests."""
    home = tmp_path_factory.mktemp("harness") / "home"
    with open_harness(request.param, partial(request.getfixturevalue, "postgres"), home) as harness:
        yield harness


@pytest.fixture(autouse=True)
def running_server(harness: FaultHarness) -> None:
    """Restarts the server after a failed test."""
    harness.server.clear_fault()
    if not harness.server.is_alive:
        harness.server.start()


def fill(harness: FaultHarness, table: str = "t", log: WriteLog | None = None) -> None:
    """Inserts rows into three segments of a paused queue."""
    log = log or harness.log
    harness.sql("CALL duckling_queue_pause()")
    for _ in range(3):
        ids = log.allocate(30)
        rows = f"SELECT id, 'a row' FROM range({ids.start}, {ids.stop}) AS r(id)"
        harness.sql(f"INSERT INTO duckling_queue.{table} {rows}")
        log.acknowledged.append(ids)
        eventually(lambda: "open" not in [row[4] for row in harness.sql(SEGMENTS)])


def resume_after_restart(harness: FaultHarness) -> None:
    (harness.root / "paused").unlink(missing_ok=True)


def leave_segments(harness: FaultHarness) -> None:
    """Kills the server while three segments wait; the next one flushes them together."""
    fill(harness)
    resume_after_restart(harness)
    harness.kill()


def finish(harness: FaultHarness, producers: Iterable[Producer]) -> None:
    """Sends the unacknowledged batches of the producers once more."""
    for producer in producers:
        with adbc_cursor(harness.server.url) as cursor:
            producer(cursor, harness.log)


ON_SQLITE = pytest.mark.parametrize("harness", ["sqlite"], indirect=True)


# ---- every step --------------------------------------------------------------------------------


@ON_SQLITE
def test_crash_during_an_append_keeps_acknowledged_rows(
    harness: FaultHarness,
) -> None:
    harness.crash_at_each(APPEND_STEPS)
    harness.assert_no_loss()


@ON_SQLITE
def test_crash_during_a_large_upload_keeps_all_or_nothing(
    harness: FaultHarness,
) -> None:
    harness.crash_at_each(BULK_STEPS, insert_bulk)
    harness.assert_no_loss()


def test_crash_during_a_flush_stores_rows_once(
    harness: FaultHarness,
) -> None:
    leave_segments(harness)
    harness.crash_at_each(FLUSH_STEPS)
    leave_segments(harness)
    harness.crash_at_each([BETWEEN_REMOVALS])
    harness.assert_no_loss()


@pytest.mark.parametrize("harness", ["postgres"], indirect=True)
def test_crash_during_the_commit_of_a_flush_stores_rows_once(
    harness: FaultHarness,
) -> None:
    harness.crash_at_each(COMMIT_STEPS)
    harness.assert_no_loss()


def test_crash_during_adoption_leaves_the_segments_to_the_next_server(
    harness: FaultHarness,
) -> None:
    leave_segments(harness)
    harness.crash_at_each(ADOPT_STEPS)
    harness.assert_no_loss()


def test_idempotent_batch_repeated_after_a_crash_is_stored_once(
    harness: FaultHarness,
) -> None:
    producers = [Producer(f"{uuid4()}") for _ in range(3)]
    harness.crash_at_each(
        ["append: written", "append: before the acknowledgement", "flush: committed"], *producers
    )
    finish(harness, producers)
    assert sum(producer.repeated for producer in producers) > 0
    harness.assert_no_loss()


# ---- dead letters ------------------------------------------------------------------------------


@pytest.fixture
def orphans(harness: FaultHarness) -> Iterator[WriteLog]:
    """Rows in three segments whose table was dropped; the server is down."""
    log = WriteLog()
    delete_dead_letters(harness)
    harness.sql("CREATE TABLE swanlake.main.gone (id BIGINT, note VARCHAR)")
    fill(harness, "gone", log)
    harness.sql("DROP TABLE swanlake.main.gone")
    resume_after_restart(harness)
    harness.kill()
    yield log
    resume_after_restart(harness)
    harness.recover()
    harness.flush()
    harness.sql("DROP TABLE IF EXISTS swanlake.main.gone")
    delete_dead_letters(harness)


def delete_dead_letters(harness: FaultHarness) -> None:
    """Deletes all dead letters, including partial segments of other tests' crashes."""
    shutil.rmtree(harness.root / "dead-letters", ignore_errors=True)


def wait_for_dead_letters(harness: FaultHarness) -> None:
    """Waits until the three segments are dead letters, and creates their table again."""
    harness.flush()
    assert [letter["rows"] for letter in harness.dead_letters()] == [30, 30, 30]
    harness.sql("CREATE TABLE swanlake.main.gone (id BIGINT, note VARCHAR)")


def replay_until_crash(harness: FaultHarness) -> None:
    with pytest.raises(adbc.Error):
        harness.sql("CALL duckling_queue_replay()")
    harness.server.wait_for_crash()
    harness.recover()


@ON_SQLITE
def test_crash_while_writing_dead_letters_keeps_each_once(
    harness: FaultHarness, orphans: WriteLog
) -> None:
    before, written = DEAD_LETTER_STEPS
    # No recovery in between: it would write the letters that the next crash needs.
    for step, passage in ((before, 1), (written, 1), (written, 2)):
        harness.crash_at(step, passage)
        harness.run_until_crash()
    harness.recover()
    wait_for_dead_letters(harness)
    harness.sql("CALL duckling_queue_replay()")
    harness.flush()
    assert harness.dead_letters() == []
    orphans.assert_matches(harness.count_ids("gone"))


@ON_SQLITE
def test_crash_during_a_replay_stores_rows_once(harness: FaultHarness, orphans: WriteLog) -> None:
    harness.recover()
    wait_for_dead_letters(harness)
    harness.crash_at(REPLAY_STEPS[0], passage=2)
    replay_until_crash(harness)
    harness.flush()
    harness.sql("CALL duckling_queue_replay()")
    harness.flush()
    assert harness.dead_letters() == []
    orphans.assert_matches(harness.count_ids("gone"))


@ON_SQLITE
def test_repeated_replay_does_not_duplicate_queued_rows(
    harness: FaultHarness, orphans: WriteLog
) -> None:
    harness.recover()
    wait_for_dead_letters(harness)
    harness.sql("CALL duckling_queue_pause()")
    harness.crash_at(REPLAY_STEPS[0], passage=2)
    replay_until_crash(harness)
    harness.sql("CALL duckling_queue_replay()", "CALL duckling_queue_resume()")
    harness.flush()
    assert harness.dead_letters() == []
    orphans.assert_matches(harness.count_ids("gone"))


@ON_SQLITE
def test_half_deleted_dead_letter_does_not_block_other_replays(
    harness: FaultHarness, orphans: WriteLog
) -> None:
    harness.recover()
    wait_for_dead_letters(harness)
    harness.crash_at(REPLAY_STEPS[1])
    replay_until_crash(harness)
    harness.sql("CALL duckling_queue_replay()")
    harness.flush()
    orphans.assert_matches(harness.count_ids("gone"))


# ---- random crashes ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", [1, 2])
def test_many_random_crashes_lose_and_duplicate_no_row(
    harness: FaultHarness, half: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("QUEUE_KILL_SEED") or random.randrange(1_000_000))
    chance = random.Random(seed)
    producers = [Producer(f"{uuid4()}") for _ in range(2)]
    crashes: Counter[str] = Counter()
    for _ in range(KILLS):
        methods: list[WriteMethod] = [
            *DEFAULT_WRITES,
            *producers,
            *([insert_bulk] if chance.random() < 0.2 else []),
        ]
        crashes[crash_randomly(harness, chance, methods)] += 1
    harness.recover()
    finish(harness, producers)
    acknowledged = sum(map(len, harness.log.acknowledged))
    with capsys.disabled():
        sys.stdout.write(
            f"\nseed {seed}: {KILLS} kills ({dict(crashes)}), {acknowledged:,} rows acknowledged, "
            f"{len(harness.log.unknown)} inserts unknown, "
            f"{sum(producer.repeated for producer in producers)} batches repeated\n"
        )
    harness.assert_no_loss()


def crash_randomly(
    harness: FaultHarness, chance: random.Random, methods: Sequence[WriteMethod]
) -> str:
    """Crashes once at a step, shortly after one, or at any time; returns which."""
    steps = [*APPEND_STEPS, *FLUSH_STEPS, *ADOPT_STEPS]
    steps += COMMIT_STEPS if harness.location.metabase_url else ()
    steps += BULK_STEPS if insert_bulk in methods else ()
    step = chance.choice(steps)
    milliseconds = chance.choice([0, 0, 0, chance.randrange(1, 30)])
    limit = STEP_SECONDS
    if chance.random() < 0.75:
        harness.crash_at(step, chance.choice([1, 1, 2, 3, 5]), milliseconds)
    else:
        harness.server.clear_fault()
        limit = chance.random() * ROUND_SECONDS
    if not harness.server.is_alive:
        harness.server.launch()
    before_it_accepts = chance.random() < 0.1
    if before_it_accepts or not harness.server.wait_until_ready_or_dead():
        crashed = crashes_within(harness, limit)
    else:
        with harness.load(*methods):
            crashed = crashes_within(harness, limit)
            harness.server.kill()
    harness.kill()
    return step.partition(":")[0] if crashed else "any time"


def crashes_within(harness: FaultHarness, seconds: float) -> bool:
    try:
        code = harness.server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    assert code == -signal.SIGKILL, harness.server.log_text[-4000:]
    return True
