"""kill -9 at every step that rows take from a client to the lake: none is lost, none is doubled."""

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

from tests.faults.doomed_server import (
    ADOPT_STEPS,
    APPEND_STEPS,
    BULK_STEPS,
    COMMIT_STEPS,
    FLUSH_STEPS,
    LETTER_STEPS,
    REPLAY_STEPS,
)
from tests.faults.lab import ORDINARY, Book, Lab, Producer, Way, bulk, lab_on, stock_cursor
from tests.flight import eventually

#: A walk of many deaths; a death and a start take two seconds, or ten on a busy machine.
pytestmark = pytest.mark.timeout(300)
KILLS = 55
ROUND_SECONDS = 3.0
#: How long a server may take to reach the step where it is to die; then it is killed as it is.
STEP_SECONDS = 10.0
SEGMENTS = "CALL duckling_queue_segments()"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lake for all deaths of a kind: what one of them spoils, the next ones show."""
    home = tmp_path_factory.mktemp("lab") / "home"
    with lab_on(request.param, partial(request.getfixturevalue, "postgres"), home) as lab:
        yield lab


@pytest.fixture(autouse=True)
def alive(lab: Lab) -> None:
    """A test that failed leaves no dead server to the next one."""
    lab.server.take_order_back()
    if not lab.server.is_alive:
        lab.server.start()


def fill(lab: Lab, table: str = "t", book: Book | None = None) -> None:
    """Acknowledged rows in three segments that wait until the queue is resumed."""
    book = book or lab.book
    lab.sql("CALL duckling_queue_pause()")
    for _ in range(3):
        ids = book.take(30)
        rows = f"SELECT id, 'a row' FROM range({ids.start}, {ids.stop}) AS r(id)"
        lab.sql(f"INSERT INTO duckling_queue.{table} {rows}")
        book.acknowledged.append(ids)
        eventually(lambda: "open" not in [row[4] for row in lab.sql(SEGMENTS)])


def resume_after_restart(lab: Lab) -> None:
    (lab.root / "paused").unlink(missing_ok=True)


def finish(lab: Lab, producers: Iterable[Producer]) -> None:
    """They send once more what was not acknowledged."""
    for producer in producers:
        with stock_cursor(lab.server.url) as cursor:
            producer(cursor, lab.book)


ON_SQLITE = pytest.mark.parametrize("lab", ["sqlite"], indirect=True)


# ---- each step once ----------------------------------------------------------------------------


@ON_SQLITE
def test_a_server_that_dies_at_a_step_of_an_append_keeps_what_it_acknowledged(lab: Lab) -> None:
    lab.walk(APPEND_STEPS)
    lab.assert_true()


@ON_SQLITE
def test_a_server_that_dies_during_a_large_upload_keeps_all_of_it_or_nothing(lab: Lab) -> None:
    lab.walk(BULK_STEPS, bulk)
    lab.assert_true()


def test_a_server_that_dies_at_a_step_of_a_flush_brings_every_row_once(lab: Lab) -> None:
    fill(lab)
    resume_after_restart(lab)
    lab.kill()
    lab.walk(FLUSH_STEPS)
    lab.assert_true()


@pytest.mark.parametrize("lab", ["postgres"], indirect=True)
def test_a_server_that_dies_inside_the_commit_of_a_flush_brings_every_row_once(lab: Lab) -> None:
    lab.walk(COMMIT_STEPS)
    lab.assert_true()


def test_a_server_that_dies_while_it_takes_over_segments_leaves_them_to_the_next(lab: Lab) -> None:
    fill(lab)
    resume_after_restart(lab)
    lab.kill()
    lab.walk(ADOPT_STEPS)
    lab.assert_true()


def test_a_batch_with_a_name_that_is_sent_again_after_a_death_is_taken_once(lab: Lab) -> None:
    producers = [Producer(f"{uuid4()}") for _ in range(3)]
    lab.walk(
        ["append: written", "append: before the acknowledgement", "flush: committed"], *producers
    )
    finish(lab, producers)
    assert sum(producer.repeated for producer in producers) > 0
    lab.assert_true()


# ---- dead letters ------------------------------------------------------------------------------


@pytest.fixture
def orphans(lab: Lab) -> Iterator[Book]:
    """Rows in three segments whose table is gone; the server is dead."""
    book = Book()
    put_away_letters(lab)
    lab.sql("CREATE TABLE swanlake.main.gone (id BIGINT, note VARCHAR)")
    fill(lab, "gone", book)
    lab.sql("DROP TABLE swanlake.main.gone")
    resume_after_restart(lab)
    lab.kill()
    yield book
    resume_after_restart(lab)
    lab.recover()
    lab.flush()
    lab.sql("DROP TABLE IF EXISTS swanlake.main.gone")
    put_away_letters(lab)


def put_away_letters(lab: Lab) -> None:
    """Also those of other tests: what a death cut off in the middle becomes a letter."""
    shutil.rmtree(lab.root / "dead-letters", ignore_errors=True)


def put_aside(lab: Lab) -> None:
    """Returns when the segments without a table are dead letters, and it has a table again."""
    lab.flush()
    assert [letter["rows"] for letter in lab.letters()] == [30, 30, 30]
    lab.sql("CREATE TABLE swanlake.main.gone (id BIGINT, note VARCHAR)")


def replay_until_death(lab: Lab) -> None:
    with pytest.raises(adbc.Error):
        lab.sql("CALL duckling_queue_replay()")
    lab.server.must_die()
    lab.recover()


@ON_SQLITE
def test_a_server_that_dies_while_it_puts_segments_aside_keeps_each_of_them_once(
    lab: Lab, orphans: Book
) -> None:
    lab.walk([*LETTER_STEPS])
    lab.kill()
    lab.die_at(LETTER_STEPS[1], passage=2)
    lab.run_until_death()
    lab.recover()
    put_aside(lab)
    lab.sql("CALL duckling_queue_replay()")
    lab.flush()
    assert lab.letters() == []
    orphans.assert_true(lab.found("gone"))


@ON_SQLITE
def test_a_server_that_dies_during_a_replay_has_the_rows_once_in_the_end(
    lab: Lab, orphans: Book
) -> None:
    lab.recover()
    put_aside(lab)
    lab.die_at(REPLAY_STEPS[0], passage=2)
    replay_until_death(lab)
    lab.flush()
    lab.sql("CALL duckling_queue_replay()")
    lab.flush()
    assert lab.letters() == []
    orphans.assert_true(lab.found("gone"))


@ON_SQLITE
def test_a_replay_that_is_repeated_while_its_rows_wait_in_the_queue_does_not_double_them(
    lab: Lab, orphans: Book
) -> None:
    lab.recover()
    put_aside(lab)
    lab.sql("CALL duckling_queue_pause()")
    lab.die_at(REPLAY_STEPS[0], passage=2)
    replay_until_death(lab)
    lab.sql("CALL duckling_queue_replay()", "CALL duckling_queue_resume()")
    lab.flush()
    assert lab.letters() == []
    orphans.assert_true(lab.found("gone"))


@ON_SQLITE
def test_a_letter_that_was_half_removed_by_a_death_does_not_stand_in_the_way_of_others(
    lab: Lab, orphans: Book
) -> None:
    lab.recover()
    put_aside(lab)
    lab.die_at(REPLAY_STEPS[1])
    replay_until_death(lab)
    lab.sql("CALL duckling_queue_replay()")
    lab.flush()
    orphans.assert_true(lab.found("gone"))


# ---- campaigns ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", [1, 2])
def test_no_row_is_lost_or_doubled_by_many_kills_at_random_moments(
    lab: Lab, half: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("QUEUE_KILL_SEED") or random.randrange(1_000_000))
    chance = random.Random(seed)
    producers = [Producer(f"{uuid4()}") for _ in range(2)]
    deaths: Counter[str] = Counter()
    for _ in range(KILLS):
        ways: list[Way] = [*ORDINARY, *producers, *([bulk] if chance.random() < 0.2 else [])]
        deaths[die_somewhere(lab, chance, ways)] += 1
    lab.recover()
    finish(lab, producers)
    acknowledged = sum(map(len, lab.book.acknowledged))
    with capsys.disabled():
        sys.stdout.write(
            f"\nseed {seed}: {KILLS} kills ({dict(deaths)}), {acknowledged:,} rows acknowledged, "
            f"{len(lab.book.unknown)} inserts unknown, "
            f"{sum(producer.repeated for producer in producers)} batches repeated\n"
        )
    lab.assert_true()


def die_somewhere(lab: Lab, chance: random.Random, ways: Sequence[Way]) -> str:
    """One death at a step, shortly after one, or at any time; says which."""
    steps = [*APPEND_STEPS, *FLUSH_STEPS, *ADOPT_STEPS]
    steps += COMMIT_STEPS if lab.location.metabase_url else ()
    steps += BULK_STEPS if bulk in ways else ()
    step = chance.choice(steps)
    milliseconds = chance.choice([0, 0, 0, chance.randrange(1, 30)])
    patience = STEP_SECONDS
    if chance.random() < 0.75:
        lab.die_at(step, chance.choice([1, 1, 2, 3, 5]), milliseconds)
    else:
        lab.server.take_order_back()
        patience = chance.random() * ROUND_SECONDS
    if not lab.server.is_alive:
        lab.server.launch()
    before_it_accepts = chance.random() < 0.1
    if before_it_accepts or not lab.server.accepts_or_dies():
        died = dies_within(lab, patience)
    else:
        with lab.load(*ways):
            died = dies_within(lab, patience)
            lab.server.kill()
    lab.kill()
    return step.partition(":")[0] if died else "any time"


def dies_within(lab: Lab, seconds: float) -> bool:
    try:
        code = lab.server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    assert code == -signal.SIGKILL, lab.server.log_text[-4000:]
    return True
