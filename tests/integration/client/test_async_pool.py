"""Cancellation of tasks, at any moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import swanlake
from swanlake.errors import PoolTimeout
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS
from tests.server_process import ServerProcess
from tests.tcp_proxy import TcpProxy
from tests.waiting import eventually, eventually_async


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def assert_all_usable(pool: swanlake.AsyncPool) -> None:
    """Fails unless all ``max_size`` connections can be used at the same time."""
    await eventually_async(lambda: pool.stats().conn_in_use == 0)
    assert pool.stats().waiting == 0
    async with asyncio.timeout(60):
        sessions = await asyncio.gather(*(pool.connection() for _ in range(pool.config.max_size)))
        answers = await asyncio.gather(*(session.query("SELECT 3") for session in sessions))
        assert [answer.scalar() for answer in answers] == [3] * pool.config.max_size
        for session in sessions:
            await session.close()
    assert pool.stats().conn_in_use == 0


def run(body: Callable[[swanlake.AsyncPool], Awaitable[None]], url: str, **config: Any) -> None:
    """Runs a test in a new event loop, and fails if the loop reports an unhandled error."""
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with swanlake.AsyncPool(url, **{"cancel_grace": 2.0, **config}) as pool:
            await body(pool)
            await assert_all_usable(pool)

    asyncio.run(main())
    assert not errors


def test_cancel_while_queued(server: ServerProcess) -> None:
    async def body(pool: swanlake.AsyncPool) -> None:
        async with pool.connection():
            task = asyncio.create_task(pool.query("SELECT 1"))
            await eventually_async(lambda: pool.stats().waiting == 1)
            await cancel(task)
            assert pool.stats().waiting == 0

    run(body, server.url, max_size=1)


def test_cancel_after_assignment(server: ServerProcess) -> None:
    """The slot is assigned, but the task has not resumed yet."""

    async def body(pool: swanlake.AsyncPool) -> None:
        held = await pool.connection()
        task = asyncio.create_task(pool.query("SELECT 1"))
        await eventually_async(lambda: pool.stats().waiting == 1)
        assert held._slot is not None
        slot, held._slot = held._slot, None
        pool._runtime.release(slot)
        assert (pool.stats().waiting, pool.stats().conn_in_use) == (0, 1)
        await cancel(task)
        assert (pool.stats().conn_idle, pool.stats().conn_in_use) == (1, 0)

    run(body, server.url, max_size=1)


def test_cancel_during_check(server: ServerProcess, proxy: TcpProxy) -> None:
    async def body(pool: swanlake.AsyncPool) -> None:
        await pool.query("SELECT 1")
        proxy.black_hole()
        task = asyncio.create_task(pool.query("SELECT 1"))
        await eventually_async(lambda: pool.stats().waiting == 1)
        assert pool.stats().conn_idle == 0  # it is being checked
        await cancel(task)
        proxy.heal()
        await eventually_async(lambda: pool.stats().conn_idle == 1)
        assert pool.stats().conn_lost == 0

    run(body, proxy.url, max_size=1, healthcheck_after_idle=0.0)


@pytest.mark.parametrize("how", ["query", "session", "stream", "reading"])
def test_cancel_during_query(
    server: ServerProcess, client: swanlake.FlightSQLClient, how: str
) -> None:
    """The task leaves at once; the connection is reused only after the statement has ended."""

    async def use(pool: swanlake.AsyncPool, began: asyncio.Event) -> None:
        if how == "query":
            await pool.query(ENDLESS_QUERY)
        elif how == "session":
            async with pool.acquire_session() as session:
                await session.query(ENDLESS_QUERY)
        elif how == "stream":
            async with pool.stream(ENDLESS_QUERY):
                pass
        else:
            async with pool.stream(ENDLESS_ROWS) as stream:
                async for _ in stream:
                    began.set()

    async def body(pool: swanlake.AsyncPool) -> None:
        began = asyncio.Event()
        task = asyncio.create_task(use(pool, began))
        await eventually_async(lambda: client.status()["statements_running"] >= 1)
        if how == "reading":
            await began.wait()
        await cancel(task)
        await eventually_async(lambda: client.status()["statements_running"] == 0)
        await eventually_async(lambda: pool.stats().conn_in_use == 0)

    run(body, server.url, max_size=1)
    assert client.status()["statements_running"] == 0


def test_cancelled_calls_do_not_shrink_pool(server: ServerProcess) -> None:
    async def body(pool: swanlake.AsyncPool) -> None:
        for _ in range(10):
            tasks = [asyncio.create_task(pool.query("FROM range(100000)")) for _ in range(6)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(body, server.url, max_size=2)


def test_asyncio_timeout_cancels_the_statement(
    server: ServerProcess, client: swanlake.FlightSQLClient
) -> None:
    async def body(pool: swanlake.AsyncPool) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await pool.query(ENDLESS_QUERY)
        with pytest.raises(PoolTimeout):
            async with pool.connection(), pool.connection(timeout=0.1):
                pass

    run(body, server.url, max_size=1)
    eventually(lambda: client.status()["statements_running"] == 0)


def test_session_survives_cancelled_statement(
    server: ServerProcess, client: swanlake.FlightSQLClient
) -> None:
    async def body(pool: swanlake.AsyncPool) -> None:
        session = await pool.acquire_session()
        await session.execute("CREATE TEMP TABLE mine AS SELECT 1 AS i")
        task = asyncio.create_task(session.query(ENDLESS_QUERY))
        await eventually_async(lambda: client.status()["statements_running"] >= 1)
        await cancel(task)
        assert (await session.query("FROM mine")).scalar() == 1
        await session.close()

    run(body, server.url, max_size=1)


def test_event_loop_is_not_blocked(server: ServerProcess, client: swanlake.FlightSQLClient) -> None:
    async def body(pool: swanlake.AsyncPool) -> None:
        task = asyncio.create_task(pool.query(ENDLESS_QUERY))
        await eventually_async(lambda: client.status()["statements_running"] >= 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        await cancel(task)

    run(body, server.url, max_size=1)


def test_pool_can_be_used_from_another_loop(server: ServerProcess) -> None:
    pool = swanlake.AsyncPool(server.url, max_size=1)
    for _ in range(2):
        assert asyncio.run(pool.query("SELECT 1")).scalar() == 1
    assert pool.stats().conn_created == 1
    asyncio.run(pool.close())


@pytest.mark.parametrize("calls", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_storm(server: ServerProcess, client: swanlake.FlightSQLClient, calls: int) -> None:
    """Tasks cancelled at any moment leave the pool complete and the server idle."""
    chance = random.Random(calls)

    async def use(pool: swanlake.AsyncPool) -> None:
        kind = chance.randrange(5)
        if kind == 0:
            await pool.query("SELECT 1")
        elif kind == 1:
            await pool.query(ENDLESS_QUERY, timeout=1.0)
        elif kind == 2:
            async with pool.stream("FROM range(1_000_000)") as stream:
                async for _ in stream:
                    pass
        elif kind == 3:
            async with pool.acquire_session() as session, session.transaction():
                await session.query("SELECT 1")
        else:
            async with pool.connection() as connection:
                await connection.query("SELECT 1")

    async def cancelled(pool: swanlake.AsyncPool) -> None:
        task = asyncio.create_task(use(pool))
        await asyncio.wait([task], timeout=chance.expovariate(1 / 0.03))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()

    async def body(pool: swanlake.AsyncPool) -> None:
        left = iter(range(calls))

        async def caller() -> None:
            for _ in left:
                await cancelled(pool)

        await asyncio.gather(*(caller() for _ in range(16)))

    run(body, server.url, max_size=4, healthcheck_after_idle=0.01)
    eventually(lambda: client.status()["statements_running"] == 0)
