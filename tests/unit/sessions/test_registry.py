"""The registry keeps one session per key, also when opening one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swanlake.access.identity import Identity, Role
from swanlake.config import Settings
from swanlake.errors import SessionLimitReached, SessionLost
from swanlake.sessions import registry as registry_module
from swanlake.sessions.activity import Activity, AuditLog
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.registry import SessionRegistry
from tests.waiting import eventually

KEY = SessionKey("alice", "s1")
ADMIN = Identity("alice", Role.ADMIN)
PEER = SessionKey("alice", "127.0.0.1:5000", from_peer=True)


class FakeSession:
    """A session without an engine; opening the first one waits, and fails on request."""

    made = 0
    first_may_go_on = threading.Event()
    first_fails = False

    def __init__(self, key: SessionKey, services: Any, identity: Identity) -> None:
        type(self).made += 1
        if type(self).made == 1:
            self.first_may_go_on.wait(120)
            if self.first_fails:
                raise RuntimeError("no engine")
        self.key = key
        self.identity = identity
        self.created = 0.0
        self.running = False
        self.idle_seconds = 0.0
        self.closed = ""
        self.address = ""

    def touch(self) -> None:
        self.idle_seconds = 0.0

    def close(self, reason: str) -> None:
        self.closed = reason


@pytest.fixture
def peers() -> dict[str, str]:
    return {PEER.id: "inode-1"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, peers: dict[str, str]) -> Iterator[SessionRegistry]:
    monkeypatch.setattr(registry_module, "Session", FakeSession)
    FakeSession.made, FakeSession.first_fails = 0, False
    FakeSession.first_may_go_on.set()
    services: Any = SimpleNamespace(activity=Activity(), audit=AuditLog(Path(), "off", 0))
    registry = SessionRegistry(Settings(session_sweep_seconds=3600), services, lambda: dict(peers))
    yield registry
    registry.stop()


def test_waiter_for_failed_session_gets_a_registered_one(
    registry: SessionRegistry,
) -> None:
    FakeSession.first_fails = True
    FakeSession.first_may_go_on.clear()
    found: list[Any] = []

    def get() -> None:
        try:
            found.append(registry.get(KEY, ADMIN))
        except RuntimeError as error:
            found.append(error)

    threads = [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: FakeSession.made == 1)
    FakeSession.first_may_go_on.set()
    for thread in threads:
        thread.join()
    registered: Any = registry.find(KEY)
    assert {session for session in found if isinstance(session, FakeSession)} == {registered}


def test_idle_session_is_closed_and_removed(registry: SessionRegistry) -> None:
    session: Any = registry.get(KEY, ADMIN)
    session.idle_seconds = 10_000.0
    assert registry.sweep() == 1
    assert session.closed == "idle"
    with pytest.raises(SessionLost):
        registry.get(KEY, ADMIN, resume=True)


def test_running_session_is_not_idle(registry: SessionRegistry) -> None:
    session: Any = registry.get(KEY, ADMIN)
    session.idle_seconds, session.running = 10_000.0, True
    assert registry.sweep() == 0


def test_session_is_closed_with_its_connection(
    registry: SessionRegistry, peers: dict[str, str]
) -> None:
    session: Any = registry.get(PEER, ADMIN)
    assert registry.sweep() == 0
    peers.clear()
    assert registry.sweep() == 1
    assert session.closed == "disconnected"


def test_reused_address_gets_a_new_session(
    registry: SessionRegistry, peers: dict[str, str]
) -> None:
    first: Any = registry.get(PEER, ADMIN)
    again: Any = registry.get(PEER, ADMIN)
    assert again is first
    first.idle_seconds = 60.0
    peers[PEER.id] = "inode-2"
    assert registry.get(PEER, ADMIN) is not first
    assert first.closed == "disconnected"


def test_metrics_count_closed_sessions_by_reason(registry: SessionRegistry) -> None:
    registry.get(KEY, ADMIN)
    registry.get(PEER, ADMIN)
    registry.close(KEY, "closed by client")
    metrics = registry.metrics()
    assert (metrics.active, metrics.created, dict(metrics.closed)) == (
        1,
        2,
        {"closed by client": 1},
    )


def test_session_ends_when_the_role_of_its_caller_changes(registry: SessionRegistry) -> None:
    first: Any = registry.get(KEY, ADMIN)
    again: Any = registry.get(KEY, ADMIN)
    assert again is first
    demoted = Identity("alice", Role.READER)
    assert registry.get(KEY, demoted) is not first
    assert first.closed == "the caller's role or grants changed"
    with pytest.raises(SessionLost):
        registry.get(KEY, ADMIN, resume=True)


def open_sessions(registry: SessionRegistry, identity: Identity, number: int) -> None:
    for one in range(number):
        registry.get(SessionKey(identity.name, str(one)), identity)


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
def test_caller_cannot_take_all_sessions(registry: SessionRegistry, role: Role) -> None:
    registry._settings = Settings(max_sessions=9, max_sessions_per_identity=3, reserved_sessions=2)
    with pytest.raises(SessionLimitReached, match="bob has 3 sessions, and may have no more"):
        open_sessions(registry, Identity("bob", role), 4)
    open_sessions(registry, Identity("eve", role), 3)
    open_sessions(registry, Identity("joe", role), 1)
    with pytest.raises(SessionLimitReached, match="All sessions are in use"):
        open_sessions(registry, Identity("zoe", role), 1)
    with pytest.raises(SessionLimitReached, match="All 9 sessions are in use"):
        open_sessions(registry, ADMIN, 3)
