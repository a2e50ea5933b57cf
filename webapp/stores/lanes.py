"""What many callers ask in one turn of the event loop goes out together, on a few lanes.

What could go wrong: each caller pays a round trip of its own. So what comes while every lane is
busy waits, and goes with all the rest as soon as one is free; where none is, nobody waits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Lanes(Generic[Item]):
    """Runs batches, at most so many at a time."""

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Coroutine[None, None, None]],
        *,
        lanes: int = 1,
        fit: Callable[[Sequence[Item]], tuple[list[Item], list[Item]]],
    ) -> None:
        """`fit` parts what waits in a batch, which is not empty, and what stays behind.

        `run` lets no error out: whoever waits for an item is told by it.
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
        """Send it with the next batch."""
        self._waiting.append(item)
        if not (self._is_called or self._is_held) and len(self._running) < self._lanes:
            self._is_called = True
            self._loop.call_soon(self._start)

    @property
    def is_idle(self) -> bool:
        return not (self._is_held or self._waiting or self._running)

    def hold(self) -> None:
        """Whoever found it idle does its own alone, without a task; what comes meanwhile waits."""
        self._is_held = True

    def let_go(self) -> None:
        self._is_held = False
        if self._waiting:
            self._start()

    async def finish(self) -> None:
        """Wait until everything is done; nothing may be put in meanwhile."""
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
    """A `fit` that takes so many, the oldest first."""
    return lambda items: (list(items[:most]), list(items[most:]))
