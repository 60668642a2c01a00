"""Ownership of queue directories, and when another server may adopt them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from swanlake.errors import CatalogUnreachable
from swanlake.lake.lifecycle.leases import FileLeases, try_lock_file
from swanlake.queue.storage import ownership
from swanlake.queue.storage.ownership import SILENCE_SECONDS, Ownership


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A server, reduced to its directory."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.claims = FileLeases(root / "claims")
        self.ownership = Ownership(root / "queue", self.claims, self.clock)
        self.alive = True

    @property
    def directory(self) -> Path:
        return self.ownership.directory

    def keep_a_segment(self) -> None:
        (self.directory / "one.arrows").write_text("rows")

    def finds(self) -> list[Path]:
        return list(self.ownership.abandoned_directories())

    def die(self) -> None:
        """What the kernel does when a process ends."""
        if self.alive:
            self.alive = False
            os.close(self.ownership._descriptor)
            self.claims.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Three servers with one directory."""
    started = [Server(tmp_path) for _ in range(3)]
    yield started
    for server in started:
        server.die()


def of_another_machine(root: Path) -> Path:
    """The directory of a server whose locks do not reach this machine."""
    directory = root / "queue" / str(UUID(int=1))
    directory.mkdir(parents=True)
    (directory / "owner.lock").write_text(json.dumps({"machine": "elsewhere"}))
    (directory / "one.arrows").write_text("rows")
    return directory


def test_directory_of_a_live_server_is_not_abandoned(servers: list[Server]) -> None:
    servers[0].keep_a_segment()
    servers[1].clock.now += 10 * SILENCE_SECONDS
    assert servers[1].finds() == []


def test_directory_of_a_dead_server_is_abandoned_at_once(servers: list[Server]) -> None:
    servers[0].keep_a_segment()
    servers[0].die()
    assert servers[1].finds() == [servers[0].directory]


def test_only_empty_directories_are_deleted(servers: list[Server]) -> None:
    servers[0].keep_a_segment()
    servers[0].die()
    servers[1].finds()
    assert servers[0].directory.exists()
    (servers[0].directory / "one.arrows").unlink()
    servers[1].finds()
    assert not servers[0].directory.exists()
    assert servers[1].finds() == []


def test_directory_is_adopted_by_one_server_only(servers: list[Server]) -> None:
    dead, one, other = servers
    dead.keep_a_segment()
    dead.die()
    search = one.ownership.abandoned_directories()
    assert next(search) == dead.directory
    assert other.finds() == []
    assert list(search) == []
    assert other.finds() == [dead.directory]


def test_failed_adoption_leaves_the_directory_to_others(servers: list[Server]) -> None:
    dead, one, other = servers
    dead.keep_a_segment()
    dead.die()
    search = one.ownership.abandoned_directories()
    next(search)
    search.close()  # type: ignore[attr-defined]
    assert other.finds() == [dead.directory]


def test_remote_server_is_gone_when_its_heartbeat_stops(
    servers: list[Server], tmp_path: Path
) -> None:
    directory = of_another_machine(tmp_path)
    server = servers[0]
    assert server.finds() == []
    server.clock.now += SILENCE_SECONDS - 0.1
    assert server.finds() == []
    server.clock.now += 0.1
    assert server.finds() == [directory]


def test_heartbeat_of_a_remote_server_resets_the_timeout(
    servers: list[Server], tmp_path: Path
) -> None:
    owner = of_another_machine(tmp_path) / "owner.lock"
    server = servers[0]
    for sign in range(5):
        os.utime(owner, ns=(sign, sign))
        assert server.finds() == []
        server.clock.now += SILENCE_SECONDS - 0.1
    assert server.finds() == []
    server.clock.now += SILENCE_SECONDS
    assert server.finds() != []


def test_remote_server_that_holds_its_lease_is_not_gone(
    servers: list[Server], tmp_path: Path
) -> None:
    directory = of_another_machine(tmp_path)
    servers[1].claims.acquire(f"queue:{directory.name}")
    servers[0].finds()
    servers[0].clock.now += 10 * SILENCE_SECONDS
    assert servers[0].finds() == []
    servers[1].claims.close()
    assert servers[0].finds() == [directory]


@pytest.mark.parametrize("content", ["", "no json", "[]", "null", '{"machine": null}', "\udcff"])
def test_unreadable_owner_counts_as_remote(
    servers: list[Server], tmp_path: Path, content: str
) -> None:
    directory = of_another_machine(tmp_path)
    (directory / "owner.lock").write_bytes(content.encode(errors="surrogateescape"))
    assert servers[0].finds() == []
    servers[0].clock.now += SILENCE_SECONDS
    assert servers[0].finds() == [directory]


def test_unrelated_files_in_the_root_are_ignored(servers: list[Server], tmp_path: Path) -> None:
    (tmp_path / "queue" / "dead-letters").mkdir()
    (tmp_path / "queue" / "flushed").mkdir()
    (tmp_path / "queue" / "paused").touch()
    (tmp_path / "queue" / str(UUID(int=2))).touch()
    assert servers[0].finds() == []


def test_starting_server_is_not_found(
    servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_its_lock: list[set[Path]] = []

    def locked(path: Path) -> int | None:
        monkeypatch.setattr(ownership, "try_lock_file", try_lock_file)
        found = (tmp_path / "queue").iterdir()
        before_its_lock.append({one for one in found if not one.name.startswith(".")})
        return try_lock_file(path)

    monkeypatch.setattr(ownership, "try_lock_file", locked)
    new = Server(tmp_path)
    assert before_its_lock == [{server.directory for server in servers}]
    assert new.directory.is_dir()
    assert servers[0].finds() == []
    new.die()


def test_stopped_server_leaves_its_directory_only_with_segments(
    servers: list[Server],
) -> None:
    empty, full, _ = servers
    full.keep_a_segment()
    for server in (empty, full):
        server.ownership.release()
        server.claims.close()
        server.alive = False
    assert not empty.directory.exists()
    assert servers[2].finds() == [full.directory]


def test_heartbeat_fails_when_another_server_has_the_lease(servers: list[Server]) -> None:
    server, other, _ = servers
    assert server.ownership.heartbeat()
    server.claims.close()
    other.claims.acquire(f"queue:{server.directory.name}")
    assert not server.ownership.heartbeat()


def test_heartbeat_succeeds_when_the_lake_is_unreachable(
    servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(name: str) -> bool:
        raise CatalogUnreachable("gone")

    monkeypatch.setattr(servers[0].claims, "acquire", unreachable)
    assert servers[0].ownership.heartbeat()
