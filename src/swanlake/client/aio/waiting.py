"""A result that is awaited while it arrives, and what is acquired with ``async with``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from swanlake.client.async_statements import answer_to
from swanlake.client.keeper import in_background
from swanlake.client.stream import ResultStream
from swanlake.errors import SwanLakeError

T = TypeVar("T")


class AsyncResultStream:
    """The batches of a result, in bounded memory: ``async for batch in stream``."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    @property
    def schema(self) -> Any:
        """The columns, as an Arrow schema."""
        return self._stream.schema

    @property
    def query_id(self) -> str:
        return self._stream.query_id

    @property
    def affected_rows(self) -> int:
        """Rows that the statement changed; -1 if it does not say."""
        return self._stream.affected_rows

    async def read(self) -> Any | None:
        """The next batch, or None after the last."""
        if self._stream.at_end():
            return None
        statement = self._stream.begin_read()
        try:
            batch = await answer_to(statement)
        except SwanLakeError:
            self._stream.end()
            raise
        except BaseException:
            in_background("swanlake-close-stream", self._stream.close)
            raise
        if batch is None:
            self._stream.end()
        return batch

    async def read_all(self) -> Any:
        """The rest, as one table."""
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    async def close(self) -> None:
        """Lets go of what was not read; can be called again."""
        if not self._stream.is_over:
            await apart("swanlake-close-stream", self._stream.close)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (batch := await self.read()) is not None:
            yield batch

    async def __aenter__(self) -> AsyncResultStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class _Closable(Protocol):
    async def close(self) -> None: ...


A = TypeVar("A", bound=_Closable)


class Acquiring(Generic[A]):
    """What is not there yet: ``async with`` it, or ``await`` it and close it yourself."""

    def __init__(self, acquire: Callable[[], Awaitable[A]]) -> None:
        self._acquire = acquire
        self._acquired: A | None = None

    def __await__(self) -> Generator[Any, None, A]:
        return self._acquire().__await__()

    async def __aenter__(self) -> A:
        self._acquired = await self._acquire()
        return self._acquired

    async def __aexit__(self, *exception: object) -> None:
        if self._acquired is not None:
            await self._acquired.close()


async def apart(name: str, work: Callable[[], T]) -> T:
    """Awaits what blocks. It comes to its end even if the task is cancelled before it began."""
    return await asyncio.shield(asyncio.wrap_future(in_background(name, work)))
