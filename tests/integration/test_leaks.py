"""Sessions leak no threads, descriptors, memory or files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.waiting import eventually

MEGABYTE = 1024 * 1024


def use_and_close(url: str, connect: Callable[..., Any]) -> None:
    connection = connect(url)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE t AS SELECT x FROM range(1000) r(x)")
        cursor.execute("SELECT count(*) FROM t WHERE x > ?", (10,))
        cursor.fetchall()
        cursor.execute("SELECT x FROM range(500000) r(x)")  # left unread
    connection.close()


def test_200_sessions_leak_nothing(
    start_server: Callable[..., ServerProcess], connect: Callable[..., Any]
) -> None:
    server = start_server()
    process = psutil.Process(server.process.pid)
    observer = FlightSql(server.url)
    for _ in range(40):  # warms up caches, pools and the allocator
        use_and_close(server.url, connect)
    eventually(lambda: observer.status()["sessions"]["active"] == 0)
    threads, descriptors, memory = (
        process.num_threads(),
        process.num_fds(),
        process.memory_info().rss,
    )
    for _ in range(200):
        use_and_close(server.url, connect)
    eventually(lambda: observer.status()["sessions"]["active"] == 0)
    eventually(lambda: process.num_fds() <= descriptors + 4)
    eventually(lambda: process.num_threads() <= threads + 4)
    assert process.memory_info().rss - memory < 30 * MEGABYTE
    assert observer.status()["results_waiting"] == 0
    assert list(Path(server.home / "tmp").iterdir()) == []
    observer.close()
