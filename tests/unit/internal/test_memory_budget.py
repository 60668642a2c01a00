"""The budget of memory for callers: charged, refused, and given back in every way."""

from __future__ import annotations

import pytest

from swanlake._internal.memory import caller_bytes, machine_bytes, parse_size
from swanlake._internal.memory_budget import MemoryBudget
from swanlake.errors import InvalidRequest, ServerUnavailable


def test_charge_counts_for_its_caller_until_it_is_released() -> None:
    budget = MemoryBudget(1000)
    first, second = budget.account("alice").open(), budget.account("alice").open()
    assert first.add(100)
    assert second.add(200)
    assert budget.held() == {"alice": 300}
    second.release(50)
    assert (second.bytes, budget.held()) == (150, {"alice": 250})
    first.release()
    first.release()
    assert budget.held() == {"alice": 150}


def test_charge_beyond_the_share_changes_nothing() -> None:
    budget = MemoryBudget(1000)
    charge = budget.account("alice").open()
    assert not charge.add(501)
    assert (charge.bytes, budget.held()) == (0, {})
    assert charge.add(500)


def test_what_can_go_to_disk_leaves_room_for_what_cannot() -> None:
    account = MemoryBudget(1000).account("alice")
    results = account.open()
    while results.add(10):
        pass
    account.open().demand(300, "The parameters")


def test_greedy_caller_leaves_room_for_others() -> None:
    budget = MemoryBudget(1000)
    greedy = budget.account("mallory").open()
    while greedy.add(10):
        pass
    assert budget.account("alice").open().add(250)


def test_charge_is_released_at_the_end_of_a_block_and_when_it_is_dropped() -> None:
    budget = MemoryBudget(1000)
    with budget.account("alice").open() as charge:
        charge.add(10)
    assert budget.held() == {}
    charge = budget.account("alice").open()
    charge.add(10)
    del charge
    assert budget.held() == {}


def test_demand_that_can_never_be_met_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="801 bytes") as refused:
        MemoryBudget(1000).account("alice").open().demand(801, "The parameters")
    assert refused.value.identifier == "CALLER_MEMORY_EXHAUSTED"


def test_demand_that_must_wait_can_be_tried_again() -> None:
    account = MemoryBudget(1000).account("alice")
    other = account.open()
    other.demand(600, "The parameters")
    with pytest.raises(ServerUnavailable, match="300 bytes") as refused:
        account.open().demand(300, "The parameters")
    assert refused.value.identifier == "CALLER_MEMORY_EXHAUSTED"
    other.release()
    account.open().demand(300, "The parameters")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8_000_000_000),
        ("120MiB", 120 * 1024**2),
        ("1.5 GiB", 1_610_612_736),
        ("1000", 1000),
        ("", None),
        ("80%", None),
        ("1.2.3GB", None),
        ("none", None),
    ],
)
def test_sizes_are_read_as_duckdb_reads_them(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_budget_follows_the_limit_of_the_engine() -> None:
    assert caller_bytes(123, "8GB") == 123
    assert caller_bytes(0, "8GB") == 1_000_000_000
    assert caller_bytes(0, "100MB") == 64 * 1024**2
    assert caller_bytes(0, "") == max(machine_bytes() // 10, 64 * 1024**2)
