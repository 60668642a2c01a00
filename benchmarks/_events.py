"""Sample rows of service events, for benchmarks of flushes and compactions."""

from __future__ import annotations

MEGABYTE = 1_000_000
COLUMNS = {
    "id": "BIGINT",
    "user_id": "BIGINT",
    "session": "VARCHAR",
    "at": "TIMESTAMP",
    "kind": "VARCHAR",
    "page": "VARCHAR",
    "amount": "DOUBLE",
    "country": "VARCHAR",
    "ok": "BOOLEAN",
    "note": "VARCHAR",
}
_QUERY = """
SELECT range AS id, CAST(hash(range) % 100000 AS BIGINT) AS user_id,
  CAST(hash(range // 20) AS VARCHAR) AS session,
  TIMESTAMP '2026-01-01' + INTERVAL (range) MILLISECOND AS at,
  ['view', 'click', 'buy', 'leave'][1 + CAST(hash(range + 1) % 4 AS INTEGER)] AS kind,
  '/shop/item/' || hash(range + 2) % 5000 AS page, (hash(range + 3) % 100000) / 100 AS amount,
  ['NO', 'SE', 'FI', 'DK', 'DE'][1 + CAST(hash(range + 4) % 5 AS INTEGER)] AS country,
  range % 7 > 0 AS ok,
  CASE WHEN range % 10 = 0 THEN 'a note of about forty characters, no more' END AS note
FROM range({first}, {last})
"""


def events(first: int, last: int) -> str:
    """A query for the events with these ids."""
    return _QUERY.format(first=first, last=last)
