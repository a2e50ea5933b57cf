"""The end of a process: it waits for the bodies, and not for ever."""

import asyncio
import logging

import pytest

from tests.clock import NOON, Clock
from tests.service.hand_loop import HandLoop
from tests.service.world import call_of, process
from webapp.bodies import ENDING_SECONDS, Bodies
from webapp.stores.memory import MemoryStore


async def end_beside(clock: Clock, *, swallowed_at_most: int) -> tuple[float, bool]:
    """End while a body swallows that many cancellations; how long it took, and if it was over."""
    bodies = Bodies()
    freed = asyncio.Event()
    swallowed = 0

    async def body() -> str:
        nonlocal swallowed
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > swallowed_at_most:
                    raise
        return "done"

    async with process(MemoryStore(), clock) as service:
        running = asyncio.ensure_future(bodies.run(call_of(service), body, None))
        while not len(bodies):  # noqa: ASYNC110 - the body begins in a task of its own
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await bodies.aclose()
        took = (clock.now - NOON).total_seconds()
        was_over = not len(bodies)
        freed.set()
        await asyncio.gather(running, return_exceptions=True)
    return took, was_over


def test_a_body_that_swallows_its_cancellation_is_not_waited_for_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    loop = HandLoop(clock)
    with caplog.at_level(logging.ERROR):
        took, was_over = loop.run_until_complete(end_beside(clock, swallowed_at_most=9))
    loop.close()
    assert ENDING_SECONDS <= took < 2 * ENDING_SECONDS
    assert not was_over
    assert [record.message for record in caplog.records] == ["call.would_not_end"]


def test_a_body_that_ends_when_it_is_told_costs_no_time() -> None:
    clock = Clock()
    loop = HandLoop(clock)
    assert loop.run_until_complete(end_beside(clock, swallowed_at_most=0)) == (0.0, True)
    loop.close()
