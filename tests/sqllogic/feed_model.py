"""The history of a table, its change feed included, is that of stock DuckDB also after compaction.

Statements outside of transactions are native where they can be, those inside run in DuckLake's
extension, so one history has snapshots of both.
"""

from __future__ import annotations

from contextlib import closing
from itertools import count
from random import Random

from tests.sqllogic.runner import Difference, Pair
from tests.sqllogic.script import Record
from tests.sqllogic.sides import ServerSession

#: The numbers of rows in an INSERT: some are inlined if anything is, some are not.
_ROWS = (1, 3, 15)
#: Rows are chosen by the remainder of their key.
_DIVISOR = 4


def check_change_feed(pair: Pair, *, seed: int, statements: int) -> None:
    """Compares all snapshots and ranges of a random history, then once more after a compaction."""
    random, keys = Random(seed), count()
    history = Record(f"history of the seed {seed}", "t", since=1, succeeds=True)
    pair.compare("CREATE TABLE t (k INTEGER, v VARCHAR)")
    for _ in range(2):  # something to merge
        pair.compare(_insert(random, keys))
    done: list[str] = []
    try:
        for _ in range(statements):
            # A transaction may change a row several times: the feed shows each of its states.
            steps = [_change(random, keys) for _ in range(random.choice((1, 1, 2, 3)))]
            transaction = ["BEGIN", *steps, "COMMIT"] if len(steps) > 1 else steps
            for sql in transaction:
                done.append(sql)
                pair.compare(sql)
        pair.run(history)
        with closing(ServerSession(pair.server.url, f"compaction of {pair.catalog}")) as session:
            compacted = session.run(f"CALL swanlake_compact('{pair.catalog}.main.t')")
        assert compacted.error is None, compacted
        assert compacted.rows, "nothing was compacted"
        pair.run(history)
    except (Difference, AssertionError) as difference:
        raise Difference(f"{difference}\n\nseed {seed}:\n" + ";\n".join(done)) from None


def _change(random: Random, keys: count[int]) -> str:
    chosen = f"k % {_DIVISOR} = {random.randrange(_DIVISOR)}"
    kind = random.choice(("insert", "update", "delete"))
    if kind == "insert":
        return _insert(random, keys)
    if kind == "update":
        return f"UPDATE t SET v = v || '!' WHERE {chosen}"
    return f"DELETE FROM t WHERE {chosen} AND k % 3 = {random.randrange(3)}"


def _insert(random: Random, keys: count[int]) -> str:
    rows = (f"({next(keys)}, 'new')" for _ in range(random.choice(_ROWS)))
    return f"INSERT INTO t VALUES {', '.join(rows)}"
