"""Failed logins are limited per address, in bounded memory."""

from __future__ import annotations

import pytest

from swanlake.access.login_limiter import LoginLimiter, limited_address


def limiter(clock: list[float], max_addresses: int = 100) -> LoginLimiter:
    return LoginLimiter(
        lambda: clock[0], burst=3, seconds_per_failure=10.0, max_addresses=max_addresses
    )


def test_address_is_blocked_after_a_burst_until_failures_decay() -> None:
    clock = [0.0]
    logins = limiter(clock)
    assert [logins.record_failure("a") for _ in range(5)] == [True, True, True, False, False]
    assert logins.is_blocked("a")
    assert not logins.is_blocked("b")
    clock[0] = 9.9
    assert logins.is_blocked("a")
    clock[0] = 10.0
    assert not logins.is_blocked("a")
    assert logins.record_failure("a")
    assert logins.is_blocked("a")
    clock[0] = 1000.0
    assert [logins.record_failure("a") for _ in range(4)] == [True, True, True, False]


def test_oldest_addresses_are_forgotten() -> None:
    logins = limiter([0.0], max_addresses=2)
    for address in ("a", "a", "a", "b", "c"):
        logins.record_failure(address)
    assert not logins.is_blocked("a")
    assert len(logins._failures) == 2


def test_address_with_a_new_failure_is_not_the_oldest() -> None:
    logins = limiter([0.0], max_addresses=2)
    for address in ("a", "b", "a", "a", "c"):
        logins.record_failure(address)
    assert logins.is_blocked("a")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"),
        ("", ""),
        ("unix", "unix"),
    ],
)
def test_address_of_a_network_counts_as_one(host: str, address: str) -> None:
    assert limited_address(host) == address
