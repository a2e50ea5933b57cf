"""A group: what questions that are asked together have to show when their leg ends.

What could go wrong: the first that has to be shown ends the leg, and the others are shown one leg
later, or never. So each comes to a stand, and the leg ends when nothing of them goes on.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from webapp.elicitations.waiters import Waiter

# Ways of a presenter's to end a leg, the one that goes first in front: that nobody was asked is
# told at once, and a form in the client is answered before a link is given to the model.
NOBODY = "nobody"
RETRY = "retry"
REQUIRED = "required"
RESULT = "result"
_WAYS = (NOBODY, RETRY, REQUIRED, RESULT)


class Placed(Protocol):
    @property
    def index(self) -> int:
        """Of the question in its run."""
        ...


PartT = TypeVar("PartT", bound=Placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing(Generic[PartT]):
    way: str
    part: PartT
    turn: asyncio.Future[tuple[PartT, ...]] = field(repr=False)

    @property
    def rank(self) -> tuple[int, int]:
        return _WAYS.index(self.way), self.part.index


class Batch(Generic[PartT]):
    """Of questions that are asked together; most are asked alone."""

    def __init__(self, size: int = 1) -> None:
        self.is_urgent = False  # somebody has something to show: nobody is waited for any longer
        self._going = size
        self._standing: list[_Standing[PartT]] = []
        self._waiters: list[Waiter] = []

    @property
    def has_nobodys(self) -> bool:
        """The client answers by itself: what it was asked beside goes to the person as well."""
        return any(one.way == NOBODY for one in self._standing)

    def join(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def leave(self) -> None:
        """One of them is answered."""
        self._going -= 1
        self._look()

    async def park(self, part: PartT, *, way: str, is_urgent: bool) -> tuple[PartT, ...]:
        """Nothing more comes of this one in this leg; what is to be shown together with it.

        Returns to the one that ends the leg, in the order of the run. The others wait to be ended.
        """
        turn = asyncio.get_running_loop().create_future()
        self._standing.append(_Standing(way=way, part=part, turn=turn))
        if way == NOBODY or (is_urgent and not self.is_urgent):
            self.is_urgent = True
            for waiter in self._waiters:
                waiter.wake(None)
        self.leave()
        parts: tuple[PartT, ...] = await turn
        return parts

    def _look(self) -> None:
        if self._going or not self._standing:
            return
        ordered = sorted(self._standing, key=lambda one: one.rank)
        lead = ordered[0]
        if not lead.turn.done():
            ways = {lead.way, RESULT} if lead.way == NOBODY else {lead.way}
            lead.turn.set_result(tuple(one.part for one in ordered if one.way in ways))
