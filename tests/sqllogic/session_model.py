"""Sessions that write at once leave what some serial order of their statements would leave."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from random import Random

from tests.sqllogic.runner import Pair
from tests.sqllogic.sides import Outcome, ServerSession

_ACCOUNTS = 4
_SESSIONS = 4
_INITIAL = 100


@dataclass
class Expected:
    """What the successful statements of a session add up to."""

    #: What was added to each account.
    added: Counter[int] = field(default_factory=Counter)
    #: The rows that were inserted and not deleted.
    remaining: set[int] = field(default_factory=set)


def check_concurrent_sessions(pair: Pair, *, seed: int, statements: int) -> None:
    """Runs that many statements in each of several sessions and compares with the model."""
    for sql in (
        "CREATE TABLE accounts (id INTEGER, balance BIGINT)",
        f"INSERT INTO accounts SELECT range, {_INITIAL} FROM range({_ACCOUNTS})",
        "CREATE TABLE log (id INTEGER)",
    ):
        assert pair.both(sql)[0].error is None

    def work(number: int) -> Expected:
        with closing(ServerSession(pair.server.url, f"{number} of {pair.catalog}")) as session:
            assert session.run(f"USE {pair.catalog}").error is None
            return _work(session, Random(f"{seed} {number}"), number, statements)

    with ThreadPoolExecutor(_SESSIONS) as pool:
        found = list(pool.map(work, range(_SESSIONS)))

    balances = Counter(dict.fromkeys(range(_ACCOUNTS), _INITIAL))
    for each in found:
        balances.update(each.added)
    ours, _ = pair.both("SELECT id, balance FROM accounts ORDER BY id")
    assert (seed, list(ours.rows)) == (seed, [f"{id_}\t{balances[id_]}" for id_ in balances])
    remaining = sorted(id_ for each in found for id_ in each.remaining)
    ours, _ = pair.both("SELECT id FROM log ORDER BY id")
    assert (seed, list(ours.rows)) == (seed, list(map(str, remaining)))


def _work(session: ServerSession, random: Random, number: int, statements: int) -> Expected:
    """Random statements of one session, and what those that succeeded add up to."""
    expected = Expected()
    for step in range(statements):
        account, other = random.sample(range(_ACCOUNTS), 2)
        amount = random.randint(1, 9)
        match random.choice(["increment", "transfer", "insert", "delete"]):
            case "increment":
                if _succeeded(_add(session, account, amount)):
                    expected.added[account] += amount
            case "transfer":
                if _transfer(session, account, other, amount):
                    expected.added.update({account: -amount, other: amount})
            case "insert":
                id_ = number + _SESSIONS * step
                if _succeeded(session.run(f"INSERT INTO log VALUES ({id_})")):
                    expected.remaining.add(id_)
            case "delete":
                # Only rows of its own: the model then needs no order between sessions.
                for id_ in sorted(expected.remaining)[:1]:
                    outcome = session.run(f"DELETE FROM log WHERE id = {id_}")
                    if _succeeded(outcome):
                        assert outcome.count == 1
                        expected.remaining.remove(id_)
    return expected


def _transfer(session: ServerSession, account: int, other: int, amount: int) -> bool:
    """Moves an amount in a transaction; False if it conflicted and did nothing."""
    assert session.run("BEGIN").error is None
    for outcome in (
        _add(session, account, -amount),
        _add(session, other, amount),
        session.run("COMMIT"),
    ):
        if not _succeeded(outcome):
            session.run("ROLLBACK")
            return False
    return True


def _add(session: ServerSession, account: int, amount: int) -> Outcome:
    return session.run(f"UPDATE accounts SET balance = balance + {amount} WHERE id = {account}")


def _succeeded(outcome: Outcome) -> bool:
    """True if it succeeded; only a conflict may make it fail."""
    if outcome.error is None:
        return True
    assert outcome.error in ("COMMIT_CONFLICT", "TRANSACTION_ABORTED"), outcome
    return False
