"""Work in a task of its own, which continues if the caller that awaits its result is cancelled.

`asyncio.shield` does the same, but its caller resumes a turn of the event loop later: after the end
of the task, a callback sets the caller's future. Here the task sets the future itself.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Uncancelled(Generic[T]):
    """Work in progress: its `task`, and the `result`, which one caller awaits."""

    __slots__ = ("_work", "result", "task")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = loop.create_future()
        self.task = loop.create_task(self._run())
        self.task.add_done_callback(self._end)

    async def _run(self) -> T:
        value = await self._work
        if not self.result.done():  # the caller was not cancelled
            self.result.set_result(value)
        return value

    def _end(self, task: asyncio.Task[T]) -> None:
        self._work.close()  # the work never began, because the task was cancelled at once
        error = None if task.cancelled() else task.exception()  # asyncio then logs no error
        if self.result.done():
            return
        if error is None:  # no result is set, so the task was cancelled
            self.result.cancel()
        else:
            self.result.set_exception(error)
