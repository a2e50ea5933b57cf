"""Batches of items from many callers, run on a limited number of lanes.

Risks: each caller costs its own round trip. Items that arrive while every lane is busy therefore
wait, and go out together as soon as a lane is free. If a lane is free, no item waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
Job = TypeVar("Job")
Queued: TypeAlias = tuple[Job, "asyncio.Future[Any]"]


class Lanes(Generic[Item]):
    """A runner of batches, at most `lanes` at a time."""

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Coroutine[None, None, None]],
        *,
        lanes: int = 1,
        fit: Callable[[Sequence[Item]], tuple[list[Item], list[Item]]],
    ) -> None:
        """`fit` splits the waiting items into a batch, which is not empty, and the rest.

        `run` must not raise: it reports errors to the callers that wait for the items.
        """
        self._run = run
        self._lanes = lanes
        self._fit = fit
        self._waiting: list[Item] = []
        self._running: set[asyncio.Task[None]] = set()
        self._is_held = False
        self._is_called = False
        self._loop = asyncio.get_running_loop()

    def put(self, item: Item) -> None:
        """Send the item with the next batch."""
        self._waiting.append(item)
        if not (self._is_called or self._is_held) and len(self._running) < self._lanes:
            self._is_called = True
            self._loop.call_soon(self._start)

    @property
    def is_idle(self) -> bool:
        return not (self._is_held or self._waiting or self._running)

    def hold(self) -> None:
        """Start no batch until `release`, because the caller processes an item itself."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        if self._waiting:
            self._start()

    async def finish(self) -> None:
        """Wait until every item is done. Callers must not add items while this method waits."""
        self._start()
        while self._running:
            await asyncio.wait(tuple(self._running))

    def _start(self) -> None:
        self._is_called = False
        while self._waiting and not self._is_held and len(self._running) < self._lanes:
            batch, self._waiting = self._fit(self._waiting)
            task = self._loop.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()


def first(most: int) -> Callable[[Sequence[Item]], tuple[list[Item], list[Item]]]:
    """Return a function for `fit` that makes batches of at most `most` items, the oldest first."""
    return lambda items: (list(items[:most]), list(items[most:]))


class Gathering(Generic[Job]):
    """A queue for each place (server). While one batch is in progress, new jobs form the next.

    `carry_out` returns an answer for each job of a batch, or an exception for a job that failed.
    `place_of` names the server of a job, so that a silent server does not delay jobs for other
    servers.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[Job]], Awaitable[Sequence[object]]],
        *,
        fit: Callable[[Sequence[Queued[Job]]], tuple[list[Queued[Job]], list[Queued[Job]]]],
        lanes: int = 1,
        place_of: Callable[[Job], str] = lambda _: "",
    ) -> None:
        self._carry_out = carry_out
        self._fit = fit
        self._lanes = lanes
        self._place_of = place_of
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, Lanes[Queued[Job]]] = {}

    def put(self, job: Job) -> "asyncio.Future[Any]":
        """Queue the job. The caller may ignore the returned future."""
        future: asyncio.Future[Any] = self._loop.create_future()
        place = self._place_of(job)
        if (queue := self._queues.get(place)) is None:
            queue = self._queues[place] = Lanes(self._run, lanes=self._lanes, fit=self._fit)
        queue.put((job, future))
        return future

    async def finish(self) -> None:
        """Wait until every queued job is answered."""
        for queue in tuple(self._queues.values()):
            await queue.finish()

    async def _run(self, batch: Sequence[Queued[Job]]) -> None:
        try:
            answers = await self._carry_out([job for job, _ in batch])
        except Exception as error:  # noqa: BLE001 - end of the task: every caller gets the error
            answers = [error] * len(batch)
        answer(zip((future for _, future in batch), answers, strict=True))


def answer(answers: Iterable[tuple["asyncio.Future[Any]", object]]) -> None:
    """Give each future its answer, or the exception that is its answer."""
    for future, found in answers:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(found, BaseException):
            future.set_exception(found)
        else:
            future.set_result(found)
