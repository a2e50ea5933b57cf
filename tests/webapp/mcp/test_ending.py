"""Shutdown of a process: it waits for running tools, but only for a limited time."""

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.support.clock import NOON, Clock
from tests.support.hand_loop import HandLoop
from tests.support.service_env import call_of, process
from webapp.calls.running import ENDING_SECONDS, RunningTools
from webapp.stores.sqlite import MemoryStore


async def end_together(clock: Clock, *, swallowed_at_most: int) -> tuple[float, bool]:
    """Shut down while a tool body swallows its first `swallowed_at_most` cancellations.

    Returns how many seconds the shutdown took, and whether the body had ended when it returned.
    """
    bodies = RunningTools()
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


def test_tool_swallowing_its_cancellation_does_not_block_shutdown(caplog):
    clock = Clock()
    loop = HandLoop(clock)
    with caplog.at_level(logging.ERROR):
        took, was_over = loop.run_until_complete(end_together(clock, swallowed_at_most=9))
    loop.close()
    assert ENDING_SECONDS <= took < 2 * ENDING_SECONDS
    assert not was_over
    assert [record.message for record in caplog.records] == ["call.not_ended"]


def test_tool_ending_when_cancelled_does_not_delay_shutdown():
    clock = Clock()
    loop = HandLoop(clock)
    assert loop.run_until_complete(end_together(clock, swallowed_at_most=0)) == (0.0, True)
    loop.close()


@dataclass
class Orphaned:
    """A tool body whose connection is cut. It records the second of each event in `at`."""

    clock: Clock
    at: dict[str, float] = field(default_factory=dict[str, float])

    def note(self, what: str) -> None:
        self.at[what] = (self.clock.now - NOON).total_seconds()

    async def live(
        self, *, work_takes: float, is_paid: bool = False, is_cancel_explicit: bool = False
    ) -> None:
        bodies = RunningTools(orphaned_at_most=timedelta(minutes=10), grace=timedelta(seconds=10))

        async def body() -> None:
            call.used.has_paid = is_paid
            try:
                with call.used.inside_once() if work_takes else nullcontext():
                    await asyncio.sleep(work_takes)
                    self.note("done")
                await asyncio.sleep(3600)
            finally:
                self.note("over")

        async with process(MemoryStore(), self.clock) as service:
            call = call_of(service)
            running = asyncio.ensure_future(
                bodies.run(call, body, None, is_cancel_explicit=is_cancel_explicit)
            )
            await asyncio.sleep(1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.note("left")
            while len(bodies):  # noqa: ASYNC110 - the sleep advances the clock
                await asyncio.sleep(1)


@pytest.mark.parametrize(
    ("work_takes", "is_paid", "done", "over"),
    [
        (0.0, False, 0, 1),  # neither paid nor working: cancelled with its connection
        (0.0, True, 0, 601),
        (30.0, False, 30, 601),
        (605.0, False, 605, 605),  # inside `once` at the time limit: it gets the grace period
        (900.0, False, None, 611),
    ],
)
def test_abandoned_call_ends_after_its_limit_and_once_gets_the_grace(
    work_takes, is_paid, done, over
):
    # finding: R14
    orphaned = Orphaned(Clock())
    loop = HandLoop(orphaned.clock)
    loop.run_until_complete(orphaned.live(work_takes=work_takes, is_paid=is_paid))
    loop.close()
    assert {what: round(at) for what, at in orphaned.at.items()} == {
        **({"done": done} if done is not None else {}),
        "left": 1,
        "over": over,
    }


@pytest.mark.parametrize(
    ("work_takes", "done", "over"),
    [(30.0, 30, 30), (605.0, 605, 605), (900.0, None, 611)],
)
def test_call_cancelled_inside_once_gets_the_grace(work_takes, done, over):
    # finding: R14
    cancelled = Orphaned(Clock())
    loop = HandLoop(cancelled.clock)
    loop.run_until_complete(cancelled.live(work_takes=work_takes, is_cancel_explicit=True))
    loop.close()
    assert {what: round(at) for what, at in cancelled.at.items()} == {
        **({"done": done} if done is not None else {}),
        "left": 1,
        "over": over,
    }
