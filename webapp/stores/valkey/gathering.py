"""An answer for each of the jobs that go out together, on the store's lane for them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from webapp.stores.lanes import Lanes, first

Job = TypeVar("Job")


class Gathering(Generic[Job]):
    """One batch under way on each lane; jobs that come meanwhile are the next.

    `carry_out` returns an answer for each job of a batch, an exception where it failed. `lane_of`
    names the server that a job is for: one that is silent holds up no job for another.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Job]], Awaitable[Sequence[object]]],
        *,
        at_once: int,
        lane_of: Callable[[Job], str] = lambda _: "",
    ) -> None:
        self._carry_out = carry_out
        self._at_once = at_once
        self._lane_of = lane_of
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, Lanes[tuple[Job, asyncio.Future[Any]]]] = {}

    def put(self, job: Job) -> "asyncio.Future[Any]":
        """Queue it; nobody need wait for the answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        name = self._lane_of(job)
        if (lane := self._lanes.get(name)) is None:
            lane = self._lanes[name] = Lanes(self._run, fit=first(self._at_once))
        lane.put((job, future))
        return future

    async def finish(self) -> None:
        """Wait until everything that was put is answered."""
        for lane in tuple(self._lanes.values()):
            await lane.finish()

    async def _run(self, batch: Sequence[tuple[Job, "asyncio.Future[Any]"]]) -> None:
        try:
            answers = await self._carry_out([job for job, _ in batch])
        except Exception as error:  # noqa: BLE001 - the edge of a task: whoever waits is told
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # its caller was cancelled
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
