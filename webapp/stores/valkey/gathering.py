"""What many callers ask for at once, or while one batch is under way, goes out as one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")


class Gathering(Generic[Job]):
    """One batch under way; jobs that come meanwhile are the next.

    `carry_out` returns an answer for each job of a batch, an exception where it failed.
    """

    def __init__(
        self, carry_out: Callable[[Sequence[Job]], Awaitable[Sequence[object]]], *, at_once: int
    ) -> None:
        self._carry_out = carry_out
        self._at_once = at_once
        self._waiting: list[tuple[Job, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, job: Job) -> "asyncio.Future[Any]":
        """Queue it; nobody need wait for the answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return future

    async def finish(self) -> None:
        """Wait until everything that was put is answered."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[: self._at_once]
                del self._waiting[: self._at_once]
                try:
                    answers = await self._carry_out([job for job, _ in batch])
                except BaseException as error:
                    # Nobody waits for ever, whatever it is.
                    _answer(batch, [error] * len(batch))
                    if not isinstance(error, Exception):
                        raise
                else:
                    _answer(batch, answers)
        finally:
            self._task = None


def _answer(
    batch: Sequence[tuple[object, "asyncio.Future[Any]"]], answers: Sequence[object]
) -> None:
    for (_, future), answer in zip(batch, answers, strict=True):
        if future.done():  # its caller was cancelled
            continue
        if isinstance(answer, asyncio.CancelledError):
            future.cancel()
        elif isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
