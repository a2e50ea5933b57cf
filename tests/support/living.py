"""A context manager that runs in its own task, so that a fixture can open and close it.

The MCP library requires that the same task opens and closes a context. The two halves of a fixture
can run in two tasks.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    def __init__(self, opening: AbstractAsyncContextManager[T]) -> None:
        self._up: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._has_ended = asyncio.Event()
        self._task = asyncio.create_task(self._live(opening))

    async def _live(self, opening: AbstractAsyncContextManager[T]) -> None:
        try:
            async with opening as value:
                self._up.set_result(value)
                await self._has_ended.wait()
        except BaseException as error:
            if self._up.done():
                raise
            self._up.set_exception(error)

    async def started(self) -> T:
        return await self._up

    async def ended(self) -> None:
        self._has_ended.set()
        await self._task


@asynccontextmanager
async def living(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    one = Living(opening)
    try:
        yield await one.started()
    finally:
        await one.ended()
