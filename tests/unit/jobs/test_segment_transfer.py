"""Who may fetch which file, and for how long."""

from __future__ import annotations

import threading

import pytest

from swanlake.errors import NotAuthenticated, NotFound, PipelineUnavailable
from swanlake.pipeline import loans
from swanlake.pipeline.loans import Lender, LentFile, Loan

FILE = LentFile("/queue/a.arrows", 100)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lender(clock: Clock) -> Lender:
    lender = Lender(60.0, clock)
    lender.listen("grpc://here:1", b"PEM")
    return lender


def test_a_loan_is_good_for_its_files_and_no_others(lender: Lender) -> None:
    with lender.lend({"a": FILE}) as loan, lender.lend({"b": FILE}) as other:
        assert (loan.url, loan.certificates) == ("grpc://here:1", b"PEM")
        assert lender.find(loan.token, "a") == FILE
        with pytest.raises(NotFound, match="not for this segment"):
            lender.find(loan.token, "b")
        with pytest.raises(NotFound):
            lender.find(other.token, "a")


def test_a_loan_ends_with_its_job(lender: Lender) -> None:
    def fail(loans: list[Loan]) -> None:
        with lender.lend({"a": FILE}) as loan:
            loans.append(loan)
            raise ZeroDivisionError

    ended: list[Loan] = []
    with pytest.raises(ZeroDivisionError):
        fail(ended)
    with lender.lend({"a": FILE}) as loan:
        ended.append(loan)
    for one in ended:
        assert not lender.knows(one.token)
        with pytest.raises(NotAuthenticated, match="over"):
            lender.find(one.token, "a")


def test_a_loan_ends_in_time(lender: Lender, clock: Clock) -> None:
    with lender.lend({"a": FILE}) as loan:
        clock.now = 59.9
        assert lender.knows(loan.token)
        clock.now = 60.0
        assert not lender.knows(loan.token)
        with pytest.raises(NotAuthenticated):
            lender.find(loan.token, "a")


@pytest.mark.parametrize("guess", ["", "x", "ü"])
def test_what_is_no_token_is_not_known(lender: Lender, guess: str) -> None:
    with lender.lend({"a": FILE}):
        assert not lender.knows(guess)
        with pytest.raises(NotAuthenticated):
            lender.find(guess, "a")


def test_no_secret_is_shown(lender: Lender) -> None:
    with lender.lend({"a": FILE}) as loan:
        assert loan.token not in repr(loan) + repr(lender) + repr(vars(lender))
        assert "PEM" not in repr(loan)


def test_a_job_waits_for_the_server_to_listen(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = Lender(60.0, clock)
    urls: list[str] = []

    def job() -> None:
        with lender.lend({}) as loan:
            urls.append(loan.url)

    waiting = threading.Thread(target=job)
    waiting.start()
    lender.listen("grpc://here:2")
    waiting.join(20)
    assert urls == ["grpc://here:2"]
    monkeypatch.setattr(loans, "_LISTEN_SECONDS", 0.0)
    with pytest.raises(PipelineUnavailable, match="does not listen yet"):
        with Lender(60.0, clock).lend({}):
            pass
