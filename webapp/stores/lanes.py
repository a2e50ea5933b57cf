"""Batches of items from many callers, run on a limited number of lanes.

Risks: each caller costs its own round trip. Items that arrive while every lane is busy therefore
wait, and go out together as soon as a lane is free. If a lane is free, no item waits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


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
