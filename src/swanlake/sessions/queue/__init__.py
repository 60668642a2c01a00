"""How a session writes to the Duckling Queue and reads from it.

``enqueue`` executes INSERTs into the queue, ``tables`` shows queued rows to other statements, and
``passthrough`` takes Arrow rows that need no conversion past DuckDB.
"""

__all__: list[str] = []
