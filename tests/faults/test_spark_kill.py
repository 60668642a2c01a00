"""The queue's crash tests with Spark as the runner: its server, JVM, driver and workers are killed.

Spark takes many seconds to start, so all of these tests are slow.
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

from tests.faults.crashing_server import FLUSH_STEPS
from tests.faults.harness import FaultHarness, open_harness
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KILLS = 12
#: How long clients write before a process of Spark is killed.
ROUND_SECONDS = 2.0
_START_SECONDS = 180


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FaultHarness]:
    """One lake for all tests, with a server of default settings."""
    home = tmp_path_factory.mktemp("harness") / "home"
    with open_harness(
        request.param,
        partial(request.getfixturevalue, "postgres"),
        home,
        SWANLAKE_PIPELINE="spark",
    ) as harness:
        yield harness


def spark_processes(harness: FaultHarness) -> dict[str, list[psutil.Process]]:
    """The server's child processes by role."""
    processes: dict[str, list[psutil.Process]] = {"jvm": [], "driver": [], "worker": []}
    for process in psutil.Process(harness.server.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.name() == "java":
                processes["jvm"].append(process)
            elif "swanlake.jobs.spark.driver" in command:
                processes["driver"].append(process)
            elif "pyspark.daemon" in command:
                processes["worker"].append(process)
    return processes


def flushes(harness: FaultHarness) -> int:
    """The number of snapshots, which is that of flushes plus a constant."""
    [(number,)] = harness.sql("SELECT count(*) FROM swanlake.snapshots()")
    return int(number)


def test_rows_are_flushed_once_when_the_server_crashes_during_a_flush(
    harness: FaultHarness,
) -> None:
    harness.crash_at_each(FLUSH_STEPS)
    harness.assert_no_loss()


def test_rows_are_flushed_once_when_spark_processes_are_killed(
    harness: FaultHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("KILL_SEED", random.randrange(1_000_000)))
    chance = random.Random(seed)
    kills: Counter[str] = Counter()
    for _ in range(KILLS):
        kills[kill_under_load(harness, chance)] += 1
    acknowledged = sum(map(len, harness.log.acknowledged))
    with capsys.disabled():
        sys.stdout.write(f"\nseed {seed}: {dict(kills)}, {acknowledged:,} rows acknowledged\n")
    # The first flush may still see the last kill.
    eventually(lambda: flush_succeeds(harness), _START_SECONDS)
    harness.assert_no_loss()
    assert harness.dead_letters() == []


def flush_succeeds(harness: FaultHarness) -> bool:
    """True if a flush succeeds; it fails, and keeps the rows, when Spark has just been killed."""
    try:
        harness.sql("CALL duckling_queue_flush()")
    except adbc_driver_manager.Error:
        return False
    return True


def kill_under_load(harness: FaultHarness, chance: random.Random) -> str:
    """Kills one process while clients write, after a flush; returns its role."""
    victim = chance.choice(["server", "jvm", "driver", "worker", "worker"])
    with harness.load():
        before = flushes(harness)
        eventually(lambda: flushes(harness) > before, _START_SECONDS)
        time.sleep(chance.random() * ROUND_SECONDS)  # at a random moment
        if victim == "server":
            harness.kill()
        else:
            for process in spark_processes(harness)[victim]:
                with suppress(psutil.Error):
                    process.kill()
    if victim == "server":
        harness.recover()
    return victim
