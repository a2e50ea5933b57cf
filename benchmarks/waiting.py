"""The cost of a waiting tool call while nothing happens, with few and with many other waiters.

A waiter is what a call uses: an entry in Waiters, whose coroutine is suspended on a pending future
with a timer. The task and the open request of the call belong to the MCP library and are not
counted.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

from benchmarks.figure import Figure, Round, in_rounds, summary
from benchmarks.in_process import TAKER, fresh
from flows.elicitation.states import Status, settle
from webapp.elicitations.waiters import Waiter, Waiters

MANY = 50_000
FEW = 1_000
BYTES_AT_MOST = 1500
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_UNTIL = _NOW + timedelta(minutes=5)
_YIELD_EVERY = 50  # the loop must run sometimes, or cancelled timers are never removed

_Standing = list[tuple[AbstractContextManager[Waiter], Coroutine[Any, Any, Any]] | None]


def bytes_each(*, many: int = MANY) -> Figure:
    """Compare with the smallest possible waiter: a future, a timer and an entry in a dict."""
    with asyncio.Runner() as runner:
        bare = runner.run(_bare_bytes(many))
        our_bytes = runner.run(_our_bytes(many))
    return Figure(
        what=f"bytes of a pending waiter, {many:,} of them",
        baseline=f"{bare:.0f} B",
        our_side=f"{our_bytes:.0f} B",
        ratio=our_bytes / bare,
        target=f"<= {BYTES_AT_MOST} B",
        is_met=our_bytes <= BYTES_AT_MOST,
    )


def register_and_wake(
    *, seconds: float, few: int = FEW, many: int = MANY, times: int = MANY
) -> Figure:
    """Compare our cost with many waiters to our cost with few.

    If `times` is `many`, the loop removes its cancelled timers once during the measurement.
    """
    rounds: list[Round] = []
    with asyncio.Runner() as quiet, asyncio.Runner() as busy:
        # Each crowd has its own loop, and so its own heap of timers.
        quiet_crowd, busy_crowd = Crowd(), Crowd()
        quiet.run(quiet_crowd.grow(few))
        busy.run(busy_crowd.grow(many))
        for number in in_rounds(seconds):
            if number % 2:
                our_side = busy.run(busy_crowd.register_and_wake(times))
                bare = quiet.run(quiet_crowd.register_and_wake(times))
            else:
                bare = quiet.run(quiet_crowd.register_and_wake(times))
                our_side = busy.run(busy_crowd.register_and_wake(times))
            rounds.append((bare, our_side))
        busy_crowd.leave()
        quiet_crowd.leave()
    return summary(
        f"register and wake, {many:,} pending against {few:,}",
        rounds,
        show=lambda seconds: f"{seconds * 1e6:.2f} us",
        at_most=1.3,
    )


class Crowd:
    """Waiters that stay pending during the measurement."""

    def __init__(self) -> None:
        self.waiters = Waiters()
        self._standing: _Standing = []

    async def grow(self, many: int) -> None:
        ids = [f"owner-{number:038}" for number in range(many)]
        self._standing = [None] * many
        for number, id in enumerate(ids):
            self._standing[number] = self._stand(id)

    async def register_and_wake(self, times: int) -> float:
        """Return the seconds for a waiter to register, wait, be woken and leave."""
        changed = [
            settle(fresh("owner", now=_NOW), Status.ACCEPTED, now=_NOW, content={})
            for _ in range(_YIELD_EVERY)
        ]
        start = perf_counter()
        for number in range(times):
            ended = changed[number % _YIELD_EVERY]
            waiting, coroutine = self._stand(ended.id)
            self.waiters.wake(ended)
            try:
                coroutine.send(None)
            except StopIteration:
                waiting.__exit__(None, None, None)
            if not number % _YIELD_EVERY:
                await asyncio.sleep(0)
        return (perf_counter() - start) / times

    def leave(self) -> None:
        for standing in self._standing:
            assert standing is not None
            waiting, coroutine = standing
            coroutine.close()
            waiting.__exit__(None, None, None)
        self._standing.clear()

    def _stand(self, id: str) -> tuple[AbstractContextManager[Waiter], Coroutine[Any, Any, Any]]:
        waiting = self.waiters.waiter(id, request_id="leg", run="run", taker=TAKER)
        coroutine = waiting.__enter__().changes(until=_UNTIL, now=_NOW)
        coroutine.send(None)  # runs until it awaits its future, like a call's task
        return waiting, coroutine


async def _our_bytes(many: int) -> float:
    crowd = Crowd()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await crowd.grow(many)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    crowd.leave()
    return (after - before) / many


async def _bare_bytes(many: int) -> float:
    loop = asyncio.get_running_loop()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        entries: dict[str, tuple[asyncio.Future[None], asyncio.TimerHandle]] = {}
        for number in range(many):
            future: asyncio.Future[None] = loop.create_future()
            entries[f"owner-{number:038}"] = (future, loop.call_later(300, future.cancel))
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    for _, timer in entries.values():
        timer.cancel()
    return (after - before) / many
