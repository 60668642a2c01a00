"""When a supervisor starts the server again."""

from __future__ import annotations

import signal

import pytest

from swanlake.server.supervisor import Ending, RestartPolicy

CONFIG_ERROR = 2
FIRST = RestartPolicy(frozenset({CONFIG_ERROR}))
CRASH = Ending(-signal.SIGSEGV, was_ready=True, seconds=5)
LATE_CRASH = Ending(-signal.SIGSEGV, was_ready=True, seconds=3600)
FAILED_START = Ending(1, was_ready=False, seconds=1)


def after(*endings: Ending) -> RestartPolicy | None:
    policy: RestartPolicy | None = FIRST
    for ending in endings:
        assert policy is not None
        policy = policy.after(ending)
    return policy


@pytest.mark.parametrize(
    "endings",
    [
        [Ending(0, was_ready=True, seconds=5)],
        [FAILED_START],
        [CRASH, Ending(0, was_ready=True, seconds=5)],
        [CRASH, Ending(CONFIG_ERROR, was_ready=False, seconds=1)],
    ],
)
def test_server_is_not_started_again(endings: list[Ending]) -> None:
    assert after(*endings) is None


@pytest.mark.parametrize(
    ("endings", "failures"),
    [
        ([CRASH], 1),
        ([CRASH, CRASH], 2),
        ([CRASH, FAILED_START, FAILED_START], 3),
        ([CRASH, CRASH, LATE_CRASH], 1),
        ([LATE_CRASH, CRASH], 2),
    ],
)
def test_delay_grows_with_the_failures_in_a_row(endings: list[Ending], failures: int) -> None:
    policy = after(*endings)
    assert policy is not None
    assert policy.failures == failures
    assert 0 < policy.delay < 40
