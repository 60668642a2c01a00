"""Changes modules in small ways, one at a time, and shows the changes that no test notices.

    python scripts/mutants.py                                 all modules
    python scripts/mutants.py queue/coordinator.py            only these modules
    python scripts/mutants.py --list queue/coordinator.py     the mutants, without running them

Each mutant runs in a fork that imports the changed module from memory; no file is changed. A mutant
is killed if a test fails or takes too long. Mutants that behave like the original are listed in
``mutants_equivalent.toml`` with the reason. The exit status is 1 if fewer than 95 % of the others
are killed in any module, or if an entry of that file is wrong.

mutmut and cosmic-ray serve less well: the first changes only functions and excludes mutants by
comments in the source, the second starts Python anew for every mutant.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

# Imported before the forks, so that each fork imports only what may depend on the mutant.
import adbc_driver_flightsql.dbapi  # noqa: F401
import duckdb  # noqa: F401
import hypothesis.stateful  # noqa: F401
import psycopg  # noqa: F401
import pyarrow.dataset
import pyarrow.flight
import pyarrow.parquet  # noqa: F401
import pytest
import sqlalchemy.dialects  # noqa: F401
from hypothesis import HealthCheck, Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir
from mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "swanlake"
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
REQUIRED_RATIO = 0.95
#: The pure modules, and the unit tests of each.
TESTS = {
    "access/grant_text.py": ["access/test_grant_text.py"],
    "access/identity.py": ["access/test_identity.py"],
    "access/login_limiter.py": ["access/test_login_limiter.py"],
    "access/login_tokens.py": ["access/test_secrets.py"],
    "access/policy.py": ["access/test_policy.py"],
    "client/pool/core.py": ["client/test_pool_core.py"],
    "client/writer/batching.py": ["client/test_batching.py"],
    "lake/commit/commit_queue.py": ["lake/test_commit_queue.py"],
    "lake/commit/conflicts.py": ["lake/test_conflicts.py"],
    "lake/commit/snapshot_history.py": ["lake/test_snapshot_history.py"],
    "maintenance/compaction/plan.py": ["maintenance/test_compaction_plan.py"],
    "maintenance/triggers.py": ["maintenance/test_triggers.py"],
    "queue/batch_ids.py": ["queue/test_batch_ids.py"],
    "queue/coordinator.py": ["queue/test_coordinator.py"],
    "queue/ingest/deduplication.py": ["queue/test_batch_ids.py"],
    "sessions/execution/router.py": ["sessions/test_router.py"],
    "sql/expressions.py": ["sql/test_expressions.py"],
    "sql/last_commit.py": ["sql/test_last_commit.py"],
    "sql/reads.py": ["sql/test_reads.py"],
    "sql/references.py": ["sql/test_references.py"],
}
#: A run may take this many times the time without a mutant, and at least so many seconds.
TIMEOUT_FACTOR, MIN_TIMEOUT = 5.0, 10.0


@dataclass(frozen=True)
class Outcome:
    """A mutant, and whether its tests noticed it."""

    mutation: Mutation
    killed: bool
    timed_out: bool = False


@dataclass(frozen=True)
class Report:
    """The outcomes of a module, held against the list of equivalent mutants."""

    module: str
    outcomes: Sequence[Outcome]
    #: Scope and text of each, with the reason.
    equivalent: dict[tuple[str, str], str]

    @property
    def survivors(self) -> list[Mutation]:
        alive = [outcome.mutation for outcome in self.outcomes if not outcome.killed]
        return [one for one in alive if (one.scope, one.text) not in self.equivalent]

    @property
    def killed(self) -> int:
        return sum(outcome.killed for outcome in self.outcomes)

    @property
    def ratio(self) -> float:
        counted = self.killed + len(self.survivors)
        return self.killed / counted if counted else 1.0

    @property
    def wrong_entries(self) -> list[tuple[str, str]]:
        """Entries of mutants that are killed or do not exist."""
        alive = {(one.mutation.scope, one.mutation.text) for one in self.outcomes if not one.killed}
        return [key for key in self.equivalent if key not in alive]


class _MutantFinder(MetaPathFinder, Loader):
    """Imports one module from its changed code."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self._name = name
        self._path = path
        self._code = code

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class _MutantRun:
    """A pytest plugin: the same examples for each mutant, no shrinking, an end at a failure."""

    def pytest_collection(self) -> None:
        settings.register_profile(
            "mutants",
            max_examples=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            phases=[Phase.explicit, Phase.generate],
            derandomize=True,
            database=None,
        )
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            sys.stdout.flush()
            os._exit(1)  # a mutant may block what the end of the session waits for


def run_tests(module: str, code: CodeType | None) -> int:
    """Runs the tests of a module; only in a process of its own."""
    if code is not None:
        name = "swanlake." + module.removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, _MutantFinder(name, PACKAGE / module, code))
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    files = [str(ROOT / "tests" / "unit" / test) for test in TESTS[module]]
    quiet = [
        "-x",
        "-q",
        "--no-header",
        "--assert=plain",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    return int(pytest.main([*files, *quiet, f"--rootdir={ROOT}"], plugins=[_MutantRun()]))


class Fork:
    """The tests of a module under one mutant, in a forked process."""

    def __init__(self, module: str, mutation: Mutation | None, output: Path, limit: float) -> None:
        self.mutation = mutation
        self.started = time.monotonic()
        self._deadline = self.started + limit
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._run(module, output)

    def _run(self, module: str, output: Path) -> None:
        status = 3
        try:
            os.setsid()
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for stream in (1, 2):
                os.dup2(descriptor, stream)
            code = None if self.mutation is None else self.mutation.code
            status = run_tests(module, code)
        except BaseException:  # noqa: BLE001 - the fork ends here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)  # threads that a mutant blocks are not waited for

    def poll(self) -> int | None:
        """The exit status; None while it runs, and -1 if it took too long."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() < self._deadline:
            return None
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return -1


def find_mutations(module: str) -> list[Mutation]:
    path = PACKAGE / module
    return list(mutations(path.read_text(), str(path)))


def run_module(module: str, jobs: int, scratch: Path) -> Iterator[Outcome]:
    """Runs all mutants of a module; yields each outcome as it ends."""
    output = scratch / "original.txt"
    original = Fork(module, None, output, 600.0)
    while (status := original.poll()) is None:
        time.sleep(0.01)
    if status != 0:
        sys.exit(f"{module}: its tests fail without a mutant:\n{output.read_text()}")
    limit = max(MIN_TIMEOUT, TIMEOUT_FACTOR * (time.monotonic() - original.started))
    waiting = find_mutations(module)[::-1]
    running: dict[Fork, Path] = {}
    number = 0
    while waiting or running:
        while waiting and len(running) < jobs:
            number += 1
            path = scratch / f"{number}.txt"
            running[Fork(module, waiting.pop(), path, limit)] = path
        for fork in list(running):
            status = fork.poll()
            if status is None:
                continue
            path = running.pop(fork)
            assert fork.mutation is not None
            path.unlink(missing_ok=True)
            yield Outcome(fork.mutation, killed=status != 0, timed_out=status == -1)
        time.sleep(0.005)


def read_equivalent() -> dict[str, dict[tuple[str, str], str]]:
    """By module, the mutants that no test can notice."""
    listed: dict[str, dict[tuple[str, str], str]] = {}
    for entry in tomllib.loads(EQUIVALENT.read_text()).get("mutant", []):
        of_module = listed.setdefault(entry["module"], {})
        of_module[entry["scope"], entry["mutation"]] = entry["reason"]
    return listed


def show(report: Report, seconds: float) -> None:
    timeouts = sum(outcome.timed_out for outcome in report.outcomes)
    print(
        f"{report.module}: {report.ratio:.1%} killed ({report.killed} of {len(report.outcomes)}, "
        f"{timeouts} by the time limit, {len(report.equivalent)} equivalent, {seconds:.0f} s)"
    )
    for mutation in sorted(report.survivors, key=lambda one: one.line):
        print(f"  survives: line {mutation.line}, {mutation.scope}: {mutation.text}")
    for scope, text in report.wrong_entries:
        print(f"  not a survivor, remove it from {EQUIVALENT.name}: {scope}: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", choices=[[], *TESTS], metavar="module")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="show the mutants without running them")
    arguments = parser.parse_args()
    modules = arguments.modules or list(TESTS)
    if arguments.list:
        for module in modules:
            for mutation in find_mutations(module):
                print(f"{module}:{mutation.line}: {mutation.scope}: {mutation.text}")
        return
    equivalent = read_equivalent()
    reports = []
    with tempfile.TemporaryDirectory() as scratch:
        set_hypothesis_home_dir(Path(scratch) / "hypothesis")
        for module in modules:
            started = time.monotonic()
            outcomes = list(run_module(module, arguments.jobs, Path(scratch)))
            reports.append(Report(module, outcomes, equivalent.get(module, {})))
            show(reports[-1], time.monotonic() - started)
    if any(report.ratio < REQUIRED_RATIO or report.wrong_entries for report in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
