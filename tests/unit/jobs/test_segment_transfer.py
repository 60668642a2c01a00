"""Transfer grants: the files a token gives access to, and until when."""

from __future__ import annotations

import threading

import pytest

from swanlake.errors import NotAuthenticated, NotFound, PipelineUnavailable
from swanlake.jobs.segment_transfer import grants as grants_module
from swanlake.jobs.segment_transfer.grants import GrantedFile, TransferGrant, TransferGrants

FILE = GrantedFile("/queue/a.arrows", 100)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def grants(clock: Clock) -> TransferGrants:
    grants = TransferGrants(60.0, clock)
    grants.set_address("grpc://here:1", b"PEM")
    return grants


def test_grant_covers_only_its_own_files(grants: TransferGrants) -> None:
    with grants.issue({"a": FILE}) as grant, grants.issue({"b": FILE}) as other:
        assert (grant.url, grant.certificates) == ("grpc://here:1", b"PEM")
        assert grants.find(grant.token, "a") == FILE
        with pytest.raises(NotFound, match="not for this segment"):
            grants.find(grant.token, "b")
        with pytest.raises(NotFound):
            grants.find(other.token, "a")


def test_grant_ends_with_its_job(grants: TransferGrants) -> None:
    def fail(issued: list[TransferGrant]) -> None:
        with grants.issue({"a": FILE}) as grant:
            issued.append(grant)
            raise ZeroDivisionError

    ended: list[TransferGrant] = []
    with pytest.raises(ZeroDivisionError):
        fail(ended)
    with grants.issue({"a": FILE}) as grant:
        ended.append(grant)
    for grant in ended:
        assert not grants.is_valid(grant.token)
        with pytest.raises(NotAuthenticated, match="over"):
            grants.find(grant.token, "a")


def test_grant_expires(grants: TransferGrants, clock: Clock) -> None:
    with grants.issue({"a": FILE}) as grant:
        clock.now = 59.9
        assert grants.is_valid(grant.token)
        clock.now = 60.0
        assert not grants.is_valid(grant.token)
        with pytest.raises(NotAuthenticated):
            grants.find(grant.token, "a")


@pytest.mark.parametrize("guess", ["", "x", "ü"])
def test_unknown_token_is_refused(grants: TransferGrants, guess: str) -> None:
    with grants.issue({"a": FILE}):
        assert not grants.is_valid(guess)
        with pytest.raises(NotAuthenticated):
            grants.find(guess, "a")


def test_repr_hides_secrets(grants: TransferGrants) -> None:
    with grants.issue({"a": FILE}) as grant:
        assert grant.token not in repr(grant) + repr(grants) + repr(vars(grants))
        assert "PEM" not in repr(grant)


def test_job_waits_until_the_server_listens(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    grants = TransferGrants(60.0, clock)
    urls: list[str] = []

    def job() -> None:
        with grants.issue({}) as grant:
            urls.append(grant.url)

    waiting = threading.Thread(target=job)
    waiting.start()
    grants.set_address("grpc://here:2")
    waiting.join(120)
    assert urls == ["grpc://here:2"]
    monkeypatch.setattr(grants_module, "_LISTEN_SECONDS", 0.0)
    with pytest.raises(PipelineUnavailable, match="does not listen yet"):
        with TransferGrants(60.0, clock).issue({}):
            pass
