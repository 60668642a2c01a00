"""Units on a real Spark: results, and recovery when a process dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import duckdb
import psutil
import pytest

from swanlake.config import Settings
from swanlake.errors import PipelineFailed, PipelineUnavailable
from swanlake.jobs.runner import Unit
from swanlake.jobs.spark.runner import SparkRunner
from swanlake.jobs.transforms.execution import load
from swanlake.lake.model.layout import Column, Table
from tests.integration.jobs.sample_units import (
    Endless,
    Odd,
    Refused,
    Square,
    Suicidal,
    Surroundings,
)
from tests.integration.lake.compaction_harness import new_case
from tests.integration.lake.fixtures import Engines, LakeHarness
from tests.waiting import eventually

_ROOT = str(Path(__file__).parents[3])
_START_SECONDS = 300
_SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    """One Spark for the module; a test that kills it waits until it is back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")]))
        for variable in ("SWANLAKE_METABASE_URL", "SWANLAKE_SPARK_CONF_a", "PGPASSWORD"):
            patch.setenv(variable, _SECRET)
        runner = SparkRunner(
            Settings(
                home=tmp_path_factory.mktemp("spark") / "home",
                transforms="tests.integration.jobs.sample_transforms",
                spark_memory="700m",
                spark_worker_memory="300MiB",
                spark_conf=f"spark.executorEnv.SWAN_SONG=heard\nspark.hadoop.key={_SECRET}\n"
                "spark.ui.enabled=true\nspark.ui.port=0",
            )
        )
        yield runner
        runner.close()


def below(runner: SparkRunner) -> list[psutil.Process]:
    """All processes that the runner has started."""
    driver = runner._driver
    assert driver is not None
    process = psutil.Process(driver.pid)
    return [process, *process.children(recursive=True)]


def the_jvm(runner: SparkRunner) -> psutil.Process:
    [jvm] = [one for one in below(runner) if one.name() == "java"]
    return jvm


def when_ready(runner: SparkRunner) -> None:
    eventually(lambda: runner.status().state == "ready", _START_SECONDS)


def test_status_has_the_transforms_and_the_address_of_sparks_pages(runner: SparkRunner) -> None:
    when_ready(runner)
    status = runner.status()
    assert (status.kind, status.location) == ("spark", "local[*]")
    assert status.transforms == {
        key: transform.into
        for key, transform in load("tests.integration.jobs.sample_transforms").items()
    }
    assert status.ui_url is not None
    with urlopen(f"{status.ui_url}/api/v1/applications", timeout=_START_SECONDS) as response:
        assert response.status == 200


def test_processes_of_spark_show_no_secret(runner: SparkRunner) -> None:
    when_ready(runner)
    for process in below(runner):
        with suppress(psutil.NoSuchProcess):
            assert _SECRET not in str((process.cmdline(), process.environ()))


def test_results_are_in_unit_order(runner: SparkRunner, tmp_path: Path) -> None:
    units = [Square(number, tmp_path) for number in range(7)]
    assert runner.run(units, "square numbers") == [number**2 for number in range(7)]
    assert len(list(tmp_path.iterdir())) == 7
    assert runner.run([], "do nothing") == []


def test_memory_settings_and_properties_take_effect(runner: SparkRunner) -> None:
    assert runner.run([Surroundings("SWAN_SONG")], "look around") == [("heard", "300.0 MiB")]
    assert "-Xmx700m" in the_jvm(runner).cmdline()


def test_failed_unit_undoes_the_others(runner: SparkRunner, tmp_path: Path) -> None:
    units: list[Unit[int]] = [Square(1, tmp_path), Refused(), Square(2, tmp_path)]
    with pytest.raises(duckdb.ConversionException, match="swan"):
        runner.run(units, "fail")
    assert list(tmp_path.iterdir()) == []


def test_compaction_on_spark(runner: SparkRunner, tmp_path: Path) -> None:
    engines = Engines()
    harness = LakeHarness(tmp_path / "catalogs", tmp_path, engines)
    try:
        insert = "INSERT INTO {t} SELECT range, 'v' || range FROM range"
        case = new_case(harness, "CREATE TABLE {t} (i INTEGER, s VARCHAR)", inlined=10)
        case(*(f"{insert}({first}, {first + 20})" for first in (0, 20, 40)))
        case("DELETE FROM {t} WHERE i BETWEEN 45 AND 50", f"{insert}(60, 63)")
        with case.unchanged():
            report = case.compact(runner=runner)
        assert (report.files_merged, report.files_rewritten, report.inlined_rows_flushed) == (
            2,
            1,
            3,
        )
    finally:
        harness.close()
        engines.close()


def test_unpicklable_error_is_replaced(runner: SparkRunner) -> None:
    with pytest.raises(PipelineFailed, match="Unspeakable: 1 and 2"):
        runner.run([Odd()], "fail oddly")


def test_jobs_run_concurrently(runner: SparkRunner, tmp_path: Path) -> None:
    marks = [tmp_path / name for name in ("one", "other")]
    threads = [
        threading.Thread(target=runner.run, args=([Endless(mark)], f"wait for {mark.name}"))
        for mark in marks
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: all(mark.exists() for mark in marks))
    for mark in marks:
        mark.unlink()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_killed_worker_fails_only_its_job(runner: SparkRunner, tmp_path: Path) -> None:
    unit = Suicidal(tmp_path / "mark")
    with pytest.raises(PipelineFailed, match="failed to die in vain: ") as failed:
        runner.run([unit], "die in vain")
    assert "\n" not in failed.value.message
    assert runner.status().state == "ready"
    assert runner.run([unit], "live") > [0]


def test_job_is_cancelled_at_its_timeout(
    runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_timeout", 2.0)
    told = r"Spark failed to wait: it did not end in 2 s \(SWANLAKE_SPARK_JOB_TIMEOUT_SECONDS\)"
    with pytest.raises(PipelineFailed, match=told):
        runner.run([Endless(tmp_path / "mark")], "wait")
    table = Table(1, "main", "redirected", f"{tmp_path}/", (Column(1, "id", "int64"),))
    plan = runner.find_transform("swanlake", table)
    assert plan is not None
    with pytest.raises(PipelineFailed, match=told):
        runner.transform(plan, [Endless(tmp_path / "rows")], {plan.into[0]: table}, "wait")
    monkeypatch.undo()
    assert runner.run([Square(3, tmp_path)], "go on") == [9]


def test_killed_jvm_is_replaced(runner: SparkRunner, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    failures: list[Exception] = []

    def wait() -> None:
        try:
            runner.run([Endless(mark)], "wait")
        except PipelineUnavailable as lost:
            failures.append(lost)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(mark.exists)
    the_jvm(runner).kill()
    thread.join(60)
    assert len(failures) == 1
    assert "was lost during a job" in str(failures[0])
    when_ready(runner)
    assert runner.run([Square(4, tmp_path)], "go on") == [16]


def test_killed_driver_is_replaced_and_its_jvm_ends(runner: SparkRunner) -> None:
    family = below(runner)
    os.kill(family[0].pid, signal.SIGKILL)
    eventually(lambda: not any(one.is_running() for one in family[1:]))
    when_ready(runner)


def test_closed_runner_leaves_no_process(runner: SparkRunner) -> None:
    """The last test of the module's Spark."""
    when_ready(runner)
    family = below(runner)
    assert "java" in [one.name() for one in family]
    runner.close()
    eventually(lambda: not any(one.is_running() for one in family))
    with pytest.raises(PipelineUnavailable):
        runner.run([Refused()], "run after the end")


_SLOW_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17"' >&2; exit; fi
touch "$(dirname "$0")/begun"
exec cat > /dev/null
"""


def test_runner_can_be_closed_while_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_SLOW_JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    before = set(psutil.Process().children())
    runner = SparkRunner(Settings(home=tmp_path / "home"))
    eventually((java.parent / "begun").exists, _START_SECONDS)
    [driver] = set(psutil.Process().children()) - before
    family = [driver, *driver.children(recursive=True)]
    runner.close()
    assert not driver.is_running()
    eventually(lambda: not any(one.is_running() for one in family))


def test_transform_import_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swanlake.jobs.spark.runner._READY_SECONDS", 0.0)
    runner = SparkRunner(Settings(home=tmp_path / "home", transforms="no.such.module"))
    try:
        eventually(
            lambda: "no.such.module cannot be imported" in runner.status().state, _START_SECONDS
        )
        with pytest.raises(PipelineUnavailable, match=r"No module named 'no'.*logs/spark.log"):
            runner.run([Refused()], "run")
    finally:
        runner.close()
