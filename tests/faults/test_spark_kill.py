"""The queue's kill campaign with Spark as the runner: its server, JVM, driver and workers die.

A Spark takes many seconds to start, so all of this is slow.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import adbc_driver_manager
import psutil
import pytest

from tests.faults.doomed_server import FLUSH_STEPS
from tests.faults.lab import Lab, lab_on
from tests.flight import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KILLS = 12
#: How long the load runs before a part of Spark is killed.
ROUND_SECONDS = 2.0
_START_SECONDS = 180


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lake for all deaths, on a server as it is by default."""
    home = tmp_path_factory.mktemp("lab") / "home"
    with lab_on(
        request.param,
        partial(request.getfixturevalue, "postgres"),
        home,
        SWANLAKE_PIPELINE="spark",
    ) as lab:
        yield lab


def parts(lab: Lab) -> dict[str, list[psutil.Process]]:
    """What runs below the server, by what it is."""
    found: dict[str, list[psutil.Process]] = {"jvm": [], "driver": [], "worker": []}
    for process in psutil.Process(lab.server.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.name() == "java":
                found["jvm"].append(process)
            elif "swanlake.pipeline.driver" in command:
                found["driver"].append(process)
            elif "pyspark.daemon" in command:
                found["worker"].append(process)
    return found


def flushes(lab: Lab) -> int:
    """How many snapshots there are: each flush makes one."""
    [(number,)] = lab.sql("SELECT count(*) FROM swanlake.snapshots()")
    return int(number)


def test_a_server_that_dies_at_a_step_of_a_flush_brings_every_row_once(lab: Lab) -> None:
    lab.walk(FLUSH_STEPS)
    lab.assert_true()


def test_parts_of_spark_that_die_at_any_time_lose_and_double_nothing(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("KILL_SEED", random.randrange(1_000_000)))
    chance = random.Random(seed)
    deaths: Counter[str] = Counter()
    for _ in range(KILLS):
        deaths[kill_something(lab, chance)] += 1
    acknowledged = sum(map(len, lab.book.acknowledged))
    with capsys.disabled():
        sys.stdout.write(f"\nseed {seed}: {dict(deaths)}, {acknowledged:,} rows acknowledged\n")
    eventually(lambda: flushed(lab), _START_SECONDS)  # the last death may have met the first try
    lab.assert_true()
    assert lab.letters() == []


def flushed(lab: Lab) -> bool:
    """Whether a flush gets through; where Spark has just died it says so, and keeps the rows."""
    try:
        lab.sql("CALL duckling_queue_flush()")
    except adbc_driver_manager.Error:
        return False
    return True


def kill_something(lab: Lab, chance: random.Random) -> str:
    """One death under load, of a Spark that has flushed; says what died."""
    victim = chance.choice(["server", "jvm", "driver", "worker", "worker"])
    with lab.load():
        before = flushes(lab)
        eventually(lambda: flushes(lab) > before, _START_SECONDS)
        time.sleep(chance.random() * ROUND_SECONDS)  # any moment will do
        if victim == "server":
            lab.kill()
        else:
            for process in parts(lab)[victim]:
                with suppress(psutil.Error):
                    process.kill()
    if victim == "server":
        lab.recover()
    return victim
