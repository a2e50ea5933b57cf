"""Schedules: every order in which a few programs can access a store, up to a bound.

A program runs until its next store operation and then waits for its turn. By default, the program
that ran last continues. A schedule switches to another program in a few places (preemptions). All
schedules up to the bound are tried, those with fewer preemptions first. Nothing is random.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from tests.support.clock import Clock
from tests.support.hand_loop import HandLoop
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore

# The program of a task and of the tasks that it starts.
PROGRAM: ContextVar[str] = ContextVar("program", default="")


@dataclass
class Schedule:
    """The order of turns. `planned` names the programs of the first turns."""

    planned: tuple[str, ...] = ()
    taken: list[str] = field(default_factory=list)
    choices: list[tuple[str, ...]] = field(default_factory=list)
    waiting: dict[str, "asyncio.Future[None]"] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()

    async def turn(self) -> None:
        """Wait for the running program's turn. Return immediately outside of a program."""
        name = PROGRAM.get()
        if name not in self.programs:
            return
        while name in self.waiting:  # a task that the program started runs concurrently
            name += "'"
        self.waiting[name] = asyncio.get_running_loop().create_future()
        try:
            await self.waiting[name]
        finally:
            self.waiting.pop(name, None)

    def next(self) -> bool:
        """Grant the next turn. Return False if no program waits."""
        able = tuple(sorted(name for name, turn in self.waiting.items() if not turn.done()))
        if not able:
            return False
        step = len(self.taken)
        if step < len(self.planned):
            name = self.planned[step]
            assert name in able, (
                "the planned task must be able to run: a schedule must be repeatable"
            )
        else:
            name = self.taken[-1] if self.taken and self.taken[-1] in able else able[0]
        self.taken.append(name)
        self.choices.append(able)
        self.waiting[name].set_result(None)
        return True

    def departures(self, preemptions_at_most: int) -> list[tuple[str, ...]]:
        """Return plans for other schedules. Each takes another turn at one step after `planned`.

        Plans with more than `preemptions_at_most` preemptions are left out.
        """
        plans = []
        spent = 0
        for step, (able, name) in enumerate(zip(self.choices, self.taken, strict=True)):
            before = self.taken[step - 1] if step else None
            if step >= len(self.planned):
                plans += [
                    (*self.taken[:step], other)
                    for other in able
                    if other != name
                    and spent + (before in able and other != before) <= preemptions_at_most
                ]
            spent += before in able and name != before
        return plans


class TurnStore(MemoryStore):
    """A memory store whose operations wait for their turn. It records all writes."""

    def __init__(
        self,
        schedule: Schedule,
        clock: Clock,
        *,
        is_slow: bool = False,
        shares_with: "TurnStore | None" = None,
    ) -> None:
        super().__init__(shares_with=shares_with)
        self.schedule = schedule
        self.clock = clock
        self.is_slow = is_slow  # wait for another turn after each write
        self.history: list[tuple[datetime, Record]] = []

    def process(self) -> "TurnStore":
        """Return a store with the same records, opened by another process."""
        other = TurnStore(self.schedule, self.clock, is_slow=self.is_slow, shares_with=self)
        other.history = self.history
        return other

    async def write(self, *records: Record) -> tuple[Record, ...]:
        await self.schedule.turn()
        written = await super().write(*records)
        self.history += [(self.clock(), record) for record in written]
        if self.is_slow:
            await self.schedule.turn()
        return written

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        await self.schedule.turn()
        return await super().read(owner, kind, id)

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        await self.schedule.turn()
        return await super().find(owner, kind, key)

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        await self.schedule.turn()
        return await super().due(now, hold=hold, limit=limit)


class World(Protocol):
    """The programs and checks that run in each schedule, from the same start."""

    violations: list[str]

    def is_quiet(self) -> None:
        """Check the state when no program can run before the clock moves."""
        ...

    async def play(self) -> None: ...


def explore(
    make: Callable[[Schedule, Clock], World], *, preemptions: int, at_most: int
) -> tuple[int, list[str]]:
    """Run every schedule up to the bounds. Return their number and the violations."""
    plans: deque[tuple[str, ...]] = deque([()])
    wrong: list[str] = []
    played = 0
    clock = Clock()
    loop = HandLoop(clock)
    beginning = clock.now
    while plans and played < at_most:
        clock.now = beginning
        schedule = Schedule(planned=plans.popleft())
        world = make(schedule, clock)

        def idle(schedule: Schedule = schedule, world: World = world) -> bool:
            if schedule.next():
                return True
            world.is_quiet()
            return False

        loop.on_idle = idle
        loop.run_until_complete(world.play())
        loop.forget_timers()
        played += 1
        wrong += [f"{problem} in {' '.join(schedule.taken)}" for problem in world.violations]
        plans.extend(schedule.departures(preemptions))
    loop.close()
    return played, wrong
