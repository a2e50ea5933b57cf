"""Batches of jobs for a Valkey server, with an answer for each job."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from webapp.stores.lanes import Lanes, first

Job = TypeVar("Job")


class Gathering(Generic[Job]):
    """A queue for each lane (server). While one batch is in progress, new jobs form the next.

    `carry_out` returns an answer for each job of a batch, or an exception for a job that failed.
    `lane_of` names the server of a job, so that a silent server does not delay jobs for other
    servers.
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
        """Queue the job. The caller may ignore the returned future."""
        future: asyncio.Future[Any] = self._loop.create_future()
        name = self._lane_of(job)
        if (lane := self._lanes.get(name)) is None:
            lane = self._lanes[name] = Lanes(self._run, fit=first(self._at_once))
        lane.put((job, future))
        return future

    async def finish(self) -> None:
        """Wait until every queued job is answered."""
        for lane in tuple(self._lanes.values()):
            await lane.finish()

    async def _run(self, batch: Sequence[tuple[Job, "asyncio.Future[Any]"]]) -> None:
        try:
            answers = await self._carry_out([job for job, _ in batch])
        except Exception as error:  # noqa: BLE001 - end of the task: every caller gets the error
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # its caller was cancelled
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
